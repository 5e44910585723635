"""Carries one request's rounds to one client, and stops the engine's work when the client goes away.

Owns the wire form of a generation's life: refusal, server-sent events, one JSON body, or an error. A request
of several choices is admitted whole or not at all, and the failure of one ends all.

Several streams of outputs as one, each output in the order it becomes known.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    MutableMapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from draftproof.core.clock import Clock
from draftproof.core.errors import DraftproofError, EngineError, UsageError
from draftproof.reference.http.answer import Answers
from draftproof.reference.http.exposition import RequestCounters
from draftproof.reference.http.wire_fields import error_body
from draftproof.reference.scheduler import QueueFullError
from draftproof.reference.types import RoundOutput

if TYPE_CHECKING:
    from draftproof.reference.async_engine import GenerationStream  # torch takes seconds to import

T = TypeVar("T")


async def interleave(streams: Sequence[AsyncIterable[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield (index of the stream, item) until every stream has ended; no stream is read ahead of its turn.

    Closing it stops reading and leaves the streams open, for whoever opened them to close. What a stream
    raises is raised here.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    iterators = [stream.__aiter__() for stream in streams]
    reading = {asyncio.create_task(_next(iterator)): at for at, iterator in enumerate(iterators)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=reading.__getitem__):
                at = reading.pop(task)
                for item in task.result():
                    yield at, item
                    reading[asyncio.create_task(_next(iterators[at]))] = at
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


async def _next(iterator: AsyncIterator[T]) -> tuple[T, ...]:
    """Return the next item, nothing at the end."""
    try:
        return (await anext(iterator),)
    except StopAsyncIteration:
        return ()


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

Rounds = AsyncIterator[tuple[int, RoundOutput]]  # (choice, output)

RETRY_AFTER_S = 1


class GenerationFailedError(EngineError):
    """The engine gave up on a request."""


class Responder:
    """An ASGI application for one request.

    `admits`: hand the sequences of the request to the engine, one a choice; called when the delivery starts,
    so that no slot is taken for a response that is never sent. Each raises QueueFullError or UsageError.
    `counters`: get every round and the end. `clock`: monotonic nanoseconds. `prepare`: does, before
    any sequence is handed over, what would hold up others; raises as `admits`.
    """

    def __init__(
        self,
        answers: Answers,
        admits: "Sequence[Callable[[], GenerationStream]]",
        counters: RequestCounters,
        clock: Clock,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        self._answers, self._admits, self._counters, self._clock = answers, admits, counters, clock
        self._prepare = prepare

    async def __call__(self, _scope: Message, receive: Receive, send: Send) -> None:
        """Deliver until the end or until the client disconnects, whichever comes first."""
        async with AsyncExitStack() as admitted:
            try:
                await self._prepare()
                streams = [await admitted.enter_async_context(aclosing(admit())) for admit in self._admits]
            except DraftproofError as fault:
                # No choice is left behind in the engine, and none waits for the client to read the refusal.
                await admitted.aclose()
                await self._refuse(fault, send)
            else:
                await run_until_disconnect(receive, self._deliver(streams, admitted, send))

    async def _refuse(self, fault: DraftproofError, send: Send) -> None:
        status = 429 if isinstance(fault, QueueFullError) else 400 if isinstance(fault, UsageError) else 503
        self._counters.rejected += status == 429
        param = self._answers.wanted.field_of(fault.place) if status == 400 else None
        await send_json(send, status, error_body(str(fault), status, param=param), retry=status != 400)

    async def _deliver(
        self, streams: "Sequence[GenerationStream]", admitted: AsyncExitStack, send: Send
    ) -> None:
        reason: str | None = "cancelled"
        deliver = self._stream if self._answers.wanted.stream else self._collect
        try:
            async with aclosing(interleave(streams)) as rounds:
                await deliver(rounds, send)
            reason = None
        except GenerationFailedError as fault:
            reason = "error"
            await admitted.aclose()  # the other choices stop before the client reads why
            await self._send_failure(fault, send)
        finally:
            for answer in self._answers.each:
                self._counters.observe_end(answer, reason or answer.finish_reason or "error")

    async def _counted(self, rounds: Rounds) -> Rounds:
        """Yield the engine's outputs after they are counted; a failure becomes an exception."""
        async for index, output in rounds:
            self._answers.add(index, output, self._clock())
            self._counters.observe_round(output)
            if output.finish_reason in {"error", "cancelled"}:
                raise GenerationFailedError(
                    output.error or "the engine stopped before the answer was complete."
                )
            yield index, output

    async def _collect(self, rounds: Rounds, send: Send) -> None:
        """Send one JSON body when generation has ended."""
        async for _ in self._counted(rounds):
            pass
        await send_json(send, 200, self._answers.body())

    async def _stream(self, rounds: Rounds, send: Send) -> None:
        """Send the role chunks at once, then one event a round, usage if asked for, and the end marker."""
        await self._open_stream(send)
        async for index, output in self._counted(rounds):
            await _send_event(send, self._answers.round_chunk(index, output))
        if self._answers.wanted.include_usage:
            await _send_event(send, self._answers.usage_chunk())
        await _send_body(send, b"data: [DONE]\n\n", more=False)

    async def _send_failure(self, fault: GenerationFailedError, send: Send) -> None:
        """Send an error body, or in a stream an error event and no end marker."""
        if not self._answers.wanted.stream:
            await send_json(send, 500, error_body(str(fault), 500))
            return
        await _send_event(send, error_body(str(fault), 500))
        await _send_body(send, b"", more=False)

    async def _open_stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._answers.chat:
            for chunk in self._answers.opening_chunks():
                await _send_event(send, chunk)


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
