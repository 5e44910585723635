"""The engine's vocabulary: what a request asks for, what a round gives back.

Pure data, importable without torch.

What a generation request must satisfy before it may take a place in the queue. Pure.
"""

from typing import Literal

import msgspec

from draftproof.core.errors import UsageError
from draftproof.core.records import Round

SpeculationMethod = Literal["off", "ngram", "draft_model", "attached", "self"]
DraftPolicy = Literal["fixed", "adaptive", "batch", "auto"]
BatchTable = tuple[tuple[int, int], ...]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the next token is drawn. `temperature` 0 is greedy; the defaults of all else change nothing.

    `logprobs` asks for the log-probability of each token and of that many likeliest others, as the model gave
    them. `json_schema` is a JSON schema, as text, that the output must satisfy.
    """

    max_tokens: int
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    json_schema: str | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class SpeculationParams(msgspec.Struct, frozen=True, kw_only=True):
    """Which proposer drafts for a request and how many tokens a round may draft.

    `policy` says how many of `num_spec_tokens` a round does draft: all (`fixed`), by recent acceptance and
    measured times (`adaptive`), by batch size (`batch`), or adaptive and off while it does not pay (`auto`).
    With `adaptive` and `auto` sampled output has the same distribution, but a seed no longer fixes it.
    `stop_below` ends a draft early, where the product of the drafter's own largest probabilities is below it;
    it has no meaning for n-gram lookup, and 0 never ends one.
    """

    method: SpeculationMethod = "off"
    num_spec_tokens: int = 4
    policy: DraftPolicy = "fixed"
    stop_below: float = 0.0


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Process-wide settings; these are the arm's settings in a manifest.

    `max_num_batched_tokens` bounds the tokens of one forward pass: running sequences first, the rest is
    given to waiting prompts (chunked prefill). `max_queue` requests may wait; more are refused.
    `draft_length_by_batch` is the table of the policy `batch`: (decoding sequences from, draft length) in
    rising order, the first from 1; a request's own `num_spec_tokens` bounds it. `drafters` names what the
    methods other than n-gram lookup draft with; what ships for the default method is used if it is empty.
    """

    model_path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    speculation: SpeculationParams = SpeculationParams()
    drafters: tuple[str, ...] = ()
    draft_length_by_batch: BatchTable = ((1, 8), (4, 4), (8, 2), (16, 0))
    ngram_min: int = 2
    ngram_max: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256
    max_model_len: int = 2048
    max_queue: int = 256
    num_threads: int | None = None
    device: str = "cpu"
    kernels: Literal["auto", "native", "portable"] = "auto"


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to complete."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    speculation: SpeculationParams


class RoundStats(Round, frozen=True):
    """One decode round as one sequence saw it.

    `draft_limit` is what the policy allowed to draft, 0 where it paused drafting; None where the sequence
    does not draft or had no room for a draft.
    """

    draft_limit: int | None = None


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probability of one delivered token, and the likeliest tokens at its place, likeliest first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RoundOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a round delivered to one request.

    `token_ids` are new, final and never taken back. `text` is what may be shown of them: a prefix of a
    stop string or of an unfinished character is held back. `round` is None for the output of the prefill,
    whose first token came from no decode round. `fallbacks` counts drafter failures so far.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    round: RoundStats | None
    queue_ns: int
    prefill_ns: int
    fallbacks: int
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None


_MOST_LOGPROBS = 20
_WIDEST_PENALTY = 2.0  # as in the OpenAI API reference, and the same for logit_bias below
_WIDEST_BIAS = 100.0


def check_request(request: GenerationRequest, *, vocab_size: int, max_model_len: int) -> None:
    """Raise UsageError, naming the field, unless the request can run.

    Token ids must be below `vocab_size`; prompt and at least one token of output must fit `max_model_len`.
    """
    _check_prompt(request.prompt_token_ids, vocab_size, max_model_len)
    for name, value, holds, rule in _list_bounds(request.sampling, request.speculation, vocab_size):
        if not holds:
            raise UsageError(f"{name} is {value}", place=name, fix=f"use {rule}")


def _list_bounds(
    one: SamplingParams, speculation: SpeculationParams, vocab_size: int
) -> list[tuple[str, object, bool, str]]:
    """Return each field, its value, whether it will do, and what would."""
    outside = [pair for pair in one.logit_bias if not 0 <= pair[0] < vocab_size]
    too_wide = [pair for pair in one.logit_bias if not -_WIDEST_BIAS <= pair[1] <= _WIDEST_BIAS]
    unknown = [token_id for token_id in one.stop_token_ids if not 0 <= token_id < vocab_size]
    penalties = {name: getattr(one, name) for name in ("presence_penalty", "frequency_penalty")}
    repetition, count, ids = (
        one.repetition_penalty,
        speculation.num_spec_tokens,
        "token ids of 0 or more and below",
    )
    logprobs_hold = one.logprobs is None or 0 <= one.logprobs <= _MOST_LOGPROBS
    return [
        ("max_tokens", one.max_tokens, one.max_tokens >= 1, "at least 1"),
        ("temperature", one.temperature, 0.0 <= one.temperature < float("inf"), "0 or more"),
        ("top_k", one.top_k, one.top_k >= 0, "0 (all) or more"),
        ("top_p", one.top_p, 0.0 < one.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", one.min_p, 0.0 <= one.min_p <= 1.0, "0 (all) to 1"),
        ("stop", list(one.stop), all(one.stop), "no empty string"),
        ("logprobs", one.logprobs, logprobs_hold, f"0 to {_MOST_LOGPROBS}, or leave it out"),
        (
            "repetition_penalty",
            repetition,
            0.0 < repetition < float("inf"),
            "a number above 0; 1 changes nothing",
        ),
        *(
            (name, value, -_WIDEST_PENALTY <= value <= _WIDEST_PENALTY, "-2 to 2; 0 changes nothing")
            for name, value in penalties.items()
        ),
        ("logit_bias", outside, not outside, f"{ids} {vocab_size}"),
        ("logit_bias", too_wide, not too_wide, "values from -100 to 100"),
        (
            "min_tokens",
            one.min_tokens,
            0 <= one.min_tokens <= one.max_tokens,
            f"0 to max_tokens, here {one.max_tokens}",
        ),
        ("stop_token_ids", unknown, not unknown, f"{ids} {vocab_size}"),
        ("num_spec_tokens", count, count >= 0, "0 or more"),
        ("stop_below", speculation.stop_below, 0.0 <= speculation.stop_below <= 1.0, "a number from 0 to 1"),
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
