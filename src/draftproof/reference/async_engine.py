"""The engine behind an event loop: one thread steps, coroutines read.

A request is handed over under a lock, its outputs come back through the loop that asked. A step that raises
ends the requests it carried; the others, and the thread, go on.
"""

import asyncio
import contextlib
import logging
import threading
from collections import deque
from typing import NamedTuple, Self

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.counters import EngineStats
from draftproof.reference.engine import Engine, Outputs
from draftproof.reference.types import GenerationRequest, RoundOutput

_logger = logging.getLogger(__name__)


class GenerationStream:
    """The outputs of one request, as an asynchronous iterator; `aclose` gives the slot back at once."""

    def __init__(self, engine: "AsyncEngine", request_id: str) -> None:
        self._engine = engine
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[RoundOutput] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RoundOutput:
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._outputs.get()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        self._ended = output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        """Cancel the request unless it has ended; calling it again does nothing."""
        if not self._ended:
            self._ended = True
            self._engine.cancel(self.request_id)

    def put(self, output: RoundOutput) -> None:
        """Take an output; called in the stream's own loop."""
        self._outputs.put_nowait(output)


class AsyncEngine:
    """Runs an engine in a thread of its own.

    `engine`: used by that thread alone from `start` to `stop`. `clock`: monotonic ns, the engine's.
    """

    def __init__(self, engine: Engine, *, clock: Clock = monotonic_ns) -> None:
        self._engine = engine
        self._clock = clock
        self._changed = threading.Condition()
        self._inbox: deque[_Arrival | _Cancellation] = deque()  # in the order things happened
        self._streams: dict[str, GenerationStream] = {}
        self._stopping = False
        self._stats = engine.stats()
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)

    @property
    def engine(self) -> Engine:
        """The engine, for its model, tokenizer and configuration; its requests belong to the thread."""
        return self._engine

    def start(self) -> None:
        """Start stepping."""
        self._thread.start()

    def stop(self) -> None:
        """End every request as cancelled and join the thread, after at most one step."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    async def prepare(self, request: GenerationRequest) -> None:
        """Compile a request's schema beside the event loop, so that `generate` finds it done.

        Raises UsageError: the request can never run here.
        """
        if request.sampling.json_schema is not None:
            await asyncio.to_thread(self._engine.check, request)

    def generate(self, request: GenerationRequest) -> GenerationStream:
        """Hand a request over and return its outputs; call from a coroutine.

        Raises UsageError: the request can never run here, or its id is in use; QueueFullError: too many run
        and wait already; EngineError: the engine is stopping.
        """
        self._engine.check(request)
        with self._changed:
            if self._stopping:
                raise EngineError("the engine is stopping", fix="send the request to another one")
            if request.request_id in self._streams:
                raise UsageError(
                    f"request id {request.request_id!r} is in use", fix="use an id once at a time"
                )
            self._engine.check_room(len(self._streams))
            stream = GenerationStream(self, request.request_id)
            self._streams[request.request_id] = stream
            self._inbox.append(_Arrival(request, self._clock(), stream))
            self._changed.notify()
        return stream

    def cancel(self, request_id: str) -> None:
        """Drop a request before the next step; unknown ids are fine."""
        with self._changed:
            if self._streams.pop(request_id, None) is not None:
                self._inbox.append(_Cancellation(request_id))
                self._changed.notify()

    def stats(self) -> EngineStats:
        """Return the snapshot of the last step.

        A request whose prompt is in the step that runs has its slot already; one not handed over yet waits.
        """
        with self._changed:
            arriving = sum(isinstance(change, _Arrival) for change in self._inbox)
            running, waiting = self._engine.occupancy
            # Who left in this step stays in the snapshot, with its cache, until the step is over.
            return msgspec.structs.replace(
                self._stats,
                running=max(running, self._stats.running),
                waiting=min(waiting, self._stats.waiting) + arriving,
            )

    def _run(self) -> None:
        try:
            while self._take_changes():
                self._deliver(self._step())
                self._stats = self._engine.stats()
        finally:  # whatever ends the thread, no reader waits for it
            self._end_all()

    def _take_changes(self) -> bool:
        """Wait for work, apply arrivals and cancellations in order; False once stopping."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._inbox or self._engine.has_work)
            if self._stopping:
                return False
            while self._inbox:
                self._apply(self._inbox.popleft())
            self._stats = self._engine.stats()
        return True

    def _apply(self, change: "_Arrival | _Cancellation") -> None:
        if isinstance(change, _Cancellation):
            self._engine.cancel(change.request_id)
            return
        try:
            self._engine.add_request(change.request, arrival_ns=change.arrival_ns)
        except Exception as fault:  # whatever one request raises, the others must still be served
            _logger.warning("request %s raised %r", change.request.request_id, fault, exc_info=True)
            self._refuse(change.stream, f"{type(fault).__name__}: {fault}")

    def _refuse(self, stream: GenerationStream, error: str) -> None:
        """End a stream that never began; its id may belong to a newcomer by now."""
        if self._streams.get(stream.request_id) is stream:
            del self._streams[stream.request_id]
        _hand_over(stream, msgspec.structs.replace(_CANCELLED, finish_reason="error", error=error))

    def _step(self) -> Outputs:
        try:
            return self._engine.step()
        except Exception as fault:  # whatever a step raises, later requests must still be served
            _logger.warning("a step raised %r; its requests end with an error", fault, exc_info=True)
            return self._engine.fail_running(f"{type(fault).__name__}: {fault}")

    def _deliver(self, outputs: Outputs) -> None:
        with self._changed:
            # A cancelled id may be in use again already: this step's outputs are not the newcomer's.
            stale = {change.request_id for change in self._inbox if isinstance(change, _Cancellation)}
            for request_id, output in outputs:
                stream = self._streams.get(request_id)
                if stream is None or request_id in stale:
                    continue
                if output.finish_reason is not None:
                    del self._streams[request_id]
                _hand_over(stream, output)

    def _end_all(self) -> None:
        with self._changed:
            self._stopping = True
            for request_id, stream in self._streams.items():
                self._engine.cancel(request_id)
                _hand_over(stream, _CANCELLED)
            self._streams.clear()
            self._inbox.clear()
            self._stats = self._engine.stats()


class _Arrival(NamedTuple):
    request: GenerationRequest
    arrival_ns: int
    stream: GenerationStream


class _Cancellation(NamedTuple):
    request_id: str


_CANCELLED = RoundOutput(
    token_ids=(), text="", finish_reason="cancelled", round=None, queue_ns=0, prefill_ns=0, fallbacks=0
)


def _hand_over(stream: GenerationStream, output: RoundOutput) -> None:
    """Put an output into a stream from the engine's thread; a reader whose loop is closed is gone."""
    with contextlib.suppress(RuntimeError):
        stream.loop.call_soon_threadsafe(stream.put, output)
