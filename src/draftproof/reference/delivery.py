"""Carries one request's rounds to one client, and stops the engine's work when the client goes away.

Owns the wire form of a generation's life: refusal, server-sent events, one JSON body, or an error.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from draftproof.clock import Clock
from draftproof.errors import DraftproofError, EngineError, UsageError
from draftproof.reference.answer import Answer
from draftproof.reference.exposition import RequestCounters
from draftproof.reference.scheduler import QueueFullError
from draftproof.reference.types import RoundOutput
from draftproof.reference.wire import error_body

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

RETRY_AFTER_S = 1


class GenerationFailedError(EngineError):
    """The engine gave up on a request."""


class RoundStream(Protocol):
    """The outputs of one admitted request; closing it cancels the request and frees its slot."""

    def __aiter__(self) -> AsyncIterator[RoundOutput]:
        """Return the iterator over the outputs."""
        ...

    def aclose(self) -> Coroutine[Any, Any, None]:
        """Cancel the request unless it has ended."""
        ...


class Delivery:
    """An ASGI application for one request.

    Args:
        answer: collects what arrives.
        admit: hands the request to the engine; called when the delivery starts, so that no slot is taken
            for a response that is never sent. Raises QueueFullError or UsageError.
        counters: told about every round and the end.
        clock: monotonic nanoseconds.
    """

    def __init__(
        self, answer: Answer, admit: Callable[[], RoundStream], counters: RequestCounters, clock: Clock
    ) -> None:
        self._answer, self._admit, self._counters, self._clock = answer, admit, counters, clock

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Deliver until the end or until the client disconnects, whichever comes first."""
        try:
            rounds = self._admit()
        except QueueFullError as fault:
            self._counters.rejected += 1
            await send_json(send, 429, error_body(str(fault), 429), retry=True)
        except DraftproofError as fault:
            status = 400 if isinstance(fault, UsageError) else 503
            await send_json(send, status, error_body(str(fault), status), retry=status == 503)
        else:
            await run_until_disconnect(receive, self._deliver(rounds, send))

    async def _deliver(self, rounds: RoundStream, send: Send) -> None:
        reason = "cancelled"
        try:
            async with aclosing(rounds):
                await (
                    self._stream(rounds, send) if self._answer.wanted.stream else self._collect(rounds, send)
                )
            reason = self._answer.finish_reason or "error"
        except GenerationFailedError:
            reason = "error"
        finally:
            self._counters.observe_end(self._answer, reason)

    async def _counted(self, rounds: RoundStream) -> AsyncIterator[RoundOutput]:
        """Yield the engine's outputs after they are counted; a failure becomes an exception."""
        async for output in rounds:
            self._answer.add(output, self._clock())
            self._counters.observe_round(output)
            if output.finish_reason in {"error", "cancelled"}:
                raise GenerationFailedError(
                    output.error or "the engine stopped before the answer was complete."
                )
            yield output

    async def _collect(self, rounds: RoundStream, send: Send) -> None:
        """Send one JSON body when generation has ended."""
        try:
            async for _ in self._counted(rounds):
                pass
        except GenerationFailedError as fault:
            await send_json(send, 500, error_body(str(fault), 500))
            raise
        await send_json(send, 200, self._answer.body())

    async def _stream(self, rounds: RoundStream, send: Send) -> None:
        """Send the role chunk at once, then one event a round; a failure is an event and no end marker."""
        await self._open_stream(send)
        try:
            async for output in self._counted(rounds):
                await _send_event(send, self._answer.round_chunk(output))
        except GenerationFailedError as fault:
            await _send_event(send, error_body(str(fault), 500))
            await _send_body(send, b"", more=False)
            raise
        if self._answer.wanted.include_usage:
            await _send_event(send, self._answer.usage_chunk())
        await _send_body(send, b"data: [DONE]\n\n", more=False)

    async def _open_stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._answer.chat:
            await _send_event(send, self._answer.opening_chunk())


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, cancelled as soon as the client has gone. What `work` raises is raised here."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait({working, watching})
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, status: int, body: dict[str, Any], *, retry: bool = False) -> None:
    """Send a whole JSON response; `retry` adds Retry-After."""
    headers = [(b"content-type", b"application/json")]
    if retry:
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    content = msgspec.json.encode(body)
    headers.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _send_body(send, content, more=False)


async def _send_event(send: Send, payload: dict[str, Any]) -> None:
    await _send_body(send, b"data: " + msgspec.json.encode(payload) + b"\n\n", more=True)


async def _send_body(send: Send, content: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": content, "more_body": more})
