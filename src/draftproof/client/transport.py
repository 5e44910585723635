"""Connections to services: opened when needed, kept alive between requests, dropped when cancelled.

Owns the pool and the request head. A connection that sat idle longer than `max_idle_s` is not used again:
servers close idle connections, and a request sent into a closing one would be booked as a failure of the arm.
Nothing is ever sent twice: a second attempt could turn a failure of the service into a pass. A server that
closes connections after an answer that said nothing of it spoils one request; from then on each request to it
has a connection of its own.
"""

import asyncio
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from draftproof.client.connection import HttpConnection
from draftproof.client.wire import Ending, Listener, WireRequest
from draftproof.clock import Clock, monotonic_ns
from draftproof.errors import UsageError

MAX_IDLE_S = 2.0
DRAIN_GRACE_S = 1.0


class Origin(NamedTuple):
    """Where a connection leads."""

    scheme: str
    host: str
    port: int


class _Parked(NamedTuple):
    connection: HttpConnection
    since_ns: int


class HttpTransport:
    """HTTP/1.1 over asyncio; one per event loop.

    Args:
        clock: source of every time it reports.
        max_idle_s: longest rest of a connection that is used again.
        tls: context for https addresses; None is the system's default with verification.
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
        self._tls = tls
        self._parked: dict[Origin, list[_Parked]] = {}
        self._open: set[HttpConnection] = set()
        self._forgetful: set[Origin] = set()

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        """Send one request and return how it ended.

        The time to connect lies between the caller's schedule and `sent_ns`, never after `sent_ns`.

        Raises:
            UsageError: the address or a header cannot be sent.
        """
        origin, target = split_url(request.url)
        head_and_body = render_request(request, origin, target)
        if (parked := self._take_parked(origin)) is not None:
            ending = await parked.exchange(head_and_body, listener)
            if ending.kind == "broken" and parked.is_unheard:
                self._forgetful.add(origin)
            self._park(origin, parked)
            return ending
        began_ns = self._clock()
        try:
            connection = await self._connect(origin)
        except OSError as error:
            at_ns = self._clock()
            detail = f"cannot connect to {origin.host}:{origin.port}: {_describe(error)}"
            return Ending(kind="unreachable", at_ns=at_ns, detail=detail, connect_ns=at_ns - began_ns)
        connect_ns = self._clock() - began_ns
        ending = await connection.exchange(head_and_body, listener)
        self._park(origin, connection)
        return msgspec.structs.replace(ending, connect_ns=connect_ns)

    async def close(self) -> None:
        """Drop every connection and wait until the sockets are released."""
        connections = list(self._open)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.wait_closed() for connection in connections))
        self._open.clear()
        self._parked.clear()

    async def _connect(self, origin: Origin) -> HttpConnection:
        tls = self._get_tls() if origin.scheme == "https" else None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: HttpConnection(self._clock), origin.host, origin.port, ssl=tls
        )
        self._open = {known for known in self._open if not known.is_released} | {connection}
        return connection

    def _get_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _park(self, origin: Origin, connection: HttpConnection) -> None:
        self._parked.setdefault(origin, []).append(_Parked(connection, self._clock()))

    def _take_parked(self, origin: Origin) -> HttpConnection | None:
        """Return a connection at rest. One still draining keeps its place for a while, then is dropped."""
        parked, self._parked[origin] = self._parked.get(origin, []), []
        found: HttpConnection | None = None
        for place in reversed(parked):  # the latest used first: it is the least likely to be closing
            if found is None and self._is_fit(place, origin):
                found = place.connection
            elif self._is_worth_keeping(place, origin):
                self._parked[origin].insert(0, place)
            else:
                place.connection.abort()
        return found

    def _is_fit(self, place: _Parked, origin: Origin) -> bool:
        is_fresh = self._clock() - place.since_ns <= self._max_idle_ns
        return is_fresh and place.connection.is_reusable and origin not in self._forgetful

    def _is_worth_keeping(self, place: _Parked, origin: Origin) -> bool:
        if place.connection.is_closed:
            return False
        if place.connection.is_drained:
            return self._is_fit(place, origin)
        return self._clock() - place.since_ns <= DRAIN_GRACE_S * 1e9


def _describe(error: OSError) -> str:
    """A certificate is the user's to mend, so that its fault is said in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return str(error)


def split_url(url: str) -> tuple[Origin, str]:
    """Return where an address leads and the request target on it.

    Raises:
        UsageError: not an http or https address with a host.
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
    """Return the bytes of a POST. `identity` because a compressed stream hides when a token arrived.

    Raises:
        UsageError: a header holds a line break.
    """
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    headers = (
        ("Host", f"{host}:{origin.port}"),
        ("Content-Type", "application/json"),
        ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"),
        ("Content-Length", str(len(request.body))),
        *request.headers,
    )
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if any("\r" in line or "\n" in line for line in lines):
        raise UsageError("a request header holds a line break", place="headers")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + request.body
