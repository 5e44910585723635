"""The event decoder: any cut of the bytes gives the same events, and nothing is lost."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import EngineError
from draftproof.measure.client.sse import SseDecoder, SseEvent

STREAM = (
    b"\xef\xbb\xbf: a comment\n"
    b'data: {"a": 1}\n\n'
    b"event: error\r\ndata: one\r\ndata:two\r\n\r\n"
    b"id: 7\rretry: 10\rdata\rdata:  three\r\r"
    b"event: empty\n\n"
    b'data: "\xc3\xa9\xd9\x85"\n\n'
    b"data: [DONE]\n\n"
)
EVENTS = [
    SseEvent(b'{"a": 1}'),
    SseEvent(b"one\ntwo", "error"),
    SseEvent(b"\n three"),
    SseEvent(b'"\xc3\xa9\xd9\x85"'),
    SseEvent(b"[DONE]"),
]


def decode(*pieces):
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert decoder.flush() is None
    assert decoder.stray_lines == []
    return events


def test_all_line_ends_comments_and_multi_line_data_are_read():
    """LF, CRLF, CR, comments, ids, a byte-order mark and several data lines give the events of the format."""
    assert decode(STREAM) == EVENTS


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_cut_at_any_byte_changes_nothing(cut):
    """Two reads give the events of one read, wherever the border falls."""
    assert decode(STREAM[:cut], STREAM[cut:]) == EVENTS


def test_single_bytes_change_nothing():
    """One byte a read gives the events of one read."""
    assert decode(*(STREAM[index : index + 1] for index in range(len(STREAM)))) == EVENTS


@settings(deadline=None)  # a shared machine may pause any example
@given(
    bodies=st.lists(
        st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1), max_size=6
    ),
    line_end=st.sampled_from([b"\n", b"\r", b"\r\n"]),
    data=st.data(),
)
def test_what_is_encoded_comes_back_for_any_cut(bodies, line_end, data):
    """Every sequence of events survives every partition of its bytes."""
    encoded = b"".join(b"data: " + body.encode() + line_end * 2 for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=8)))
    borders = [0, *cuts, len(encoded)]
    pieces = [encoded[start:end] for start, end in itertools.pairwise(borders)]
    assert [event.data for event in decode(*pieces)] == [body.encode() for body in bodies]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), max_size=8))
def test_arbitrary_bytes_never_raise(pieces):
    """Bytes that are no event stream are decoded or kept aside, never an error."""
    decoder = SseDecoder()
    whole = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert events == whole.feed(b"".join(pieces))
    assert decoder.flush() == whole.flush()
    assert decoder.stray_lines == whole.stray_lines


@pytest.mark.parametrize("rest", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE]\r\n"])
def test_flush_returns_the_event_whose_end_never_came(rest):
    """An event without its blank line is returned by flush and marked as incomplete."""
    decoder = SseDecoder()
    assert decoder.feed(rest) == []
    assert decoder.flush() == SseEvent(b"[DONE]", complete=False)
    assert decoder.flush() is None


def test_a_carriage_return_ends_an_event_at_once():
    """The event is there with its last CR; the LF that may follow is not waited for and not a blank line."""
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [SseEvent(b"x")]
    assert decoder.feed(b"\ndata: y\r\n\r\n") == [SseEvent(b"y")]


def test_lines_outside_the_format_are_kept():
    """A line with an unknown field name is kept aside and does not disturb the events."""
    decoder = SseDecoder()
    assert decoder.feed(b"Traceback (most recent call last):\ndata: x\n\n") == [SseEvent(b"x")]
    assert decoder.stray_lines == [b"Traceback (most recent call last):"]


@pytest.mark.parametrize("piece", [b"data: 0123456789", b"data: 0123456789\n"])
def test_an_event_without_end_is_refused_at_the_limit(piece):
    """Memory is bounded: an event that grows beyond the limit is an error."""
    decoder = SseDecoder(limit_bytes=40)
    for _ in range(40 // len(piece)):
        decoder.feed(piece)
    with pytest.raises(EngineError, match="longer than 40 bytes"):
        decoder.feed(piece * 3)


def test_the_limit_is_for_one_event_and_not_for_the_stream():
    """Many events may together exceed the limit."""
    decoder = SseDecoder(limit_bytes=40)
    assert sum(len(decoder.feed(b"data: 0123456789\n\n")) for _ in range(20)) == 20


def test_the_cost_of_a_line_does_not_grow_with_its_event():
    """An event that comes line by line is not counted again at every line."""

    class Watched(list[bytes]):
        visits = 0

        def __iter__(self):
            Watched.visits += len(self)
            return super().__iter__()

    decoder = SseDecoder()
    decoder.feed(b"data: x\n")
    decoder._data = Watched(decoder._data)
    for _ in range(1000):
        decoder.feed(b"data: x\n")
    assert Watched.visits == 0
    (event,) = decoder.feed(b"\n")
    assert event.data == b"\n".join([b"x"] * 1001)
