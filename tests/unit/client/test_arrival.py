"""Arrival times are the kernel's: a client that looks late does not read late."""

import asyncio
import socket
import struct
import sys
import threading
import time

import pytest
import uvloop

from draftproof.client import arrival
from draftproof.client.arrival import ask_for_stamps, waited_ns
from draftproof.client.connection import HttpConnection
from draftproof.client.exchange import ExchangeFold
from draftproof.clock import monotonic_ns
from draftproof.engines import GENERIC

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
    texts = [f"{number} " for number in range(100)]
    port, thread = serve([(0.0, HEAD), *((0.001, event(text)) for text in texts), (0.0, END)])
    fold, ending, _ = uvloop.run(exchange(port))
    thread.join()
    answer = fold.close(ending).answer
    arrivals = [chunk.arrival_ns for chunk in answer.chunks]
    assert (answer.text, len(arrivals)) == ("".join(texts), 100)
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


def test_stamps_are_refused_where_there_are_none(monkeypatch):
    """Another system than Linux is read without stamps."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with socket.socket() as sock:
        assert not ask_for_stamps(sock)
