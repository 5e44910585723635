"""Plays one script to one client and notes when each content chunk was written.

The server's end of one HTTP/1.1 connection, as little of it as the scripted server needs.
"""

import asyncio
import contextlib
import itertools
from collections import deque
from typing import Any

import msgspec
from tests.builders.scripts import Script, Step, render_steps

from draftproof.core.clock import monotonic_ns

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


_BODY_END = b"0\r\n\r\n"
_SEGMENT_PAUSE_S = 0.0005  # long enough for the peer to read one piece before the next is written


class Write(msgspec.Struct, frozen=True):
    """A content chunk as it was written: just before its last byte went to the socket, and tokens so far."""

    at_ns: int
    cumulative_tokens: int


class Served:
    """What happened to one request, as the server saw it; filled in while the request runs.

    Attributes:
        payload: the request's JSON body, None for a body that is not a JSON object.
        headers: the request's headers, names in lower case.
        received_ns: when the whole request was there.
        writes: the content chunks, in order.
        finished: the script was played to its end.
        disconnected: the client went away before that.
    """

    def __init__(self, payload: dict[str, Any] | None, headers: dict[str, str], received_ns: int) -> None:
        self.payload, self.headers, self.received_ns = payload, headers, received_ns
        self.writes: list[Write] = []
        self.finished = False
        self.disconnected = False


async def play(script: Script, served: Served, peer: HttpPeer) -> bool:
    """Play one answer; return whether the connection may carry another."""
    if script.never_answer:
        await asyncio.Event().wait()
    await asyncio.sleep(script.headers_delay_s)
    reusable = await _play_answer(script, served, peer)
    served.finished = True
    return reusable and script.keep_alive


async def _play_answer(script: Script, served: Served, peer: HttpPeer) -> bool:
    if script.raw_response is not None:
        await peer.write(script.raw_response)
        return False
    if script.status != 200:
        await peer.write(render_json_response(script.status, {"error": {"message": script.refusal}}))
        return True
    await peer.write(_render_head(script))
    await _play_stream(script, served, peer)
    return script.cut_before is None


def _render_head(script: Script) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {script.content_type}", "Transfer-Encoding: chunked"]
    if not script.keep_alive:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode()


async def _play_stream(script: Script, served: Served, peer: HttpPeer) -> None:
    """Write each batch of events when the next begins, and the last one with the end of the body."""
    batch: list[Step] = []
    for step in render_steps(script):
        if step.wait_s > 0 or script.endless or len(batch) >= script.coalesce:
            await _write_steps(batch, script, served, peer)
            batch = []
            await asyncio.sleep(step.wait_s)
        batch.append(step)
    ending = b"" if script.cut_before is not None else _BODY_END
    if script.linger_s > 0:
        await _write_steps(batch, script, served, peer)
        await asyncio.sleep(script.linger_s)
        await peer.write(ending)
    else:
        await _write_steps(batch, script, served, peer, ending)


async def _write_steps(
    steps: list[Step], script: Script, served: Served, peer: HttpPeer, ending: bytes = b""
) -> None:
    """Write events in one HTTP chunk, whole or in pieces, and note each event before its last piece."""
    body = b"".join(step.event for step in steps)
    prefix = f"{len(body):x}\r\n".encode()
    framed = (prefix + body + b"\r\n" if body else b"") + ending
    ends = itertools.accumulate((len(step.event) for step in steps), initial=len(prefix))
    marks = deque(zip(itertools.islice(ends, 1, None), steps, strict=True))
    size = script.split_bytes or len(framed) or 1
    for start in range(0, len(framed), size):
        if start > 0:
            await asyncio.sleep(_SEGMENT_PAUSE_S)
        at_ns = monotonic_ns()
        while marks and marks[0][0] <= start + size:
            _, step = marks.popleft()
            if step.tokens is not None:
                served.writes.append(Write(at_ns, step.tokens))
        await peer.write(framed[start : start + size])
