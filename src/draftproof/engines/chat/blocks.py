"""What engines add to the frames of a chat stream, gathered for one answer.

Each engine has its own block; shapes change between releases, so values stay undecided here and the engine's
adapter reads them. A block that cannot be read must not fail an answer that can.
"""

from typing import Annotated, Any

import msgspec

# No answer has a thousand million tokens: such a total is an unset or underflowed field, and no count.
MOST_TOKENS = 1_000_000_000
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
# A year; a longer time is no time that an answer took.
_MOST_MS = 366 * 86400e3


def ms_to_ns(value_ms: float | None) -> int | None:
    """Return milliseconds as nanoseconds; None for none, and for what cannot be the time of an answer."""
    if value_ms is None or not 0 <= value_ms <= _MOST_MS:
        return None
    return round(value_ms * 1e6)


class Timings(msgspec.Struct, frozen=True):
    """The `timings` block of llama.cpp; with `timings_per_token` on every chunk, else on the last one."""

    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: Count | None = None
    predicted_ms: float | None = None
    draft_n: Count | None = None
    draft_n_accepted: Count | None = None


class EngineBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one answer, each None or empty where no frame had one.

    Attributes:
        metrics: the last `metrics` of a frame (vLLM, the reference engine).
        sglext: the last `sglext` of a frame (SGLang), as decoded.
        timings: every `timings` of a frame in order (llama.cpp).
        tokens_per_iteration: the last `avg_decoded_tokens_per_iter` of the choice (TensorRT-LLM).
        output_tokens: the answer's tokens as counted for it.
        content_chunks: the chunks of its stream that carried tokens.
    """

    metrics: Any = None
    sglext: Any = None
    timings: tuple[Timings, ...] = ()
    tokens_per_iteration: float | None = None
    output_tokens: int | None = None
    content_chunks: int = 0
