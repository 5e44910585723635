"""Conducting one turn over several load workers: one start, one base time, one end.

The conductor sends no request and sees no answer. It says when all begin, decides when the load stands (so
that due times of all workers count from one time), and ends the turn when every worker's counted requests are
over; until then each keeps its part of the load up.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from draftproof import errors
from draftproof.clock import Clock, monotonic_ns
from draftproof.errors import DraftproofError
from draftproof.load.lead import Lead
from draftproof.load.turn import Turn
from draftproof.load.workers.handle import Worker, WorkerDiedError
from draftproof.load.workers.merging import merge_parts
from draftproof.load.workers.messages import (
    Count,
    Done,
    Failed,
    Finish,
    Prepared,
    Reply,
    Standing,
    Start,
    Stop,
    TurnOrder,
)
from draftproof.records import BlockRecord, LeadEnd

MARGIN_NS = 50_000_000  # between a word and the time it speaks of: it reaches every worker meanwhile


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A conducted turn, and the error that ended it before its end, if any."""

    block: BlockRecord
    error: DraftproofError | None = None


class Conductor:
    """Conducts one turn; used once.

    Args:
        turn: the turn.
        orders: each worker and its part, in the order of the parts.
        lead_s: longest time that an open loop leads up to its counted requests.
        watch: told how many requests are open whenever that is known anew.
        clock: the clock that workers and conductor share.
    """

    def __init__(
        self,
        turn: Turn,
        orders: Sequence[tuple[Worker, TurnOrder]],
        *,
        lead_s: float,
        watch: Callable[[int], None] = lambda _: None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._turn, self._orders, self._lead = turn, orders, Lead(round(lead_s * 1e9))
        self._watch, self._clock = watch, clock
        self._standings = [Standing() for _ in orders]
        self._blocks: dict[int, BlockRecord] = {}
        self._errors: dict[int, DraftproofError] = {}
        self._started_ns = 0
        self._is_led = turn.concurrency is None and turn.lead is not None
        self._lead_end: LeadEnd | None = None
        self._is_ending = False

    async def run(self, stop: asyncio.Event) -> Outcome:
        """Run the turn until every worker has ended its part, or is gone."""
        cpu_s = time.process_time()
        replies: asyncio.Queue[tuple[int, Reply | DraftproofError]] = asyncio.Queue()
        tasks = {asyncio.create_task(self._listen(place, replies)) for place in range(len(self._orders))}
        tasks.add(asyncio.create_task(self._stop_when(stop)))
        try:
            for worker, order in self._orders:
                worker.tell(order)
            self._started_ns = self._clock()
            await self._start(replies)
            while self._is_running:
                self._take(*await replies.get())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self._watch(0)
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
        """Wait until every worker is prepared; a turn whose worker fails before does not start."""
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
            case Standing():
                self._standings[place] = reply
                self._weigh()
            case Done():
                self._blocks[place] = reply.block
            case Failed():
                self._fail(place, make_error(reply))
            case DraftproofError():
                self._fail(place, reply)

    def _weigh(self) -> None:
        """See what the workers' standings call for."""
        in_flight = sum(one.in_flight for one in self._standings)
        self._watch(in_flight)
        if all(one.is_over for one in self._standings):
            self._end(Finish())
        elif self._is_led:
            now_ns = self._clock()
            self._lead.see(
                now_ns - self._started_ns,
                ended=sum(one.ended for one in self._standings),
                in_flight=in_flight,
                ended_ns=sum(one.ended_ns for one in self._standings),
            )
            base_ns = find_base_ns(self._lead, started_ns=self._started_ns, now_ns=now_ns)
            if base_ns is not None:
                self._is_led, self._lead_end = False, self._lead.end
                self._tell(Count(base_ns))

    def _fail(self, place: int, error: DraftproofError) -> None:
        """Without one of its workers a turn is not the load that was asked for: it ends."""
        self._errors[place] = error
        self._end(Stop())

    def _end(self, word: Finish | Stop) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._tell(word)

    def _tell(self, word: Start | Count | Finish | Stop) -> None:
        for place in self._places_left():
            self._orders[place][0].tell(word)

    @property
    def _is_running(self) -> bool:
        return any(True for _ in self._places_left())

    def _places_left(self) -> Iterator[int]:
        return (p for p in range(len(self._orders)) if p not in self._blocks and p not in self._errors)

    def _conclude(self, cpu_s: float) -> Outcome:
        names = [worker.name for worker, _ in self._orders]
        faults = [
            f"{error.message}: its requests in flight have no records"
            if isinstance(error, WorkerDiedError)
            else f"{names[place]}: {error.message}"
            for place, error in sorted(self._errors.items())
        ]
        block = merge_parts(
            self._turn,
            {names[place]: block for place, block in sorted(self._blocks.items())},
            workers=len(self._orders),
            started_ns=self._started_ns,
            ended_ns=self._clock(),
            faults=faults,
            conductor_cpu_s=cpu_s,
            lead_end=self._lead_end,
        )
        return Outcome(block=block, error=choose_error(self._errors))


def choose_error(failed: Mapping[int, DraftproofError]) -> DraftproofError | None:
    """Of several errors the one that says most: a full disk rather than a death that came of it."""
    ranked = sorted(failed.items(), key=lambda one: (isinstance(one[1], WorkerDiedError), one[0]))
    return ranked[0][1] if ranked else None


def find_base_ns(lead: Lead, *, started_ns: int, now_ns: int, margin_ns: int = MARGIN_NS) -> int | None:
    """Return when the counted part of an open loop begins, None while that is not known. Pure.

    Where its lead ends, and never sooner than a margin from now, in which the word reaches every worker.
    """
    soonest_ns, end_ns = now_ns + margin_ns, started_ns + lead.length_ns
    return max(end_ns, soonest_ns) if lead.is_known or soonest_ns >= end_ns else None


def make_error(failed: Failed) -> DraftproofError:
    """Return a worker's error as it would have been raised here."""
    kind = getattr(errors, failed.kind, DraftproofError)
    return kind(failed.message, place=failed.place, fix=failed.fix)
