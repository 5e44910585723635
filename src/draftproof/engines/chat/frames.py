"""The frames of a streamed chat completion, as far as they are read.

Types are checked while decoding: a frame of another shape is an error and not a silent zero. Fields that are
not named here are ignored. `metrics`, `sglext`, `logprobs` and details of the usage stay undecided: engines
call their shape experimental, and a block that cannot be read must not fail an answer that can. What is
decoded from JSON has no cycles, so that the types of every chunk are kept from the garbage collector.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from draftproof.engines.chat.blocks import Count, Timings
from draftproof.engines.protocol import FrameError

# A stream that began with 200 can still be refused: SGLang states the code, TGI says it in words.
_BUSY_CODES = (429, 503, "429", "503")


# What a record can hold.
TokenId = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class Usage(msgspec.Struct, frozen=True, gc=False):
    """Token counts as the server states them, cumulative where they come with every chunk."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    completion_tokens_details: Any = None


class FunctionDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call."""

    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of the tool call at `index`."""

    index: int = 0
    function: FunctionDelta | None = None


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What a chunk adds to the answer; engines name reasoning text in two ways, a refusal is text by name."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One choice of a chunk; `token_ids` are those of this chunk."""

    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: tuple[TokenId, ...] | None = None
    avg_decoded_tokens_per_iter: float | None = None
    logprobs: Any = None


class ChatFrame(msgspec.Struct, frozen=True, gc=False):
    """One event of the stream."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    metrics: Any = None
    sglext: Any = None
    error: Any = None
    object: str | None = None
    message: str | None = None

    @property
    def error_text(self) -> str | None:
        """What an error event says, None for an ordinary frame."""
        if isinstance(self.error, dict):
            return str(self.error.get("message") or self.error)
        if self.error is not None:
            return str(self.error)
        return (self.message or "no message") if self.object == "error" else None

    @property
    def is_refusal(self) -> bool:
        """Whether an error event says that the service was too busy: 429, 503, or in words."""
        if not isinstance(self.error, dict):
            return False
        stated = (self.error.get("code"), self.error.get("http_status_code"))
        return (
            any(code in _BUSY_CODES for code in stated)
            or "overloaded" in str(self.error.get("message")).lower()
        )


_DECODER = msgspec.json.Decoder(ChatFrame)
_BETWEEN = b"}\n{"  # two lines of one object each; in no place inside of one
FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def parse_frame(data: bytes) -> ChatFrame:
    """Return the frame in the data of one event.

    Raises:
        FrameError: not JSON, or a field of another type than the protocol's.
    """
    try:
        return _DECODER.decode(data)
    except FAULTS as error:
        raise FrameError(_explain(error)) from error


def parse_frames(lines: Sequence[bytes]) -> list[ChatFrame]:
    """Return the frames of several events, the data of each of which is one line; faster than one by one.

    A frame that spans lines or shares one, and an empty line, would shift those behind it: lines that do not
    look like one object each are refused.

    Raises:
        FrameError: as `parse_frame`, of any of them, or they are to be read one by one.
    """
    try:
        frames = _DECODER.decode_lines(join_lines(lines))
    except FAULTS as error:
        raise FrameError(_explain(error)) from error
    if len(frames) != len(lines):
        raise FrameError("some lines are not one frame each")
    return frames


def join_lines(lines: Sequence[bytes]) -> bytes:
    """Return lines of one object each as they are decoded together, nothing if they are others."""
    joined = b"\n".join(lines)
    is_plain = joined.startswith(b"{") and joined.endswith(b"}") and joined.count(_BETWEEN) == len(lines) - 1
    return joined if is_plain else b""


def _explain(error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return f"a frame has an unexpected form: {error}"
    return (
        "a frame is nested too deeply"
        if isinstance(error, RecursionError)
        else f"a frame is not JSON: {error}"
    )
