"""What a generation request must satisfy before it may take a place in the queue. Pure."""

from draftproof.errors import UsageError
from draftproof.reference.types import GenerationRequest, SamplingParams

_MOST_LOGPROBS = 20
_WIDEST_PENALTY = 2.0  # as in the OpenAI API reference, and the same for logit_bias below
_WIDEST_BIAS = 100.0
_Bound = tuple[str, object, bool, str]  # field, its value, whether it will do, what would


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raise UsageError, naming the field, unless the request can run.

    Args:
        request: the request.
        vocab_size: token ids must be below it.
        max_model_len: the prompt and at least one token of output must fit.
    """
    _check_prompt(request.prompt_token_ids, vocab_size, max_model_len)
    sampling, speculation = request.sampling, request.speculation
    bounds = [
        *_drawing_bounds(sampling),
        *_logit_bounds(sampling, vocab_size),
        ("num_spec_tokens", speculation.num_spec_tokens, speculation.num_spec_tokens >= 0, "0 or more"),
        ("stop_below", speculation.stop_below, 0.0 <= speculation.stop_below <= 1.0, "a number from 0 to 1"),
    ]
    for name, value, holds, rule in bounds:
        if not holds:
            raise UsageError(f"{name} is {value}", place=name, fix=f"use {rule}")


def _drawing_bounds(sampling: SamplingParams) -> list[_Bound]:
    return [
        ("max_tokens", sampling.max_tokens, sampling.max_tokens >= 1, "at least 1"),
        ("temperature", sampling.temperature, 0.0 <= sampling.temperature < float("inf"), "0 or more"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 (all) or more"),
        ("top_p", sampling.top_p, 0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", sampling.min_p, 0.0 <= sampling.min_p <= 1.0, "0 (all) to 1"),
        ("stop", list(sampling.stop), all(sampling.stop), "no empty string"),
        (
            "logprobs",
            sampling.logprobs,
            sampling.logprobs is None or 0 <= sampling.logprobs <= _MOST_LOGPROBS,
            f"0 to {_MOST_LOGPROBS}, or leave it out",
        ),
    ]


def _logit_bounds(sampling: SamplingParams, vocab_size: int) -> list[_Bound]:
    outside = [pair for pair in sampling.logit_bias if not 0 <= pair[0] < vocab_size]
    too_wide = [pair for pair in sampling.logit_bias if not -_WIDEST_BIAS <= pair[1] <= _WIDEST_BIAS]
    unknown = [token_id for token_id in sampling.stop_token_ids if not 0 <= token_id < vocab_size]
    penalties = [(name, getattr(sampling, name)) for name in ("presence_penalty", "frequency_penalty")]
    return [
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            0.0 < sampling.repetition_penalty < float("inf"),
            "a number above 0; 1 changes nothing",
        ),
        *(
            (name, value, -_WIDEST_PENALTY <= value <= _WIDEST_PENALTY, "-2 to 2; 0 changes nothing")
            for name, value in penalties
        ),
        ("logit_bias", outside, not outside, f"token ids of 0 or more and below {vocab_size}"),
        ("logit_bias", too_wide, not too_wide, "values from -100 to 100"),
        (
            "min_tokens",
            sampling.min_tokens,
            0 <= sampling.min_tokens <= sampling.max_tokens,
            f"0 to max_tokens, here {sampling.max_tokens}",
        ),
        ("stop_token_ids", unknown, not unknown, f"token ids of 0 or more and below {vocab_size}"),
    ]


def _check_prompt(token_ids: tuple[int, ...], vocab_size: int, max_model_len: int) -> None:
    if not token_ids:
        raise UsageError("the prompt has no tokens", place="prompt", fix="send at least one token")
    if len(token_ids) >= max_model_len:
        raise UsageError(
            f"the prompt has {len(token_ids)} tokens and the engine holds {max_model_len} with the output",
            place="prompt",
            fix="shorten the prompt or raise max_model_len",
        )
    if not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        raise UsageError(
            f"a prompt token id lies outside the vocabulary of {vocab_size}",
            place="prompt",
            fix="encode the prompt with this model's tokenizer",
        )
