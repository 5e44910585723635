"""A load worker apart from any process: it takes words, runs its part of each period, and replies.

It knows no pipe and no file. Whatever carries words to it (a pipe's reader, an actor of a cluster) calls
`take` on the loop that runs its periods.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.measure.client.wire import Transport
from draftproof.measure.load.loops import run
from draftproof.measure.load.period import Sink
from draftproof.measure.load.request_runner import RequestRunner
from draftproof.measure.load.schedule import Part
from draftproof.measure.load.workers.messages import (
    Count,
    Done,
    Failed,
    Finish,
    PeriodOrder,
    Prepared,
    Reply,
    Standing,
    Start,
    Stop,
    Word,
)
from draftproof.workload.items import Item

REPORT_S = 0.05


class LoadWorker:
    """Runs its part of one period after the other, as it is told.

    `sync`: makes the records of a part as safe as they have to be before `Done` is said. `clock`: the clock
    that all workers of a host share.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        transport: Transport,
        sink: Sink,
        reply: Callable[[Reply], None],
        sync: Callable[[], None] = lambda: None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._items = {item.id: item for item in items}
        self._transport, self._sink, self._clock = transport, sink, clock
        self._reply, self._sync = reply, sync
        self._runner: RequestRunner
        self._stop = asyncio.Event()
        self._period: asyncio.Task[None] | None = None

    def take(self, word: Word) -> None:
        """Do what a word says; the first is a period's order."""
        match word:
            case PeriodOrder():
                with self._told_errors():
                    self._prepare(word)
                    self._reply(Prepared())
            case Start():
                self._period = asyncio.create_task(self._run(word.start_ns))
            case Count():
                self._runner.part.begin_counting(word.base_ns)
            case Finish():
                self._runner.part.period_over.set()
            case Stop():
                self.end()

    def end(self) -> None:
        """End the period now, as `Stop` does."""
        self._stop.set()

    def standing(self) -> Standing:
        """Return how the part stands."""
        runner = self._runner
        return Standing(runner.ended, runner.in_flight, runner.schedule.is_over, runner.ended_ns)

    async def close(self) -> None:
        """End the period and wait until it has."""
        self.end()
        if self._period is not None:
            await asyncio.wait({self._period})

    def _prepare(self, order: PeriodOrder) -> None:
        """Make the schedule of a period, so that its start costs no time."""
        self._stop = asyncio.Event()
        self._runner = RequestRunner(
            order.period,
            order.endpoint,
            self._items,
            transport=self._transport,
            sink=self._sink,
            settings=order.settings,
            done=order.answered,
            answered=order.answered,
            clock=self._clock,
            part=Part(order.share),
        )

    async def _run(self, start_ns: int) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            with self._told_errors():
                self._runner.part.start_ns = start_ns
                block = await run(self._runner, self._stop)
                # Who reads that a period is done must find its records after a power cut.
                self._sync()
                self._reply(Done(block))
        finally:
            reporting.cancel()

    async def _report(self) -> None:
        """Tell how the part stands from time to time, and at once when its counted requests are over."""
        over = asyncio.create_task(self._runner.counted_over.wait())
        try:
            while True:
                await asyncio.wait({over}, timeout=REPORT_S)
                self._reply(self.standing())
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
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator must hear of it
            self._reply(Failed(kind=type(error).__name__, message=f"{type(error).__name__}: {error}"))
