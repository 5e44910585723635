"""Plays one script to one client and notes when each content chunk was written."""

import asyncio
import itertools
from collections import deque
from typing import Any

import msgspec

from draftproof.clock import monotonic_ns
from draftproof.testing.http_peer import HttpPeer, render_json_response
from draftproof.testing.script_steps import render_steps
from draftproof.testing.scripts import Script, Step

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
