"""Connections that are used again: which one, for how long, and what becomes of those a server closes."""

import asyncio
import time

import pytest
import uvloop
from byte_server import CHAT, DIALECTS, ByteServer, Reply, ask, events, respond, send, with_transport

from draftproof.core.clock import monotonic_ns
from draftproof.measure.client.connection import HttpConnection

BODY = events(DIALECTS["generic"].frames)
LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_one_connection_carries_one_request_after_the_other(run):
    """Where the server keeps it open only the first request connects; the others have no such time."""

    async def work(transport):
        return [await send(transport, server.url) for _ in range(5)]

    with ByteServer({CHAT: respond(BODY, framing="chunked")}) as server:
        found = with_transport(work, run=run)
        assert (server.connections, len(server.requests)) == (1, 5)
    assert [one.outcome for one in found] == ["ok"] * 5
    assert [one.connect_ns is None for one in found] == [False, True, True, True, True]


def test_a_server_that_says_it_will_close_is_taken_at_its_word():
    """Though its connection is still open, the next request does not go into it."""

    async def work(transport):
        return [(await send(transport, server.url)).outcome for _ in range(2)]

    with ByteServer({CHAT: respond(BODY, framing="chunked", Connection="close")}) as server:
        assert with_transport(work) == ["ok", "ok"]
        assert server.connections == 2


def test_the_connection_used_last_is_used_next():
    """Of three at rest that one is the least likely to be closing; the others rest on."""

    async def work(transport):
        await asyncio.gather(*(send(transport, server.url) for _ in range(3)))
        parked = [place.connection for place in next(iter(transport._parked.values()))]
        await send(transport, server.url)
        return parked, [place.connection for place in next(iter(transport._parked.values()))]

    with ByteServer({CHAT: respond(BODY, framing="chunked")}) as server:
        before, after = with_transport(work)
    assert len(before) == 3
    assert after == before


def test_a_connection_that_rested_too_long_is_not_used_again():
    """Up to the limit it is; beyond it the server may be closing it, so that a new one is made."""
    skipped_ns = [0]

    async def work(transport):
        found = []
        for rest_s in (0, 9, 11):
            skipped_ns[0] += round(rest_s * 1e9)
            found.append((await send(transport, server.url)).connect_ns is not None)
        return found

    with ByteServer({CHAT: respond(BODY, framing="chunked")}) as server:
        assert with_transport(work, clock=lambda: monotonic_ns() + skipped_ns[0], max_idle_s=10) == [
            True, False, True,
        ]  # fmt: skip


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_server_that_closes_a_kept_connection_spoils_no_request(monkeypatch, run, is_seen):
    """It closes just as the connection is used again, before it took a byte: the request goes out again."""
    if not is_seen:  # as if the end came between the look at the connection and the sending
        monkeypatch.setattr(HttpConnection, "has_hung_up", False)

    async def work(transport):
        found = []
        for _ in range(3):
            found.append(await send(transport, server.url))
            time.sleep(0.1)  # noqa: ASYNC251 - the loop must not see the end before it sends again
        return found

    with ByteServer({CHAT: respond(BODY, then="close")}) as server:
        found = with_transport(work, run=run)
        assert (server.connections, len(server.requests)) == (3, 3)
    assert [one.outcome for one in found] == ["ok"] * 3
    assert found[1].connect_ns is not None


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_a_request_that_a_server_took_is_never_sent_twice(run):
    """It reads the request on a kept connection and closes without a word: that is its failure."""
    replies = [respond(BODY), Reply((), "close"), respond(BODY)]

    async def work(transport):
        return [await send(transport, server.url) for _ in range(3)]

    with ByteServer({CHAT: lambda _: replies.pop(0)}) as server:
        found = with_transport(work, run=run)
        assert len(server.requests) == 3
    assert [one.outcome for one in found] == ["ok", "http_error", "ok"]


def test_a_limit_of_requests_a_connection_spoils_none():
    """A server that closes after every second answer, with no word of it, loses nothing of a long row.

    The first close may meet a request on its way, which the server's system then has: that one stands.
    """
    whole = respond(BODY)

    def answer(_request):
        return Reply(whole.packets, "close" if len(server.requests) % 2 == 0 else "keep")

    with ByteServer({CHAT: answer}) as server:
        records = ask(server.url, requests=30)
        assert [one.outcome for one in records[2:]] == ["ok"] * 28
        assert server.connections >= 15


def test_an_answer_that_never_ends_behind_its_end_marker_holds_its_connection_for_a_moment_only():
    """Such a connection cannot be used again: after a second's grace it is dropped, and none pile up."""
    skipped_ns = [0]
    packets = [packet.removesuffix(b"0\r\n\r\n") for packet in respond(BODY, framing="chunked").packets]

    async def work(transport):
        found = []
        for _ in range(4):
            found.append((await send(transport, server.url)).outcome)
            skipped_ns[0] += 1_100_000_000
        await asyncio.sleep(0.05)
        return found, len(transport._open)

    with ByteServer({CHAT: Reply(tuple(packets), "hang")}) as server:
        found, held = with_transport(work, clock=lambda: monotonic_ns() + skipped_ns[0])
    assert found == ["ok"] * 4
    assert held == 1
