"""The server's end of one HTTP/1.1 connection, as little of it as the scripted server needs."""

import asyncio
import contextlib
from typing import Any

import msgspec

_HEAD_END = b"\r\n\r\n"


class RequestHead(msgspec.Struct, frozen=True):
    """First line and headers of a request, header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]


class HttpPeer:
    """Reads requests, writes bytes, and notices when the client hangs up."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._early = b""

    async def read_request(self) -> tuple[RequestHead, bytes]:
        """Return the next request's head and body.

        Raises:
            asyncio.IncompleteReadError: the client hung up.
        """
        raw = self._early + await self._reader.readuntil(_HEAD_END)
        self._early = b""
        head = parse_head(raw)
        return head, await self._reader.readexactly(int(head.headers.get("content-length", "0")))

    async def wait_for_hang_up(self) -> None:
        """Return at end of file or reset. A byte of the next request, come early, is kept for it."""
        while True:
            try:
                early = await self._reader.read(1)
            except ConnectionError:
                return
            if not early:
                return
            self._early += early
            await asyncio.Event().wait()

    async def write(self, data: bytes) -> None:
        """Write and wait while the socket is full.

        Raises:
            ConnectionError: the client hung up.
        """
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close after what was written has been sent."""
        self._writer.close()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Return once the socket is released.

        Shielded: a waiter that is cancelled would cancel the stream's only sign of it for all later waiters.
        """
        with contextlib.suppress(ConnectionError):
            await asyncio.shield(self._writer.wait_closed())


def parse_head(raw: bytes) -> RequestHead:
    """Return the head in the bytes up to its empty line."""
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    return RequestHead(method, path, {name.strip().lower(): value.strip() for name, _, value in pairs})


def decode_payload(body: bytes) -> dict[str, Any] | None:
    """Return a JSON object, None for any other body."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def render_text_response(text: str) -> bytes:
    """Return a whole response of plain text."""
    content = text.encode()
    head = f"HTTP/1.1 200 Scripted\r\nContent-Type: text/plain\r\nContent-Length: {len(content)}"
    return head.encode() + _HEAD_END + content


def render_json_response(status: int, body: dict[str, Any]) -> bytes:
    """Return a whole JSON response."""
    content = msgspec.json.encode(body)
    head = f"HTTP/1.1 {status} Scripted\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + _HEAD_END + content
