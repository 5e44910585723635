"""The plain middle of a chat stream: frames that bring text of one choice, a running count, and nothing else.

Nearly every frame is such a one. Its types say so: while decoding, any other frame is refused, also one that
the protocol allows, so that whoever takes these needs to look at nothing but what they bring.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from draftproof.services.engines.chat.frames import FAULTS, MOST_TOKENS, TokenId, join_lines

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


_DECODER = msgspec.json.Decoder(PlainFrame)


def parse_plain(lines: Sequence[bytes]) -> PlainFrames | None:
    """Return what the frames in the data of several events bring, None unless all are plain and alike."""
    try:
        frames = _DECODER.decode_lines(join_lines(lines))
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
