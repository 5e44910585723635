"""Connections: names, addresses, certificates, the time that connecting takes; what is recorded of it."""

import asyncio
import socket
import ssl
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest
import uvloop
from byte_server import CHAT, DIALECTS, ByteServer, Reply, ask, events, respond, send, with_transport
from tests.builders.load import run_period
from tests.builders.records import build_item

from draftproof.core.clock import monotonic_ns
from draftproof.measure.client.transport import Dialler, HttpTransport, Origin, ResumingContext
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import MemorySink

BODY = events(DIALECTS["generic"].frames)
CERTIFICATE = Path(__file__).with_name("self_signed.pem")
LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture
def resolver(monkeypatch):
    """Return the lookups made, as a list; `answers` by host replaces what the system says."""
    asked: list[str] = []
    answers: dict[str, list[str]] = {}
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def look_up(loop, host, port, **options):
        asked.append(host)
        if host in answers:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in answers[host]]
        return await real(loop, host, port, **options)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)
    return asked, answers


def test_a_name_is_looked_up_once_for_all_who_wait(resolver):
    """Twenty requests at one time to a name make one lookup."""
    asked, answers = resolver
    answers["service.test"] = ["127.0.0.1"]

    async def work(transport):
        url = server.url.replace("127.0.0.1", "service.test")
        found = await asyncio.gather(*(send(transport, url) for _ in range(20)))
        await send(transport, url)
        return found, dict(transport._dialler.lookups)

    with ByteServer({CHAT: respond(BODY)}) as server:
        found, lookups = with_transport(work)
    assert {one.outcome for one in found} == {"ok"}
    assert asked == ["service.test"]
    (lookup,) = lookups.values()
    assert lookup == ("127.0.0.1",)


def test_whoever_gives_up_waiting_for_a_name_leaves_the_others_their_answer(monkeypatch):
    """Two requests wait for one lookup; the first is cancelled, the second is answered."""
    real, begun = asyncio.base_events.BaseEventLoop.getaddrinfo, asyncio.Event()

    async def look_up(loop, host, port, **options):
        begun.set()
        await asyncio.sleep(0.05)
        return await real(loop, host, port, **options)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)

    async def work(transport):
        first, second = (asyncio.create_task(send(transport, server.url)) for _ in range(2))
        await begun.wait()
        first.cancel()
        return (await second).outcome, (await asyncio.gather(first, return_exceptions=True))[0]

    with ByteServer({CHAT: respond(BODY)}) as server:
        outcome, cancelled = with_transport(work)
    assert outcome == "ok"
    assert isinstance(cancelled, asyncio.CancelledError)


def test_a_lookup_that_nobody_waits_for_ends_with_its_transport(monkeypatch):
    """Whoever asked has given up; nothing of it is left on the loop."""
    begun = asyncio.Event()

    async def look_up(*_, **__):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)

    async def main():
        transport = HttpTransport()
        asking = asyncio.create_task(send(transport, "http://service.test"))
        await begun.wait()
        asking.cancel()
        await asyncio.wait({asking})
        await transport.close()
        return asyncio.all_tasks() == {asyncio.current_task()}

    assert asyncio.run(main())


def test_the_address_that_works_is_kept(resolver, monkeypatch):
    """Of two addresses the first refuses: the second serves, and is the first one asked from then on."""
    _, answers = resolver
    answers["service.test"] = ["127.0.0.2", "127.0.0.1"]
    tried = []

    async def work(transport):
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def watch(make, host, *rest, **options):
            tried.append(host)
            return await connect(make, host, *rest, **options)

        monkeypatch.setattr(loop, "create_connection", watch)
        url = server.url.replace("127.0.0.1", "service.test")
        return [(await send(transport, url)).outcome for _ in range(2)]

    with ByteServer({CHAT: respond(BODY, framing="close")}) as server:
        assert with_transport(work) == ["ok", "ok"]
    assert tried == ["127.0.0.2", "127.0.0.1", "127.0.0.1"]


def test_an_address_that_does_not_answer_is_given_up_for_the_next(resolver, monkeypatch):
    """One that drops packets costs its patience and not the request."""
    _, answers = resolver
    answers["service.test"] = ["127.0.0.2", "127.0.0.1"]

    async def main():
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def drop(make, host, *rest, **options):
            if host == "127.0.0.2":
                await asyncio.Event().wait()
            return await connect(make, host, *rest, **options)

        monkeypatch.setattr(loop, "create_connection", drop)
        dialler = Dialler(monotonic_ns, patience_s=0.01)
        port = int(server.url.rpartition(":")[2])
        connection = await dialler.dial(Origin("http", "service.test", port))
        connection.abort()
        await connection.wait_closed()
        return dialler.lookups[Origin("http", "service.test", port)]

    with ByteServer({CHAT: respond(BODY)}) as server:
        assert asyncio.run(main()) == ("127.0.0.1", "127.0.0.2")


def test_a_name_none_of_whose_addresses_answers_is_looked_up_again(resolver):
    """The service may have moved: the next request asks anew."""
    asked, answers = resolver
    answers["service.test"] = ["127.0.0.2"]

    async def work(transport):
        url = server.url.replace("127.0.0.1", "service.test")
        first = await send(transport, url)
        answers["service.test"] = ["127.0.0.1"]
        return first, await send(transport, url)

    with ByteServer({CHAT: respond(BODY)}) as server:
        first, second = with_transport(work)
    assert (first.outcome, first.sent_ns) == ("http_error", None)
    assert "cannot connect to service.test" in first.error
    assert first.connect_ns >= 0
    assert second.outcome == "ok"
    assert asked == ["service.test"] * 2


def test_a_name_that_does_not_exist_is_a_failure_in_words():
    """Not an error of ours, and it has no time of sending."""
    (record,) = ask("http://does-not-exist.invalid:1")
    assert (record.outcome, record.sent_ns) == ("http_error", None)
    assert "cannot connect to does-not-exist.invalid:1" in record.error


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_localhost_and_ipv6_are_reached(run):
    """A service that listens on ::1 alone is found by its address and by a name that has both."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")

    def serve():
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"".join(respond(BODY, framing="close").packets))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]

    async def work(transport):
        urls = [f"http://[::1]:{port}", f"http://localhost:{port}"]
        return [(await send(transport, url)).outcome for url in urls]

    with listener:
        first, second = with_transport(work, run=run)
    assert first == "ok"
    assert second == "ok" or "::1" not in str(socket.getaddrinfo("localhost", None))


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
def test_a_tls_session_is_used_again(monkeypatch, run):
    """Each request has its own connection; handshakes after the first go on from its session."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    async def work(transport):
        return [await send(transport, server.url) for _ in range(4)]

    with ByteServer({CHAT: respond(BODY, framing="close")}, tls=context) as server:
        found = with_transport(work, run=run)
        assert server.connections == 4
    assert [one.outcome for one in found] == ["ok"] * 4
    assert all(one.connect_ns > 0 for one in found)
    assert context.session_stats()["hits"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no arrival has a kernel's stamp")
@pytest.mark.parametrize("is_tls", [False, True])
def test_arrivals_that_the_client_stamps_itself_are_counted(monkeypatch, is_tls):
    """A period over TLS says of each request that its times hold the client's lag; any other of none."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    items = {name: build_item(name) for name in "abc"}
    period = Period(
        block=1, load="l", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=tuple(items)
    )

    async def work(transport):
        endpoint = Endpoint(url=server.url, served_model="m", engine="generic")
        return await run_period(period, endpoint, items, transport=transport, sink=MemorySink())

    with ByteServer({CHAT: respond(BODY, framing="close")}, tls=context if is_tls else None) as server:
        block = with_transport(work)
    assert block.unstamped == (3 if is_tls else 0)


def test_a_resuming_context_verifies():
    """Nothing is trusted that the system does not trust."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_timeout_while_connecting_keeps_the_time_apart():
    """A handshake that never ends: no time of sending, and all the time is that of connecting."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (record,) = ask(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3)
    assert (record.outcome, record.sent_ns) == ("timeout", None)
    assert 250_000_000 < record.connect_ns <= record.end_ns - record.scheduled_ns


def test_a_timeout_on_a_new_connection_still_tells_what_connecting_took():
    """The time to connect stands in the record although the answer never came."""
    with ByteServer({CHAT: Reply((), "hang")}) as server:
        (record,) = ask(server.url, timeout_s=0.2)
    assert record.outcome == "timeout"
    assert record.sent_ns is not None
    assert 0 < record.connect_ns <= record.sent_ns - record.scheduled_ns


def test_connecting_is_over_when_the_request_is_sent():
    """What the service takes to answer is no part of the time to connect."""

    async def work(transport):
        before_ns = monotonic_ns()
        return before_ns, await send(transport, server.url)

    def answer(_request):
        time.sleep(0.1)
        return respond(BODY)

    with ByteServer({CHAT: answer}) as server:
        before_ns, found = with_transport(work)
    assert found.outcome == "ok"
    assert 0 < found.connect_ns <= found.sent_ns - before_ns


def test_closed_connections_are_forgotten():
    """Of many connections that were closed none is held."""

    async def work(transport):
        for _ in range(5):
            await send(transport, server.url)
        await asyncio.sleep(0.05)
        return len(transport._open), {len(parked) for parked in transport._parked.values()}

    with ByteServer({CHAT: respond(BODY, framing="close")}) as server:
        assert with_transport(work)[0] == 0


def test_a_huge_answer_is_not_held():
    """Thirty MiB of comments around a short answer cost a small part of that."""
    comment = b": " + b"x" * 65_000 + b"\n\n"
    packets = (b"".join(respond(comment * 480 + BODY).packets),)

    async def work(transport):
        tracemalloc.start()
        try:
            outcome = (await send(transport, server.url)).outcome
            return outcome, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    with ByteServer({CHAT: Reply(packets)}) as server:
        outcome, peak_bytes = with_transport(work)
    assert outcome == "ok"
    assert peak_bytes < 8 * 2**20
