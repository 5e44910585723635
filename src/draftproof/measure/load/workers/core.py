"""A load worker apart from any process: it takes an order, and returns how its part of the turn went.

It knows no pipe and no file. Whatever carries words to it (a pipe's reader, an actor of a cluster) calls its
methods from the loop on which `run` is awaited.

Carries words to a `LoadWorker` and its replies back, whatever they travel by.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.core.records import BlockRecord
from draftproof.measure.client.wire import Transport
from draftproof.measure.load.driver import prepare_turn, run_performer
from draftproof.measure.load.period import Endpoint, Sink
from draftproof.measure.load.request_runner import Performer
from draftproof.measure.load.schedule import Part
from draftproof.measure.load.workers.messages import (
    Count,
    Done,
    EndpointOrder,
    Failed,
    Finish,
    Prepared,
    Reply,
    Setup,
    Standing,
    Start,
    Stop,
    TurnOrder,
    Word,
)
from draftproof.services.engines import adapter_for
from draftproof.workload.items import Item


class LoadWorker:
    """Runs its part of one turn after the other.

    Args:
        items: the whole workload.
        transport: carries its requests.
        sink: takes its records.
        clock: the clock that all workers of a host share.
    """

    def __init__(
        self, items: Sequence[Item], *, transport: Transport, sink: Sink, clock: Clock = monotonic_ns
    ) -> None:
        self._items: Mapping[str, Item] = {item.id: item for item in items}
        self._transport, self._sink, self._clock = transport, sink, clock
        self._performer: Performer | None = None
        self._stop = asyncio.Event()

    def prepare(self, order: TurnOrder) -> None:
        """Make the schedule of a turn, so that its start costs no time.

        Raises:
            PlanError: no adapter has the engine's name.
        """
        self._stop = asyncio.Event()
        self._performer = prepare_turn(
            order.turn,
            self._make_endpoint(order.endpoint),
            self._items,
            transport=self._transport,
            sink=self._sink,
            settings=order.settings,
            done=order.answered,
            answered=order.answered,
            clock=self._clock,
            part=Part(order.share),
        )

    async def run(self, start_ns: int) -> BlockRecord:
        """Run the prepared part from `start_ns` on; counts of the record are those of the part."""
        performer = self._prepared
        performer.part.start_ns = start_ns
        return await run_performer(performer, self._stop)

    def begin_counting(self, base_ns: int) -> None:
        """Take the time from which due times of counted requests count."""
        self._prepared.part.begin_counting(base_ns)

    def finish(self) -> None:
        """Every counted request of all workers has ended."""
        self._prepared.part.finish()

    def stop(self) -> None:
        """End the turn now."""
        self._stop.set()

    def standing(self) -> Standing:
        """Return how the part stands."""
        performer = self._prepared
        return Standing(performer.ended, performer.in_flight, performer.schedule.is_over, performer.ended_ns)

    async def wait_until_over(self) -> None:
        """Return when each counted request of this part has ended."""
        await self._prepared.counted_over.wait()

    @property
    def _prepared(self) -> Performer:
        if self._performer is None:
            raise RuntimeError("a worker is told of a turn before it has prepared one")
        return self._performer

    def _make_endpoint(self, order: EndpointOrder) -> Endpoint:
        return Endpoint(
            url=order.url,
            served_model=order.served_model,
            adapter=adapter_for(order.engine),
            headers=order.headers,
            request=order.request,
            accepted=order.accepted,
        )


REPORT_S = 0.05


class WorkerShell:
    """Does what words say and tells what came of it.

    Args:
        worker: runs the parts of the turns.
        reply: takes each reply.
        sync: makes the records of a part as safe as they have to be before `Done` is said.
    """

    def __init__(
        self, worker: LoadWorker, *, reply: Callable[[Reply], None], sync: Callable[[], None]
    ) -> None:
        self._worker, self._reply, self._sync = worker, reply, sync
        self._turn: asyncio.Task[None] | None = None

    def take(self, word: Word) -> None:
        """Do what a word says."""
        worker = self._worker
        match word:
            case TurnOrder():
                with self._told_errors():
                    worker.prepare(word)
                    self._reply(Prepared())
            case Start():
                self._turn = asyncio.create_task(self._run(word.start_ns))
            case Count():
                worker.begin_counting(word.base_ns)
            case Finish():
                worker.finish()
            case Stop():
                worker.stop()
            case Setup():
                raise RuntimeError("a worker is set up once")

    def end(self) -> None:
        """End the turn now, as `Stop` does."""
        self._worker.stop()

    async def close(self) -> None:
        """End the turn and wait until it has."""
        self.end()
        if self._turn is not None:
            await asyncio.wait({self._turn})

    async def _run(self, start_ns: int) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            with self._told_errors():
                block = await self._worker.run(start_ns)
                # Who reads that a turn is done must find its records after a power cut.
                self._sync()
                self._reply(Done(block))
        finally:
            reporting.cancel()

    async def _report(self) -> None:
        """Tell how the part stands from time to time, and at once when it is over."""
        over = asyncio.create_task(self._worker.wait_until_over())
        try:
            while True:
                await asyncio.wait({over}, timeout=REPORT_S)
                self._reply(self._worker.standing())
                if over.done():
                    await asyncio.sleep(REPORT_S)
        finally:
            over.cancel()

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except DraftproofError as error:
            kind = type(error).__name__
            self._reply(Failed(kind=kind, message=error.message, place=error.place, fix=error.fix))
        except Exception as error:  # noqa: BLE001 - whatever it is, the conductor must hear of it
            self._reply(Failed(kind=type(error).__name__, message=f"{type(error).__name__}: {error}"))
