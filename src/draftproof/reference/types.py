"""The engine's vocabulary: what a request asks for, what a round gives back.

Pure data, importable without torch.
"""

from typing import Literal

import msgspec

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
    `ngram_shared_tokens` is how many tokens of all requests' outputs lookup keeps for all of them to draft
    from; above 0 an answer's pace tells what others were told, and the seeds of requests are ignored.
    """

    model_path: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    speculation: SpeculationParams = SpeculationParams()
    drafters: tuple[str, ...] = ()
    draft_length_by_batch: BatchTable = ((1, 8), (4, 4), (8, 2), (16, 0))
    ngram_min: int = 2
    ngram_max: int = 4
    ngram_shared_tokens: int = 0
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


class RoundStats(msgspec.Struct, frozen=True, kw_only=True):
    """One decode round as one sequence saw it; durations are those of the whole batched round, ns.

    `draft_limit` is what the policy allowed to draft, 0 where it paused drafting; None where the sequence
    does not draft or had no room for a draft.
    """

    proposed: int
    accepted: int
    committed: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    schedule_ns: int
    batch_size: int
    prefill_tokens: int
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
