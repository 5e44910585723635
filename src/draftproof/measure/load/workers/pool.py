"""The load workers of a run: started at the first period, given one period after the other, ended together.

One period over several workers has one start, one base time and one end. The coordinator sends no request and
sees no answer. It says when all begin, decides when the load stands (so that due times of all workers count
from one time), and ends the period when every worker's counted requests are over; until then each keeps its
part of the load up.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core import errors
from draftproof.core.clock import NS_PER_S, Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.core.records import BlockRecord, RampUpEnd
from draftproof.measure.load.loops import RampUp
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.schedule import Share, count_parts
from draftproof.measure.load.workers.messages import (
    Count,
    Done,
    Failed,
    Finish,
    PeriodOrder,
    Prepared,
    Reply,
    Setup,
    ShardProgress,
    Start,
    Stop,
    Worker,
    WorkerDiedError,
)
from draftproof.measure.load.workers.process import ProcessWorker
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item

# Of the records of a period's parts: times in which the client was late are those of the worst worker, work
# is the sum of all.
_WORST = (
    "event_loop_lag_max_ns", "lag_p99_ns", "send_lag_p99_ns", "send_lag_max_ns", "end_lag_max_ns",
    "gc_pause_max_ns", "lead_asks_counted",
)  # fmt: skip
_SUMMED = (
    "client_cpu_s", "gc_pause_total_ns", "connections", "unreached", "broken", "unstamped", "held_back",
    "in_flight_max",
)  # fmt: skip


def merge_parts(
    period: Period,
    parts: Mapping[str, BlockRecord],
    *,
    workers: int,
    started_ns: int,
    ended_ns: int,
    faults: Sequence[str] = (),
    conductor_cpu_s: float | None = None,
    lead_end: RampUpEnd | None = None,
) -> BlockRecord:
    """Return the record of a period from those of its parts. Pure.

    It is complete if every part is: a part whose worker died leaves it incomplete, whatever the others did.
    `parts`: a worker's name -> the record of its part; a worker that died has none. `workers`: into how many
    parts the period was dealt. `started_ns`: when the parts began. `ended_ns`: when the last one ended.
    `faults`: what happened to workers, each a phrase. `conductor_cpu_s`: CPU time of the process that
    conducted them. `lead_end`: how the ramp-up ended, which the coordinator decides.
    """
    blocks = list(parts.values())
    notes = [*faults, *(f"{name}: {one.note}" for name, one in parts.items() if one.note)]
    return BlockRecord(
        block=period.block,
        load=period.load,
        arm=period.arm,
        order=period.order,
        attempt=period.attempt,
        started_ns=started_ns,
        ended_ns=ended_ns,
        completed=len(blocks) == workers and not faults and all(one.completed for one in blocks),
        note="; ".join(notes) or None,
        counted_from_ns=_take(min, blocks, "counted_from_ns"),
        workers=workers,
        clocks=tuple(clock for one in blocks for clock in one.clocks),
        conductor_cpu_s=conductor_cpu_s,
        client_cpu_max_s=_take(max, blocks, "client_cpu_s"),
        lead_end=lead_end,
        **{name: _take(max, blocks, name) for name in _WORST},
        **{name: _take(sum, blocks, name) for name in _SUMMED},
    )


def _take(choose: Callable[[list[Any]], Any], blocks: Iterable[BlockRecord], name: str) -> Any:
    """Return what is chosen of a field over the parts that tell it, None where none does."""
    known = [value for one in blocks if (value := getattr(one, name)) is not None]
    return choose(known) if known else None


MARGIN_NS = 50_000_000  # between a word and the time it speaks of: it reaches every worker meanwhile


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A conducted period, and the error that ended it before its end, if any."""

    block: BlockRecord
    error: DraftproofError | None = None


class Coordinator:
    """Conducts one period; used once.

    `orders`: each worker and its part, in the order of the parts. `ramp_up_s`: longest ramp-up of an open
    loop. `clock`: the clock that workers and coordinator share.
    """

    def __init__(
        self,
        period: Period,
        orders: Sequence[tuple[Worker, PeriodOrder]],
        *,
        ramp_up_s: float,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._period, self._orders, self._ramp_up = period, orders, RampUp(round(ramp_up_s * NS_PER_S))
        self._clock = clock
        self._progress = [ShardProgress() for _ in orders]
        self._blocks: dict[int, BlockRecord] = {}
        self._errors: dict[int, DraftproofError] = {}
        self._started_ns = 0
        self._is_ramping_up = period.concurrency is None and period.ramp_up is not None
        self._ramp_up_end: RampUpEnd | None = None
        self._is_ending = False

    async def run(self, stop: asyncio.Event) -> Outcome:
        """Run the period until every worker has ended its part, or is gone."""
        cpu_s = time.process_time()
        replies: asyncio.Queue[tuple[int, Reply | DraftproofError]] = asyncio.Queue()
        tasks = {asyncio.create_task(self._listen(place, replies)) for place in range(len(self._orders))}
        tasks.add(asyncio.create_task(self._stop_when(stop)))
        try:
            for worker, order in self._orders:
                worker.tell(order)
            self._started_ns = self._clock()
            await self._start(replies)
            while self._places_left():
                self._take(*await replies.get())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return self._conclude(time.process_time() - cpu_s)

    async def _listen(self, place: int, replies: asyncio.Queue[tuple[int, Reply | DraftproofError]]) -> None:
        """Hear a worker until its part is over."""
        try:
            while not isinstance(reply := await self._orders[place][0].hear(), Done | Failed):
                replies.put_nowait((place, reply))
            replies.put_nowait((place, reply))
        except DraftproofError as error:  # it is gone, or its records cannot be kept
            replies.put_nowait((place, error))

    async def _stop_when(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._end(Stop())

    async def _start(self, replies: asyncio.Queue[tuple[int, Reply | DraftproofError]]) -> None:
        """Wait until every worker is prepared; a period whose worker fails before does not start."""
        waiting = set(range(len(self._orders)))
        while waiting and not self._errors:
            place, reply = await replies.get()
            if isinstance(reply, Prepared):
                waiting.discard(place)
            else:
                self._take(place, reply)
        self._started_ns = self._clock() + MARGIN_NS
        self._tell(Start(self._started_ns))
        if self._errors:
            self._tell(Stop())

    def _take(self, place: int, reply: Reply | DraftproofError) -> None:
        match reply:
            case ShardProgress():
                self._progress[place] = reply
                self._weigh()
            case Done():
                self._blocks[place] = reply.block
            case Failed():
                self._fail(place, make_error(reply))
            case DraftproofError():
                self._fail(place, reply)

    def _weigh(self) -> None:
        """See what the workers' progress calls for."""
        if all(one.is_over for one in self._progress):
            self._end(Finish())
        elif self._is_ramping_up:
            now_ns = self._clock()
            self._ramp_up.see(
                now_ns - self._started_ns,
                ended=sum(one.ended for one in self._progress),
                in_flight=sum(one.in_flight for one in self._progress),
                ended_ns=sum(one.ended_ns for one in self._progress),
            )
            base_ns = find_base_ns(self._ramp_up, started_ns=self._started_ns, now_ns=now_ns)
            if base_ns is not None:
                self._is_ramping_up, self._ramp_up_end = False, self._ramp_up.end
                self._tell(Count(base_ns))

    def _fail(self, place: int, error: DraftproofError) -> None:
        """Without one of its workers a period is not the load that was asked for: it ends."""
        self._errors[place] = error
        self._end(Stop())

    def _end(self, word: Finish | Stop) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._tell(word)

    def _tell(self, word: Start | Count | Finish | Stop) -> None:
        for place in self._places_left():
            self._orders[place][0].tell(word)

    def _places_left(self) -> list[int]:
        return [p for p in range(len(self._orders)) if p not in self._blocks and p not in self._errors]

    def _conclude(self, cpu_s: float) -> Outcome:
        names = [worker.name for worker, _ in self._orders]
        faults = [
            f"{error.message}: its requests in flight have no records"
            if isinstance(error, WorkerDiedError)
            else f"{names[place]}: {error.message}"
            for place, error in sorted(self._errors.items())
        ]
        block = merge_parts(
            self._period,
            {names[place]: block for place, block in sorted(self._blocks.items())},
            workers=len(self._orders),
            started_ns=self._started_ns,
            ended_ns=self._clock(),
            faults=faults,
            conductor_cpu_s=cpu_s,
            lead_end=self._ramp_up_end,
        )
        return Outcome(block=block, error=choose_error(self._errors))


def choose_error(failed: Mapping[int, DraftproofError]) -> DraftproofError | None:
    """Of several errors the one that says most: a full disk rather than a death that came of it."""
    ranked = sorted(failed.items(), key=lambda one: (isinstance(one[1], WorkerDiedError), one[0]))
    return ranked[0][1] if ranked else None


def find_base_ns(ramp_up: RampUp, *, started_ns: int, now_ns: int, margin_ns: int = MARGIN_NS) -> int | None:
    """Return when the counted part of an open loop begins, None while that is not known. Pure.

    Where its ramp-up ends, and never sooner than a margin from now, in which the word reaches every worker.
    """
    soonest_ns, end_ns = now_ns + margin_ns, started_ns + ramp_up.length_ns
    return max(end_ns, soonest_ns) if ramp_up.is_known or soonest_ns >= end_ns else None


def make_error(failed: Failed) -> DraftproofError:
    """Return a worker's error as it would have been raised here."""
    kind = getattr(errors, failed.kind, DraftproofError)
    return kind(failed.message, place=failed.place, fix=failed.fix)


Answered = Mapping[str, AnswerView | None]
MakeWorker = Callable[[Setup], Worker]


class WorkerPool:
    """Workers that share periods between them: child processes unless `make` makes others.

    `journal`: folder in which worker k writes records-w<k>.jsonl. `secrets`: values masked in every record.
    `inherited`: descriptors that a worker keeps open as long as it lives, such as the run's lock. `make`:
    returns the worker of a setup; None: a process that inherits `inherited`.
    """

    def __init__(
        self,
        count: int,
        items: Sequence[Item],
        *,
        journal: Path,
        secrets: tuple[str, ...] = (),
        inherited: tuple[int, ...] = (),
        make: MakeWorker | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._clock = clock
        self._is_started = False
        make = make or (lambda setup: ProcessWorker(setup, inherited))
        self.workers = [
            make(
                Setup(
                    index=index,
                    items=tuple(items),
                    journal=str(journal / f"records-w{index}.jsonl"),
                    secrets=secrets,
                )
            )
            for index in range(count)
        ]

    async def run_period(
        self,
        period: Period,
        endpoint: Endpoint,
        *,
        settings: LoadSettings,
        answered: Answered,
        stop: asyncio.Event,
    ) -> Outcome:
        """Run one period; workers that it is too small for rest.

        `answered`: what is recorded of this period already, see `PeriodOrder`. `stop`: set by whoever wants
        the period to end.
        """
        if not self._is_started:
            self._is_started = True
            await asyncio.gather(*(worker.start() for worker in self.workers))
        parts, kept = count_parts(period, len(self.workers)), dict(answered)
        orders = [
            PeriodOrder(
                period=period, endpoint=endpoint, settings=settings, share=Share(index, parts), answered=kept
            )
            for index in range(parts)
        ]
        pairs = list(zip(self.workers, orders, strict=False))
        return await Coordinator(period, pairs, ramp_up_s=settings.ramp_up_s, clock=self._clock).run(stop)

    async def close(self, *, at_once: bool = False) -> None:
        """End every worker; what they have is on the device then, unless `at_once`."""
        await asyncio.gather(*(worker.close(at_once=at_once) for worker in self.workers))


def index_by_period(answered: Answered) -> dict[str, dict[str, AnswerView | None]]:
    """Return period key -> what is recorded of that period: a worker gets its own period and no more."""
    found: defaultdict[str, dict[str, AnswerView | None]] = defaultdict(dict)
    for request_id, answer in answered.items():
        found["/".join(request_id.split("/", 4)[:4])][request_id] = answer
    return dict(found)
