"""What a chat completion is asked, and the frames of its stream as far as they are read.

Types are checked while decoding: a frame of another shape is an error and not a silent zero. Fields that are
not named here are ignored. What engines add (`metrics`, `sglext`, `logprobs`, details of the usage) stays
undecided: shapes change between releases, and a block that cannot be read must not fail an answer that can.
Decoded JSON has no cycles, so the types of every chunk are kept from the garbage collector.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from draftproof.services.engines.protocol import FrameError
from draftproof.workload.items import Item, Message


def build_chat_payload(
    item: Item, *, seed: int | None, served_model: str, max_tokens: int | None
) -> dict[str, Any]:
    """Return the body of /v1/chat/completions: streamed, with usage at every chunk.

    Usage is asked for in every arm alike, so that each is counted from the same source. `top_k`, which the
    protocol does not know, is sent only where the item asks for it.
    """
    sampling = item.sampling
    payload: dict[str, Any] = {
        "model": served_model,
        "messages": [_render_message(one) for one in item.messages],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "max_tokens": item.max_tokens if max_tokens is None else min(item.max_tokens, max_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    optional = {
        "seed": seed,
        "top_k": sampling.top_k or None,
        "stop": list(item.stop) or None,
        "tools": list(item.tools) or None,
        "tool_choice": item.tool_choice,
    }
    stated = {key: value for key, value in optional.items() if value is not None}
    if item.response_schema is not None:
        stated["response_format"] = render_response_schema(item.response_schema)
    return payload | stated | item.request


def _render_message(message: Message) -> dict[str, Any]:
    """A message without content says so: the protocol has null there."""
    rendered: dict[str, Any] = msgspec.to_builtins(message)
    rendered.setdefault("content", None)
    return rendered


def render_response_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the `response_format` that asks for an answer valid under a JSON schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


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

    Raises FrameError: not JSON, or a field of another type than the protocol's.
    """
    try:
        return _DECODER.decode(data)
    except FAULTS as error:
        raise FrameError(_explain(error)) from error


def parse_frames(lines: Sequence[bytes]) -> list[ChatFrame]:
    """Return the frames of several events, the data of each of which is one line; faster than one by one.

    A frame that spans lines or shares one, and an empty line, would shift those behind it: lines that do not
    look like one object each are refused. Raises FrameError: as `parse_frame`, of any of them, or they are to
    be read one by one.
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


# The plain middle of a stream: frames that bring text of one choice, a running count, and nothing else, as
# nearly all do. Any other frame is refused while decoding, so whoever takes these looks at nothing besides.
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Some = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]


class PlainDelta(msgspec.Struct, frozen=True, gc=False):
    """Text."""

    content: _Text
    refusal: None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None


class PlainChoice(msgspec.Struct, frozen=True, gc=False):
    """The first choice, going on."""

    delta: PlainDelta
    index: Literal[0] = 0
    finish_reason: None = None
    token_ids: tuple[TokenId, ...] | None = None
    avg_decoded_tokens_per_iter: None = None
    logprobs: None = None


class PlainUsage(msgspec.Struct, frozen=True, gc=False):
    """A running count."""

    prompt_tokens: _Some
    completion_tokens: _Some
    completion_tokens_details: Any = None


class PlainFrame(msgspec.Struct, frozen=True, gc=False):
    """One event of the plain middle; it has every field of a `ChatFrame`."""

    choices: tuple[PlainChoice]
    usage: PlainUsage | None = None
    timings: None = None
    metrics: None = None
    sglext: None = None
    error: None = None
    object: Literal["chat.completion.chunk"] | None = None
    message: None = None


class PlainFrames(msgspec.Struct, frozen=True):
    """What some plain frames bring, one entry a frame; `ids` and `counts` are None where no frame has any.

    `prompt_tokens` and `details` are those of the last frame's usage.
    """

    texts: list[str]
    ids: list[tuple[int, ...]] | None
    counts: list[int] | None
    prompt_tokens: int | None
    details: Any


_PLAIN_DECODER = msgspec.json.Decoder(PlainFrame)


def parse_plain(lines: Sequence[bytes]) -> PlainFrames | None:
    """Return what the frames in the data of several events bring, None unless all are plain and alike."""
    try:
        frames = _PLAIN_DECODER.decode_lines(join_lines(lines))
    except FAULTS:
        return None
    usages = [frame.usage for frame in frames]
    ids = [frame.choices[0].token_ids for frame in frames]
    counted = [usage for usage in usages if usage is not None]
    named = [one for one in ids if one is not None]
    whole = len(frames) == len(lines)
    if not whole or len(counted) not in {0, len(lines)} or len(named) not in {0, len(lines)}:
        return None
    return PlainFrames(
        texts=[frame.choices[0].delta.content for frame in frames],
        ids=named or None,
        counts=[usage.completion_tokens for usage in counted] or None,
        prompt_tokens=counted[-1].prompt_tokens if counted else None,
        details=counted[-1].completion_tokens_details if counted else None,
    )
