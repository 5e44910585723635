"""What the load client and the engines agree on: the fold over an answer's frames and what it returns.

Pure: a fold never opens a socket and never reads a clock. The arrival of a frame is an argument.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from draftproof.core.records import Chunk, Round, ServerTimings, SpecCounts, TokenSource, ToolCall


class FrameError(ValueError):
    """A frame of the stream that is not what the engine's protocol allows."""


class SpeculationSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a service to speculate in a stated way for one request only."""

    method: str
    num_spec_tokens: int


Speculation = SpeculationSwitch | Literal["off"] | None  # None: the service's own setting stands


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream said, whole or not; field by field as in `RequestRecord`.

    `stream_error` is the text of an error event inside the stream; `is_refused` says that it came before any
    token and named the service too busy. `warnings` name disagreements between
    what the stream delivered and what it said about itself.
    """

    chunks: tuple[Chunk, ...] = ()
    token_source: TokenSource | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    text: str = ""
    reasoning_text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    token_ids: tuple[int, ...] | None = None
    speculation: SpecCounts | None = None
    rounds: tuple[Round, ...] | None = None
    decode_steps: int | None = None
    top_two_margins: tuple[float | None, ...] | None = None
    server: ServerTimings = ServerTimings()
    fallbacks: int | None = None
    stream_error: str | None = None
    is_refused: bool = False
    finish_ns: int | None = None
    unstreamed_tokens: int = 0
    piece_chars: tuple[int, ...] | None = None
    warnings: tuple[str, ...] = ()


class AnswerFold(Protocol):
    """Takes the frames of one answer in order."""

    def add(self, frame: bytes, arrival_ns: int) -> None:
        """Take the data of one event.

        Raises FrameError: not JSON, or not of the engine's form; the fold stays usable.
        """
        ...

    def add_all(self, frames: Sequence[bytes], arrivals_ns: Sequence[int]) -> None:
        """Take the data of several events, each of one line.

        Raises FrameError: as `add`, of any of them; none is taken then.
        """
        ...

    def finish(self) -> Answer:
        """Return what was said so far."""
        ...
