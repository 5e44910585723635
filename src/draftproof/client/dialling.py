"""Making connections: one name lookup an origin, its addresses in turn, TLS sessions used again.

A lookup is shared by all who wait for it and kept until none of its addresses can be reached, so that the
time of one request in a run holds it and not that of each. The address that worked last is tried first.
"""

import asyncio
import socket
import ssl
from typing import Any, NamedTuple

import msgspec

from draftproof.client.connection import HttpConnection
from draftproof.clock import Clock

# How long one of several addresses may leave us waiting before the next is tried: a machine that has IPv6
# and no way out by it drops packets in silence.
PATIENCE_S = 2.0


class Origin(NamedTuple):
    """Where a connection leads."""

    scheme: str
    host: str
    port: int


class Lookup(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of an origin in the order in which they are tried; `took_ns`: the time to find them."""

    addresses: tuple[str, ...]
    took_ns: int


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

    Args:
        clock: source of every time.
        tls: context for https addresses; None is the system's default with verification.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(
        self, clock: Clock, tls: ssl.SSLContext | None = None, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._clock, self._tls, self._patience_s = clock, tls, patience_s
        self._pending: dict[Origin, asyncio.Task[Lookup]] = {}
        self.lookups: dict[Origin, Lookup] = {}

    async def dial(self, origin: Origin) -> HttpConnection:
        """Return a new connection.

        Raises:
            OSError: no address of the origin can be reached, or it has none.
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
            if place:
                self._prefer(origin, address)
            return connection
        # The name may lead elsewhere by now.
        self.lookups.pop(origin, None)
        raise fault or OSError("the name has no address")

    async def _connect(self, origin: Origin, address: str, patience_s: float | None) -> HttpConnection:
        tls: dict[str, Any] = {}
        if origin.scheme == "https":
            tls = {"ssl": self._get_tls(), "server_hostname": origin.host}
        async with asyncio.timeout(patience_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: HttpConnection(self._clock), address, origin.port, **tls
            )
        return connection

    def _get_tls(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
        return self._tls

    def _prefer(self, origin: Origin, address: str) -> None:
        known = self.lookups.get(origin)
        if known is not None:
            others = tuple(one for one in known.addresses if one != address)
            self.lookups[origin] = msgspec.structs.replace(known, addresses=(address, *others))

    async def _find_addresses(self, origin: Origin) -> tuple[str, ...]:
        if (known := self.lookups.get(origin)) is not None:
            return known.addresses
        if origin not in self._pending:
            self._pending[origin] = asyncio.create_task(self._look_up(origin))
            self._pending[origin].add_done_callback(lambda _: self._pending.pop(origin, None))
        # Whoever loses patience leaves the others their answer.
        lookup = await asyncio.shield(self._pending[origin])
        return lookup.addresses

    async def _look_up(self, origin: Origin) -> Lookup:
        began_ns = self._clock()
        found = await asyncio.get_running_loop().getaddrinfo(
            origin.host, origin.port, type=socket.SOCK_STREAM
        )
        addresses = tuple(dict.fromkeys(str(one[4][0]) for one in found))
        lookup = Lookup(addresses=addresses, took_ns=self._clock() - began_ns)
        self.lookups[origin] = lookup
        return lookup

    async def close(self) -> None:
        """End lookups that nobody waits for any more."""
        for task in tuple(self._pending.values()):
            task.cancel()
        if self._pending:
            await asyncio.wait(set(self._pending.values()))
