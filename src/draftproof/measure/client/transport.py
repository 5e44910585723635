"""Connections to services: opened when needed, kept alive between requests, dropped when cancelled.

Owns the pool and the request head. A connection that sat idle longer than `max_idle_s` is not used again:
servers close idle connections, and a request sent into a closing one would be booked as a failure of the arm.

Nothing that a server took is sent twice: a second attempt could turn a failure of the service into a pass.
A kept connection may be closed at the very moment at which it is used again, by a server that limits requests
or time; where the system says that not a byte of the request was taken at the other end, the request has not
been made yet, and it is made on a new connection. Where the system does not say so, the failure stands, and
from then on each request to that server has a connection of its own. Once a server was seen to close what is
kept, a connection to it rests for a moment before it is used again, so that an end behind an answer is seen.

Making connections: one name lookup an origin, its addresses in turn, TLS sessions used again.

A lookup is shared by all who wait for it and kept until none of its addresses can be reached, so that the
time of one request in a run holds it and not that of each. The address that worked last is tried first.
"""

import asyncio
import functools
import socket
import ssl
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import UsageError
from draftproof.measure.client.connection import HttpConnection
from draftproof.measure.client.exchange import Ending, Listener, WireRequest

# How long one of several addresses may leave us waiting before the next is tried: a machine that has IPv6
# and no way out by it drops packets in silence.
PATIENCE_S = 2.0


class Origin(NamedTuple):
    """Where a connection leads."""

    scheme: str
    host: str
    port: int


class ResumingContext(ssl.SSLContext):
    """Verifies as the system does, and offers each server the session that it gave out last.

    A handshake that goes on from a session costs less of both sides' time; its connection is as safe.
    """

    def __init__(self, *_: object) -> None:
        self._latest: dict[str | bytes | None, ssl.SSLObject] = {}
        self._sessions: dict[str | bytes | None, ssl.SSLSession] = {}
        self.load_default_certs()

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - the library's own signature
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection, with the session of an earlier one to the same host."""
        before = self._latest.get(server_hostname)
        if before is not None and (given := before.session) is not None and given.has_ticket:
            self._sessions[server_hostname] = given
        made = super().wrap_bio(
            incoming, outgoing, server_side, server_hostname, session or self._sessions.get(server_hostname)
        )
        self._latest[server_hostname] = made
        return made


class Dialler:
    """Opens connections.

    `clock`: source of every time. `tls`: context for https addresses; None is the system's default with
    verification.
    """

    def __init__(
        self, clock: Clock, tls: ssl.SSLContext | None = None, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._clock, self._tls, self._patience_s = clock, tls, patience_s
        self._pending: dict[Origin, asyncio.Task[tuple[str, ...]]] = {}
        self.lookups: dict[Origin, tuple[str, ...]] = {}  # addresses in the order in which they are tried

    async def dial(self, origin: Origin) -> HttpConnection:
        """Return a new connection.

        Raises OSError: no address of the origin can be reached, or it has none.
        """
        addresses = await self._find_addresses(origin)
        fault: OSError | None = None
        for place, address in enumerate(addresses):
            is_last = place == len(addresses) - 1
            try:
                connection = await self._connect(origin, address, None if is_last else self._patience_s)
            except OSError as error:  # a timeout is one too
                fault = fault or error
                continue
            if place:  # what worked is tried first from now on
                others = (one for one in addresses if one != address)
                self.lookups[origin] = (address, *others)
            return connection
        # The name may lead elsewhere by now.
        self.lookups.pop(origin, None)
        raise fault or OSError("the name has no address")

    async def _connect(self, origin: Origin, address: str, patience_s: float | None) -> HttpConnection:
        tls: dict[str, Any] = {}
        if origin.scheme == "https":
            self._tls = self._tls or ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
            tls = {"ssl": self._tls, "server_hostname": origin.host}
        async with asyncio.timeout(patience_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._clock), address, origin.port, **tls
            )
        return connection

    async def _find_addresses(self, origin: Origin) -> tuple[str, ...]:
        if (known := self.lookups.get(origin)) is not None:
            return known
        if origin not in self._pending:
            self._pending[origin] = asyncio.create_task(self._look_up(origin))
            self._pending[origin].add_done_callback(lambda _: self._pending.pop(origin, None))
        # Whoever loses patience leaves the others their answer.
        return await asyncio.shield(self._pending[origin])

    async def _look_up(self, origin: Origin) -> tuple[str, ...]:
        found = await asyncio.get_running_loop().getaddrinfo(
            origin.host, origin.port, type=socket.SOCK_STREAM
        )
        self.lookups[origin] = tuple(dict.fromkeys(str(one[4][0]) for one in found))
        return self.lookups[origin]

    async def close(self) -> None:
        """End lookups that nobody waits for any more."""
        for task in tuple(self._pending.values()):
            task.cancel()
        if self._pending:
            await asyncio.wait(set(self._pending.values()))


MAX_IDLE_S = 2.0
DRAIN_GRACE_S = 1.0
REST_S = 0.005


class _Parked(NamedTuple):
    connection: HttpConnection
    since_ns: int


class HttpTransport:
    """HTTP/1.1 over asyncio; one per event loop.

    `clock`: source of every time it reports. `max_idle_s`: longest rest of a connection that is used again.
    `tls`: context for https addresses; None is the system's default with verification.
    """

    def __init__(
        self,
        *,
        clock: Clock = monotonic_ns,
        max_idle_s: float = MAX_IDLE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clock = clock
        self._max_idle_ns = round(max_idle_s * 1e9)
        self._dialler = Dialler(clock, tls)
        self._parked: dict[Origin, deque[_Parked]] = {}
        self._open: set[HttpConnection] = set()
        self._dropped: set[HttpConnection] = set()
        self._closing: set[Origin] = set()  # servers that close kept connections
        self._forgetful: set[Origin] = set()  # and those that did while they had a request

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        """Send one request and return how it ended.

        The time to connect lies between the caller's schedule and `sent_ns`, never after `sent_ns`. Raises
        UsageError: the address or a header cannot be sent.
        """
        origin, target = split_url(request.url)
        head_and_body = render_request(request, origin, target)
        if (parked := self._take_parked(origin)) is not None:
            ending = await parked.exchange(head_and_body, listener)
            if ending.kind != "broken" or not parked.is_unheard:
                self._park(origin, parked)
                return ending
            if not parked.is_untaken:
                self._forgetful.add(origin)
                return ending
        return await self._send_anew(origin, head_and_body, listener)

    async def _send_anew(self, origin: Origin, head_and_body: bytes, listener: Listener) -> Ending:
        """Send over a new connection."""
        began_ns = self._clock()
        listener.on_connecting(began_ns)
        try:
            connection = await self._dialler.dial(origin)
        except OSError as error:
            at_ns = self._clock()
            detail = f"cannot connect to {origin.host}:{origin.port}: {_describe(error)}"
            return Ending(kind="unreachable", at_ns=at_ns, detail=detail, connect_ns=at_ns - began_ns)
        self._open.add(connection)
        connection.when_released(lambda one: self._note_released(origin, one))
        connected_ns = self._clock()
        listener.on_connected(connected_ns)
        ending = await connection.exchange(head_and_body, listener)
        self._park(origin, connection)
        return msgspec.structs.replace(ending, connect_ns=connected_ns - began_ns)

    async def close(self) -> None:
        """Drop every connection and wait until the sockets are released."""
        await self._dialler.close()
        connections = list(self._open)
        for connection in connections:
            self._drop(connection)
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
        self._open.clear()
        self._parked.clear()

    def _drop(self, connection: HttpConnection) -> None:
        self._dropped.add(connection)
        connection.abort()

    def _note_released(self, origin: Origin, connection: HttpConnection) -> None:
        """Learn of a server that closed a connection which it had said it would keep."""
        self._open.discard(connection)
        if connection not in self._dropped and connection.is_kept_open:
            self._closing.add(origin)
        self._dropped.discard(connection)

    def _park(self, origin: Origin, connection: HttpConnection) -> None:
        if not connection.is_closed:
            self._parked.setdefault(origin, deque()).append(_Parked(connection, self._clock()))

    def _take_parked(self, origin: Origin) -> HttpConnection | None:
        """Return a connection at rest. One still draining keeps its place for a while, then is dropped.

        Looks no further than it has to: of ten thousand connections at rest the latest is at hand.
        """
        parked, kept = self._parked.get(origin), list[_Parked]()
        if parked is None:
            return None
        found: HttpConnection | None = None
        while parked and found is None:
            place = parked.pop()  # the latest used first: it is the least likely to be closing
            if self._is_fit(place, origin):
                if place.connection.has_hung_up:  # a busy loop sees the end of a connection after it has come
                    self._closing.add(origin)
                    self._drop(place.connection)
                else:
                    found = place.connection
            elif self._is_worth_keeping(place, origin):
                kept.append(place)
            else:
                self._drop(place.connection)
        parked.extend(reversed(kept))
        while parked and not self._is_worth_keeping(parked[0], origin):  # the longest at rest lie in front
            self._drop(parked.popleft().connection)
        return found

    def _is_fit(self, place: _Parked, origin: Origin) -> bool:
        needs_rest = origin in self._closing
        rested_ns = self._clock() - place.since_ns
        return self._is_keepable(place, origin) and not (needs_rest and rested_ns < REST_S * 1e9)

    def _is_keepable(self, place: _Parked, origin: Origin) -> bool:
        is_fresh = self._clock() - place.since_ns <= self._max_idle_ns
        return is_fresh and place.connection.is_reusable and origin not in self._forgetful

    def _is_worth_keeping(self, place: _Parked, origin: Origin) -> bool:
        if place.connection.is_closed:
            return False
        if place.connection.is_drained:
            return self._is_keepable(place, origin)
        return self._clock() - place.since_ns <= DRAIN_GRACE_S * 1e9


def _describe(error: OSError) -> str:
    """A certificate is the user's to mend, so that its fault is said in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return str(error)


@functools.lru_cache(maxsize=64)
def split_url(url: str) -> tuple[Origin, str]:
    """Return where an address leads and the request target on it.

    Raises UsageError: not an http or https address with a host.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"not an address: {url!r} ({error})", place="url") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(
            f"not an http address: {url!r}", place="url", fix="write it as http://127.0.0.1:8000."
        )
    default_port = 443 if parts.scheme == "https" else 80
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, parts.hostname, port or default_port), target


def render_request(request: WireRequest, origin: Origin, target: str) -> bytes:
    """Return the bytes of a POST. Raises UsageError: a header holds a line break."""
    head = _render_head(origin, target, request.headers)
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(request.body), request.body)


@functools.lru_cache(maxsize=64)
def _render_head(origin: Origin, target: str, further: tuple[tuple[str, str], ...]) -> bytes:
    """Return what all requests of an arm begin with, up to the length of the body.

    `identity` because a compressed stream hides when a token arrived.
    """
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    headers = (
        ("Host", f"{host}:{origin.port}"),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"),
        *further,
    )
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if any("\r" in line or "\n" in line for line in lines):
        raise UsageError("a request header holds a line break", place="headers")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n"
