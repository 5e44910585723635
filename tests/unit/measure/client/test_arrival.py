"""Arrival times are the kernel's: a client that looks late does not read late."""

import asyncio
import socket
import struct
import sys
import threading
import time

import pytest
import uvloop

from draftproof.core.clock import monotonic_ns
from draftproof.measure.client import arrival
from draftproof.measure.client.arrival import ArrivalReader, ask_for_stamps, keep_awake, waited_ns
from draftproof.measure.client.connection import HttpConnection
from draftproof.measure.client.exchange import ExchangeFold
from draftproof.services.engines import GENERIC

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="the stamps are Linux's")


def event(text):
    """Return a content event in its HTTP chunk."""
    data = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % text.encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def serve(writes):
    """Answer one connection with (seconds to wait, bytes) in turn, then close it; return port and thread."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        with listener, listener.accept()[0] as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.recv(65_536)
            for wait_s, data in writes:
                time.sleep(wait_s)
                sock.sendall(data)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


async def exchange(port, *, blocked_s=0.0, patience_s=10.0):
    """Return what one exchange brought; the loop is held up for so long after the request is sent."""
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: HttpConnection(monotonic_ns), "127.0.0.1", port)
    fold = ExchangeFold(GENERIC.start_fold())
    task = asyncio.create_task(connection.exchange(b"POST / HTTP/1.1\r\n\r\n", fold))
    await asyncio.sleep(0.05)
    if blocked_s:
        time.sleep(blocked_s)  # noqa: ASYNC251 - the loop is to be held up
    done, _ = await asyncio.wait({task}, timeout=patience_s)
    if not done:
        task.cancel()
        await asyncio.wait({task})
    connection.abort()
    await connection.wait_closed()
    return fold, (task.result() if done else None), monotonic_ns()


@linux_only
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_came_while_the_loop_was_held_up_has_the_time_at_which_it_came(run):
    """Bytes that arrive at 0.1 s and are read at 0.55 s arrived at 0.1 s."""
    port, thread = serve([(0.1, HEAD + event("a")), (0.7, event("b") + END)])
    before_ns = monotonic_ns()
    fold, ending, _ = run(exchange(port, blocked_s=0.5))
    thread.join()
    answer = fold.close(ending)
    assert (answer.outcome, answer.answer.text) == ("ok", "ab")
    first_ns = answer.answer.chunks[0].arrival_ns - before_ns
    assert 0.09e9 <= first_ns <= 0.4e9


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_waits_to_be_parsed_is_not_lost_when_patience_ends(run):
    """Three chunks arrived before the stream stalled; an exchange that is given up has all three."""
    port, thread = serve([(0.0, HEAD), *((0.01, event(text)) for text in "abc"), (0.8, b"")])
    fold, ending, now_ns = run(exchange(port, patience_s=0.3))
    thread.join()
    assert ending is None
    answer = fold._answer.finish()
    assert (answer.text, len(answer.chunks)) == ("abc", 3)
    assert all(chunk.arrival_ns < now_ns for chunk in answer.chunks)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_stream_that_is_closed_in_the_middle_keeps_what_came(run):
    """The connection ends behind a whole event: the exchange is broken and its chunks are there."""
    port, thread = serve([(0.0, HEAD), *((0.01, event(text)) for text in "abc")])
    fold, ending, _ = run(exchange(port))
    thread.join()
    assert ending.kind == "broken"
    answer = fold.close(ending)
    assert (answer.outcome, answer.answer.text) == ("cut", "abc")


def test_a_long_answer_keeps_every_chunk_in_order():
    """More reads than may wait to be parsed, and an end behind them, lose and reorder nothing."""
    texts = [f"{number} " for number in range(150)]
    port, thread = serve([(0.0, HEAD), *((0.001, event(text)) for text in texts), (0.0, END)])
    fold, ending, _ = uvloop.run(exchange(port))
    thread.join()
    answer = fold.close(ending).answer
    arrivals = [chunk.arrival_ns for chunk in answer.chunks]
    assert (answer.text, len(arrivals)) == ("".join(texts), 150)
    assert arrivals == sorted(arrivals)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_an_error_of_our_own_reaches_whoever_waits(run, monkeypatch):
    """What breaks in the reading of an answer is raised from its exchange: no failure of the service."""

    def break_down(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(ExchangeFold, "on_body", break_down)
    port, thread = serve([(0.0, HEAD + event("a"))])
    with pytest.raises(ZeroDivisionError, match="ours"):
        run(exchange(port))
    thread.join()


def test_nothing_is_left_of_a_loop_that_has_ended():
    """When the last stream of a loop is closed, nothing of it is kept."""
    port, thread = serve([(0.0, HEAD + event("a") + END)])
    uvloop.run(exchange(port))
    thread.join()
    assert not arrival._POLLS


@linux_only
def test_a_wait_that_cannot_be_is_no_wait():
    """No stamp, one from the future and one from before a step of the wall clock count as just arrived."""
    now_s = time.time_ns() // 10**9
    stamps = {offset: [(1, 35, struct.pack("@ll", now_s + offset, 0))] for offset in (-3600, -2, 3600)}
    assert [waited_ns([]), waited_ns(stamps[-3600]), waited_ns(stamps[3600])] == [0, 0, 0]
    assert 1.9e9 <= waited_ns(stamps[-2]) <= 4e9


@linux_only
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_no_stamp_takes_off_what_the_client_was_not_late_for(run, monkeypatch):
    """Stamps 5 s old, as of a segment behind a lost one or over a step of the wall clock: gaps stay gaps."""
    port, thread = serve([(0.1, HEAD + event("a")), (0.7, event("b")), (0.0, END)])
    monkeypatch.setattr(arrival, "waited_ns", lambda _: 5_000_000_000)
    fold, ending, _ = run(exchange(port))
    thread.join()
    answer = fold.close(ending)
    first_ns, second_ns = (chunk.arrival_ns for chunk in answer.answer.chunks)
    assert second_ns - first_ns > 0.35e9
    assert first_ns >= answer.sent_ns
    assert ending.at_ns >= second_ns


def read_by_hand(monkeypatch, reads):
    """Return the time of each of `reads`: (bytes, seconds they say they waited, seconds since the last look).

    In seconds from now on; each is read on its own, by a reader that nobody else wakes.
    """
    waits = [0]
    monkeypatch.setattr(arrival, "waited_ns", lambda _: waits[0])

    async def main():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        taken: list[float] = []
        now_ns = monotonic_ns()
        reader = ArrivalReader(
            ours, monotonic_ns, lambda _, at_ns: taken.append((at_ns - now_ns) / 1e9), lambda _: None
        )
        with theirs:
            for data, waited_s, looked_s in reads:
                theirs.sendall(data)
                waits[0] = round(waited_s * 1e9)
                reader._poll.looked_ns = monotonic_ns() - round(looked_s * 1e9)
                reader.read()
            reader.close()
        ours.close()
        return taken

    return asyncio.run(main())


def test_a_wait_ends_at_the_last_look(monkeypatch):
    """Bytes that say they waited 500 s came since the look of 100 s ago, which did not find them."""
    (at_s,) = read_by_hand(monkeypatch, [(b"a", 500.0, 100.0)])
    assert -101 < at_s < -50


def test_time_never_goes_back_within_a_stream(monkeypatch):
    """A later read that says it waited longer than the one before it came no earlier."""
    first_s, second_s = read_by_hand(monkeypatch, [(b"a", 10.0, 100.0), (b"b", 90.0, 100.0)])
    assert second_s == first_s


def test_what_one_read_leaves_behind_waited_on_from_before(monkeypatch):
    """More bytes than one read takes: the rest was there before the look that came between."""
    full, rest = b"a" * arrival._READ_BYTES, b"b"
    first_s, second_s = read_by_hand(monkeypatch, [(full, 80.0, 100.0), (rest, 80.0, 0.0)])
    assert second_s - first_s < 40


def test_a_look_that_was_full_may_have_left_a_stream_out():
    """Of two streams with bytes one look reports one: it is no look at the other, whose wait goes on."""

    async def main():
        pairs = [socket.socketpair() for _ in range(2)]
        readers = []
        for ours, _ in pairs:
            ours.setblocking(False)
            readers.append(ArrivalReader(ours, monotonic_ns, lambda *_: None, lambda _: None))
        poll = readers[0]._poll
        poll._look(1)
        looked_ns = poll.looked_ns
        for _, theirs in pairs:
            theirs.sendall(b"a")
        poll._look(1)
        was_full = poll.looked_ns == looked_ns and poll._find_rest_ns() == 0
        for reader, pair in zip(readers, pairs, strict=True):
            reader.close()
            for sock in pair:
                sock.close()
        return was_full

    assert asyncio.run(main())


def test_a_few_streams_are_never_made_to_wait(monkeypatch):
    """The rest that spares many streams wake-ups would cost one stream exactness and spare it nothing."""
    rests, rest = [], time.sleep

    def note(seconds):
        if threading.current_thread() is threading.main_thread():
            rests.append(seconds)
        rest(seconds)

    port, thread = serve([(0.0, HEAD), *((0.0002, event("a")) for _ in range(50)), (0.0, END)])
    monkeypatch.setattr(time, "sleep", note)
    fold, ending, _ = asyncio.run(exchange(port))
    thread.join()
    assert fold.close(ending).outcome == "ok"
    assert rests == []


async def rest_of(monkeypatch, *, streams=64, last_reads=1, rest_ns=1_000_000, awake_ns=None, told=None):
    """Return how long a poll rests, in ns, that has just looked, None for not at all."""
    rests: list[float] = [] if told is None else told
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reader = ArrivalReader(ours, monotonic_ns, lambda *_: None, lambda _: None)
        poll = reader._poll
        poll._reads |= {-number: lambda: None for number in range(2, streams + 1)}
        now_ns = time.monotonic_ns()
        keep_awake(loop, None if awake_ns is None else now_ns + awake_ns)
        poll._last_reads, poll._rest_ns, poll._last_ns = last_reads, rest_ns, now_ns
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", rests.append)
            patch.setattr(time, "monotonic_ns", lambda: now_ns)
            poll._on_ready()
            await asyncio.sleep(0)
        keep_awake(loop, None)
        poll._reads = {ours.fileno(): reader.read}
        reader.close()
    return rests[0] * 1e9 if rests and told is None else None


@pytest.mark.parametrize(
    ("case", "rest_ns"),
    [
        ({}, 1_000_000),
        ({"rest_ns": 400_000}, 400_000),
        ({"awake_ns": 600_000}, 450_000),  # less what waking takes
        ({"awake_ns": 200_000}, None),
        ({"awake_ns": -1_000_000}, None),  # due already
        ({"streams": 15}, None),
        ({"last_reads": 16}, None),  # a quarter of the streams at once: the loop is behind
        ({"rest_ns": 50_000}, None),
    ],
)
def test_many_streams_wait_for_company_and_no_longer_than_may_be(monkeypatch, case, rest_ns):
    """A rest ends before the loop must be awake, and is not taken by a few streams or by a loop behind."""
    assert asyncio.run(rest_of(monkeypatch, **case)) == pytest.approx(rest_ns)


@pytest.mark.parametrize(("brings", "rests"), [([b"a", b"b", b"c"], 4), ([], 1)])
def test_streams_that_bring_something_are_rested_for_again(monkeypatch, brings, rests):
    """A look that found something is followed by the next rest at once; one that found nothing waits."""

    async def main():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            taken: list[bytes] = []
            reader = ArrivalReader(ours, monotonic_ns, lambda data, _: taken.append(data), lambda _: None)
            poll = reader._poll
            poll._reads |= {-number: lambda: None for number in range(2, 65)}
            slept, waiting = [], list(brings)

            def rest(seconds):
                slept.append(seconds)
                if waiting:
                    theirs.sendall(waiting.pop(0))

            monkeypatch.setattr(time, "sleep", rest)
            monkeypatch.setattr(poll, "_note_gap", lambda _: None)
            poll._rest_ns, poll._last_ns = 100_000_000, time.monotonic_ns()
            poll._on_ready()
            for _ in range(3 * rests):
                await asyncio.sleep(0)
            poll._reads = {ours.fileno(): reader.read}
            reader.close()
        return len(slept), taken

    assert asyncio.run(main()) == (rests, brings)


@pytest.mark.parametrize(("awake", "most"), [(True, 16), (False, 1023)])
def test_few_streams_are_read_at_a_time_where_a_request_may_become_due(awake, most):
    """In an open loop a request waits for sixteen reads at most, and then goes first."""

    async def main():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            reader = ArrivalReader(ours, monotonic_ns, lambda *_: None, lambda _: None)
            keep_awake(asyncio.get_running_loop(), monotonic_ns() if awake else None)
            found = reader._poll._find_most()
            keep_awake(asyncio.get_running_loop(), None)
            reader.close()
            return found

    assert asyncio.run(main()) == most


def test_what_is_ready_goes_before_a_rest(monkeypatch):
    """A request that became due in the same round of the loop is sent first."""
    told: list[object] = []

    async def main():
        asyncio.get_running_loop().call_soon(told.append, "sent")
        await rest_of(monkeypatch, told=told)

    asyncio.run(main())
    assert told == ["sent", pytest.approx(0.001)]


@pytest.mark.parametrize(
    ("reads", "rest_ns"),
    [(640, 250_000), (100, 1_500_000), (0, 1_500_000)],  # over 20 ms of 64 streams
)
def test_a_rest_is_a_small_part_of_the_time_between_a_streams_reads(reads, rest_ns):
    """64 streams with 640 reads in 20 ms are read every 2 ms each: an eighth of that, 1.5 ms at most."""

    async def main():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            reader = ArrivalReader(ours, monotonic_ns, lambda *_: None, lambda _: None)
            poll = reader._poll
            poll._reads |= {-number: lambda: None for number in range(2, 65)}
            poll._counted_from_ns, poll._last_ns, poll._counted_reads = 0, 20_000_000, 0
            poll._note_gap(reads)
            poll._reads = {ours.fileno(): reader.read}
            reader.close()
            return poll._rest_ns

    assert asyncio.run(main()) == rest_ns


def test_stamps_are_refused_where_there_are_none(monkeypatch):
    """Another system than Linux is read without stamps."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.socket() as sock:
        assert not ask_for_stamps(sock)


def test_who_interrupts_between_the_clocks_makes_no_bytes_early(monkeypatch):
    """Bytes that just came are not earlier than their sending, though time passes while stamps are read."""

    def interrupt(_):
        time.sleep(0.02)
        return 20_000_000  # the wall clock, read behind the interruption, says that they waited so long

    async def main():
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        taken: list[int] = []
        reader = ArrivalReader(ours, monotonic_ns, lambda _, at_ns: taken.append(at_ns), lambda _: None)
        reader._poll.looked_ns = monotonic_ns() - 10**9
        with theirs:
            theirs.sendall(b"a")
            sent_ns = monotonic_ns()
            reader.read()
            reader.close()
        ours.close()
        return taken[0] - sent_ns

    monkeypatch.setattr(arrival, "waited_ns", interrupt)
    assert asyncio.run(main()) >= 0
