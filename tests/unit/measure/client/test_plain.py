"""The way past the parsers says what the parsers say, or nothing."""

import asyncio
import itertools
import re
from pathlib import Path

import httptools
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.records import build_item

from draftproof.core.clock import monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.measure.client.connection import HttpConnection
from draftproof.measure.client.exchange import Ending, ExchangeFold
from draftproof.measure.client.sse import SseDecoder, ends_plain, take_frames
from draftproof.measure.load.period import Job, Period, make_record
from draftproof.services.engines import ADAPTERS, GENERIC

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
PAYLOADS = sorted((Path(__file__).parents[3] / "fixtures" / "payloads").glob("*/*.sse"))
TURN = Period(block=0, load="low", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=("i",))
JOB = Job(request_id="r", item=build_item("i"), phase="measure", order_in_block=0, seed=None)
PLAIN = b'{"choices":[{"index":0,"delta":{"content":"%d"},"finish_reason":null}]}'


def chunk(body):
    """Return a body in its HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(body), body)


def event(frame):
    """Return an event in its HTTP chunk."""
    return chunk(b"data: %s\n\n" % frame)


frames = st.one_of(
    st.integers(0, 99).map(lambda number: PLAIN % number),
    st.sampled_from([b"{}", b"[DONE]", b'{"error":{"message":"no"}}', b'{"choices":7}', b"{,}", b"\xff{}"]),
    st.sampled_from([b"", b"  ", b'{"choices":[]', b"}", b"{}{}", b'{"usage":', b"{}}"]),
)
bodies = st.one_of(
    frames.map(lambda frame: b"data: %s\n\n" % frame),
    frames.map(lambda frame: b"data:%s\n\n" % frame),
    frames.map(lambda frame: b"data: %s\r\n\r\n" % frame),
    frames.map(lambda frame: b"event: error\ndata: %s\n\n" % frame),
    st.sampled_from([b": still there\n\n", b"data: 7\n", b"data: ", b"\n", b"id: 7\r"]),
    st.just(b'data: {"choices":\ndata: []}\n\n'),
    st.just(b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n'),
)


class Reference:
    """The parsers, fed read by read; `events` are each event's data and its read, None once they balk."""

    def __init__(self):
        self._parser, self._decoder = httptools.HttpResponseParser(self), SseDecoder()
        self._read = 0
        self.events: list[tuple[bytes, int]] | None = []
        self._parser.feed_data(HEAD)

    def on_body(self, body):
        for one in self._decoder.feed(body):
            assert self.events is not None
            self.events.append((one.data, self._read))

    def feed(self, reads):
        try:
            for data, at_ns in reads:
                self._read = at_ns
                self._parser.feed_data(data)
        except (httptools.HttpParserError, EngineError):
            self.events = None
        return self.events


@st.composite
def cut_streams(draw, tail=b""):
    """Return a stream of events, cut into reads: mostly between chunks, sometimes anywhere, maybe damaged."""
    chunks = [chunk(body) for body in draw(st.lists(bodies, min_size=1, max_size=12))]
    whole = b"".join(chunks) + tail
    if draw(st.booleans()):
        place = draw(st.integers(0, len(whole) - 1))
        whole = whole[:place] + bytes([draw(st.integers(0, 255))]) + whole[place + 1 :]
    return cut(draw, whole, chunks)


def cut(draw, whole, chunks):
    """Return a stream in reads, mostly cut at the borders of its chunks."""
    borders = list(itertools.accumulate(map(len, chunks)))
    anywhere = st.integers(0, len(whole))
    cuts = draw(st.sets(st.one_of(st.sampled_from(borders), anywhere) if draw(st.booleans()) else anywhere))
    if draw(st.booleans()):
        cuts |= set(borders)
    places = sorted({0, *cuts, len(whole)})
    return [whole[start:end] for start, end in itertools.pairwise(places)]


@st.composite
def cut_payloads(draw):
    """Return a recorded stream in reads, each of its events a chunk, those of its middle often repeated."""
    body = draw(st.sampled_from(PAYLOADS)).read_bytes()
    events = re.findall(rb"(?s).+?(?:\r?\n\r?\n|$)", body)
    place, times = draw(st.integers(0, len(events) - 1)), draw(st.integers(1, 9))
    chunks = [chunk(one) for one in [*events[:place], *[events[place]] * times, *events[place + 1 :]]]
    return cut(draw, b"".join(chunks) + b"0\r\n\r\n", chunks)


def test_each_event_has_the_time_of_its_read():
    reads = [event(b"{1}"), event(b"{2}") + event(b"{3}")]
    assert take_frames(reads, [10, 20]) == ([b"{1}", b"{2}", b"{3}"], [10, 20, 20])


@pytest.mark.parametrize(
    "read",
    [
        b"5" + event(b"{}"),  # another size than it has
        b"0xA\r\ndata: {}\n\n\r\n",  # a number, but not HTTP's
        chunk(b"data:{}\n\n"),
        chunk(b"id: 7\ndata: {}\n\n"),
        chunk(b"data: {\n\ndata: }\n\n"),
        chunk(b"data: {\r}\n\n"),
        event(b"{}")[:-1],
        event(b"{}") + b"a",
    ],
)
def test_whatever_else_a_read_holds_is_left_to_the_parsers(read):
    assert take_frames([event(b"{}"), read], [1, 2]) is None


@given(cut_streams())
@settings(max_examples=400)
def test_what_is_taken_is_what_the_parsers_find(reads):
    """Of any bytes in any cut: the same events in the same reads, or none."""
    timed = [(read, at_ns) for at_ns, read in enumerate(reads, start=1)]
    taken = take_frames(reads, range(1, len(reads) + 1))
    assert taken is None or list(zip(*taken, strict=True)) == Reference().feed(timed)


def fold_of(reads, *, may_wait, head=HEAD, engine="generic"):
    """Return what one exchange heard that came in `reads`, each at its own time, and how it was ended."""

    async def main():
        answer = ADAPTERS[engine].start_fold()
        connection, fold = HttpConnection(monotonic_ns), ExchangeFold(answer, may_wait=may_wait)
        connection._begin()
        connection._listener, connection._ending = fold, asyncio.get_running_loop().create_future()
        for number, data in enumerate([head, *reads]):
            connection._take(data, number)
        connection._catch_up()
        is_over = connection._ending.done()
        ending = connection._ending.result() if is_over else Ending(kind="broken", at_ns=99, detail="gone")
        return fold.close(ending)

    return asyncio.run(main())


@given(cut_streams(tail=END))
@settings(max_examples=200, deadline=None)
def test_an_answer_is_the_same_whether_its_reads_wait_or_not(reads):
    """Outcome, text, chunks, times and words of fault, of any bytes in any cut."""
    assert fold_of(reads, may_wait=True) == fold_of(reads, may_wait=False)


@pytest.mark.parametrize("engine", ADAPTERS)
@given(cut_payloads())
@settings(max_examples=60, deadline=None)
def test_a_record_is_the_same_to_the_byte_whether_its_reads_wait_or_not(engine, reads):
    """Of every engine's answers, read by every adapter, in any cut."""
    fast, slow = (
        msgspec.json.encode(make_record(TURN, JOB, 0, fold_of(reads, may_wait=may_wait, engine=engine)))
        for may_wait in (True, False)
    )
    assert fast == slow


@pytest.mark.parametrize("engine", ADAPTERS)
def test_a_long_plain_stream_is_counted_alike_whether_its_reads_wait_or_not(engine):
    """Twenty plain events that no usage follows: TGI's are its tokens, in every way of reading."""
    reads = [*(event(PLAIN % number) for number in range(20)), END]
    waited = fold_of(reads, may_wait=True, engine=engine)
    assert waited == fold_of(reads, may_wait=False, engine=engine)
    assert waited.answer.output_tokens == (20 if engine == "tgi" else None)


def test_what_looks_like_a_chunk_inside_of_a_chunk_is_not_one():
    """A read that begins in mid-chunk, or in the middle of a chunk's size, is not at a border."""
    within = b": x\r\n" + event(b"{}")
    size = b"data: {}\n\n\r\n: 4567890123\n\n"
    assert len(size) == 0x1A
    for whole, cut in ((chunk(within), len(b"15\r\n: x\r\n")), (chunk(size), 1)):
        seen = len(event(b"{}"))
        reads = [event(PLAIN % 1), whole[:cut], whole[cut : cut + seen], whole[cut + seen :], END]
        assert ends_plain(reads[2])
        assert take_frames([reads[2]], [1]) is not None
        waited = fold_of(reads, may_wait=True)
        assert waited == fold_of(reads, may_wait=False)
        assert waited.outcome == "ok"


def test_nothing_is_read_behind_a_fault_of_the_framing():
    """A chunk whose size is no number ends the answer: a plain event after it is no part of it."""
    reads = [event(b'{"error":{"message":"no"}}'), b"\0\r\ndata: {}\n\n\r\n", event(PLAIN % 1), END]
    waited = fold_of(reads, may_wait=True)
    assert waited == fold_of(reads, may_wait=False)
    assert (waited.outcome, waited.answer.text) == ("malformed", "")


def test_what_is_packed_is_not_read_past_the_parsers_either():
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    reads = [event(PLAIN % 1), event(PLAIN % 2), END]
    assert fold_of(reads, may_wait=True, head=head) == fold_of(reads, may_wait=False, head=head)
    assert fold_of(reads, may_wait=True, head=head).outcome == "malformed"


def test_an_event_of_two_lines_is_one_though_the_second_looks_plain():
    """A line that an earlier chunk brought belongs to the event that follows."""
    reads = [event(PLAIN % 1), chunk(b"data: 7\n"), event(PLAIN % 2), event(PLAIN % 3), END]
    waited = fold_of(reads, may_wait=True)
    assert waited == fold_of(reads, may_wait=False)
    assert (waited.outcome, waited.answer.text) == ("malformed", "13")


@pytest.mark.parametrize(
    ("odd", "outcome", "text"),
    [
        ((b"", PLAIN % 2), "ok", "123"),
        ((b"  ", PLAIN % 2), "ok", "123"),
        ((b'{"choices":[]', b"}"), "malformed", "13"),
        (((PLAIN % 2) * 2, PLAIN % 2), "malformed", "123"),
        ((b"", (PLAIN % 2) * 2, b"{}"), "malformed", "13"),  # as many objects as events
        ((b'{"usage":', b"{}}", (PLAIN % 2) * 2, b"{}"), "malformed", "13"),
    ],
)
def test_events_that_are_no_frame_each_are_read_one_by_one(odd, outcome, text):
    """An empty event, a frame over two events and two frames in one shift no time and pass for nothing."""
    reads = [event(PLAIN % 1), b"".join(map(event, odd)), event(PLAIN % 3), event(b"{}"), END]
    waited = fold_of(reads, may_wait=True)
    assert waited == fold_of(reads, may_wait=False)
    assert (waited.outcome, waited.answer.text) == (outcome, text)


def test_an_end_marker_is_no_middle_whatever_follows_it():
    """A service that writes on behind its marker, and then nothing, has answered."""
    assert not ends_plain(event(b"[DONE]") + event(PLAIN % 1))


def test_what_comes_unasked_does_not_wait_for_the_next_request():
    """Else the beginning of an answer to nobody is lost, and its rest read as the next answer."""

    class Answered(HttpConnection):
        dropped = 0

        def _write(self, request):
            for read in (HEAD, event(PLAIN % 1), END):
                self._take(read, len(request))

        def abort(self):
            self.dropped += 1

    async def main():
        connection = Answered(monotonic_ns)
        await connection.exchange(b"", ExchangeFold(GENERIC.start_fold()))
        before = connection.dropped
        connection._take(HEAD + event(PLAIN % 2), 2)
        return before, connection.dropped

    assert asyncio.run(main()) == (0, 1)


def test_nothing_is_heard_after_the_end():
    fold = ExchangeFold(GENERIC.start_fold())
    fold.on_headers(200, "text/event-stream", 1)
    fold.on_body(b"data: %s\n\ndata: [DONE]\n\n" % (PLAIN % 1), 2)
    fold.on_frames([PLAIN % 2], [3])
    assert fold.close(Ending(kind="complete", at_ns=4)).answer.text == "1"


def test_a_long_answer_waits_and_comes_out_whole():
    """More reads than may wait, each with its time."""
    reads = [event(PLAIN % number) for number in range(250)]
    answer = fold_of([*reads, END], may_wait=True).answer
    assert answer.text == "".join(map(str, range(250)))
    assert [one.arrival_ns for one in answer.chunks] == list(range(1, 251))


def test_who_follows_an_answer_hears_of_each_read_at_once():
    """Where an answer is to be left after so many chunks, none of them waits."""

    async def main():
        connection, fold = HttpConnection(monotonic_ns), ExchangeFold(GENERIC.start_fold(), may_wait=False)
        connection._begin()
        connection._listener = fold
        connection._take(HEAD, 0)
        connection._take(event(PLAIN % 1), 1)
        return fold.close(Ending(kind="cancelled", at_ns=2)).answer.text

    assert asyncio.run(main()) == "1"


def test_the_end_of_an_answer_is_never_taken_for_its_middle():
    assert ends_plain(event(b"{}"))
    assert not ends_plain(END)
    assert not ends_plain(event(b"{}") + END)
