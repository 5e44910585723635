"""The seam between a request and the network: what is sent, what is heard, how it ended.

A transport turns a `WireRequest` into calls on a `Listener` and one `Ending`. The real one speaks HTTP/1.1
(`transport.py`); the one for tests plays a script (tests/builders/transport.py).
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

import msgspec

EndKind = Literal["complete", "broken", "unreachable", "not_http", "timeout", "cancelled"]
# Headers of a response that explain why it is not the stream that was asked for.
TOLD_HEADERS = ("content-encoding", "location", "retry-after")
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST: absolute URL, extra headers, body."""

    url: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an exchange ended and when.

    `complete`: the response ended as its framing says, or the listener had all it wanted. `broken`: the
    connection was lost before. `unreachable`: there never was one. `not_http`: the bytes are not an HTTP
    response. `connect_ns`: time that a new connection took before the request was sent, None on a kept one.
    `is_stamped`: whether the kernel told when the answer arrived, and not the clock as it was read.
    """

    kind: EndKind
    at_ns: int
    detail: str | None = None
    connect_ns: int | None = None
    is_stamped: bool = True


class Listener(Protocol):
    """Hears one response as it arrives. Times are those of the transport's clock."""

    @property
    def finished(self) -> bool:
        """True once nothing more is wanted; the transport then ends the exchange at once."""
        ...

    @property
    def may_wait(self) -> bool:
        """False where what was read must be told at once, and not in batches, which cost less."""
        ...

    def on_connecting(self, at_ns: int) -> None:
        """A new connection is being made for the request."""
        ...

    def on_connected(self, at_ns: int) -> None:
        """The new connection stands, its handshake included."""
        ...

    def on_sent(self, at_ns: int) -> None:
        """The last byte of the request was handed to the socket; of a request made anew the last word."""
        ...

    def on_headers(
        self, status: int, content_type: str, at_ns: int, further: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """The final response's headers are complete; `content_type` is lower case, "" if absent.

        `further` holds those of `TOLD_HEADERS` that are present, names in lower case.
        """
        ...

    def on_body(self, data: bytes, at_ns: int) -> None:
        """Bytes of the body, as one read of the socket brought them."""
        ...

    def on_frames(self, frames: Sequence[bytes], times_ns: Sequence[int]) -> None:
        """Stands for calls of `on_body` with a whole event of one line each, of which these are the data."""
        ...


class Transport(Protocol):
    """Carries one request at a time per call; calls may overlap."""

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        """Send, tell the listener what arrives, return how it ended. Being cancelled drops the connection."""
        ...

    async def close(self) -> None:
        """Drop every connection."""
        ...
