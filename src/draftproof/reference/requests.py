"""What a generation request must satisfy before it may take a place in the queue. Pure."""

from draftproof.errors import UsageError
from draftproof.reference.types import GenerationRequest


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raise UsageError, naming the field, unless the request can run.

    Args:
        request: the request.
        vocab_size: token ids must be below it.
        max_model_len: the prompt and at least one token of output must fit.
    """
    _check_prompt(request.prompt_token_ids, vocab_size, max_model_len)
    sampling = request.sampling
    bounds = (
        ("max_tokens", sampling.max_tokens, sampling.max_tokens >= 1, "at least 1"),
        ("temperature", sampling.temperature, 0.0 <= sampling.temperature < float("inf"), "0 or more"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "0 (all) or more"),
        ("top_p", sampling.top_p, 0.0 < sampling.top_p <= 1.0, "above 0 and at most 1"),
        ("stop", list(sampling.stop), all(sampling.stop), "no empty string"),
        (
            "num_spec_tokens",
            request.speculation.num_spec_tokens,
            request.speculation.num_spec_tokens >= 0,
            "0 or more",
        ),
    )
    for name, value, holds, rule in bounds:
        if not holds:
            raise UsageError(f"{name} is {value}", place=name, fix=f"use {rule}")


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
