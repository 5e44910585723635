"""Frames taken in one go say what they say one by one."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.services.engines.chat.fold import ChatFold
from draftproof.services.engines.chat.frames import (
    ChatFrame,
    Choice,
    Delta,
    PlainChoice,
    PlainDelta,
    PlainFrame,
    PlainUsage,
    Usage,
    parse_frames,
    parse_plain,
)
from draftproof.services.engines.protocol import Answer, FrameError


def frame(text: str | None = "a", *, choice: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """Return a frame of one choice with this text."""
    delta = {} if text is None else {"delta": {"content": text}}
    body = {"object": "chat.completion.chunk", "choices": [{"index": 0, **delta, **(choice or {})}], **fields}
    return json.dumps(body).encode()


def usage(tokens: Any, prompt: Any = 7, **further: Any) -> dict[str, Any]:
    """Return a usage block."""
    return {"prompt_tokens": prompt, "completion_tokens": tokens, **further}


DETAILS = {"completion_tokens_details": {"reasoning_tokens": 2}}
OTHERS = [
    frame("", usage=usage(3)),
    frame(None),
    frame("b", choice={"index": 1}),
    frame("c", choice={"finish_reason": "stop"}),
    frame("d", choice={"finish_reason": ""}),
    frame("e", choice={"delta": {"content": "e", "reasoning": "why"}}),
    frame(choice={"delta": {"reasoning_content": "hm"}}),
    frame(choice={"delta": {"content": "e", "refusal": "no"}}),
    frame(choice={"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}}),
    frame(choice={"delta": {"content": "f", "tool_calls": []}}),
    frame("g", choice={"avg_decoded_tokens_per_iter": 2.0}),
    frame("h", choice={"token_ids": [4], "logprobs": {"content": []}}),
    frame("i", timings={"predicted_n": 5}),
    frame("j", metrics={"fallbacks": 1}),
    frame("k", sglext={"x": 1}),
    frame("l", error={"message": "no"}),
    frame("m", message="kept"),
    frame("n", usage=usage(0)),
    frame("n", usage=usage(2**32 - 1)),
    frame("o", usage=usage(None)),
    frame("p", usage=usage(4, prompt=0)),
    frame("q", usage=usage(4, prompt=None)),
    b'{"choices": []}',
    b'{"choices": [], "usage": {"completion_tokens": 9}}',
    b'{"object": "error", "message": "late"}',
    b'{"choices": 7}',
    b"{",
    b"{}\n{}",
]
plain = st.one_of(
    st.text(min_size=1, max_size=3).map(frame),
    st.integers(1, 9).map(lambda tokens: frame("x", usage=usage(tokens))),
    st.integers(1, 9).map(lambda tokens: frame("y", usage=usage(tokens, **DETAILS))),
    st.lists(st.integers(0, 9), max_size=2).map(lambda ids: frame("z", choice={"token_ids": ids})),
)
streams = st.one_of(
    st.lists(st.integers(1, 9), max_size=12).map(
        lambda counts: [frame("x", usage=usage(sum(counts[: at + 1]))) for at in range(len(counts))]
    ),
    st.lists(plain, max_size=12),
    st.lists(st.one_of(plain, plain, plain, st.sampled_from(OTHERS)), max_size=12),
)


def fold_one_by_one(frames: list[bytes]) -> Answer | None:
    """Return the answer of frames taken singly, None where one of them is none."""
    fold = ChatFold()
    try:
        for at_ns, one in enumerate(frames):
            fold.add(one, at_ns)
    except FrameError:
        return None
    return fold.finish()


@settings(max_examples=400, deadline=None)
@given(streams, st.lists(st.integers(0, 12), max_size=3))
def test_frames_in_one_go_are_the_answer_that_they_are_one_by_one(frames, cuts) -> None:
    """However a stream is cut into goes, its answer is that of its frames alone, faults included."""
    places = sorted({0, len(frames), *(cut for cut in cuts if cut < len(frames))})
    fold = ChatFold()
    try:
        for first, last in pairwise(places):
            fold.add_all(frames[first:last], range(first, last))
    except FrameError:
        assert fold_one_by_one(frames) is None
        return
    assert fold.finish() == fold_one_by_one(frames)


@pytest.mark.parametrize("other", OTHERS)
def test_no_other_frame_is_taken_for_a_plain_one(other) -> None:
    """A frame that brings anything beside text and a running count is left to whoever reads all of it."""
    assert parse_plain([frame("a"), other]) is None


@pytest.mark.parametrize(
    ("whole", "plain"),
    [(ChatFrame, PlainFrame), (Choice, PlainChoice), (Delta, PlainDelta), (Usage, PlainUsage)],
)
def test_no_field_that_is_read_goes_past_a_plain_frame(whole, plain) -> None:
    """Every field of a frame is one of a plain frame: what only the slow path knew would be lost."""
    assert set(whole.__struct_fields__) == set(plain.__struct_fields__)


def test_frames_that_bring_unlike_things_are_not_plain() -> None:
    """Counts, or token ids, on some of the frames alone cannot be put in one list."""
    counted, named = frame("b", usage=usage(2)), frame("c", choice={"token_ids": [1]})
    assert parse_plain([frame("a"), counted]) is None
    assert parse_plain([frame("a"), named]) is None


def test_a_plain_stream_goes_past_the_frames_that_read_everything(monkeypatch) -> None:
    """Of twenty plain frames only those of a possible end are looked at one by one."""
    read: list[bytes] = []

    def note(lines: Sequence[bytes]) -> list[ChatFrame]:
        read.extend(lines)
        return parse_frames(lines)

    monkeypatch.setattr("draftproof.services.engines.chat.fold.parse_frames", note)
    fold = ChatFold()
    fold.add_all([frame("x", usage=usage(at + 1)) for at in range(20)], range(20))
    assert len(read) < 5
    assert len(fold.finish().chunks) == 20


def test_a_fault_among_the_last_frames_takes_none() -> None:
    """Frames before one that is none are left out too: they are read again, one by one."""
    fold = ChatFold()
    with pytest.raises(FrameError):
        fold.add_all([*[frame("x")] * 9, b"{"], range(10))
    assert fold.finish().text == ""
