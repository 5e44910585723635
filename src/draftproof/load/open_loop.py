"""The open loop: requests are due at times of their own, however long the service takes over earlier ones.

The pacer waits for absolute times, so its own delay never stretches a later gap, and what is sent late still
counts from when it was due: nothing is left out because the service was slow. Requests at the same pace lead
up to the counted ones until those in flight are as many as the pace makes them, and follow after them until
the last counted one has ended.
"""

import asyncio
from collections.abc import Iterator

from draftproof.load.performing import Performer, Tasks, run_watched, sleep_until
from draftproof.load.turn import Job
from draftproof.records import BlockRecord
from draftproof.workload.arrivals import NS_PER_S, OpenLoop, Spacing, Steady, arrival_times_ns
from draftproof.workload.ordering import hash_number

_TAIL_GAPS = 16


class OpenLoopRunner:
    """Runs one turn; used once."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._room = asyncio.Semaphore(performer.turn.max_in_flight)
        self._ended = 0

    async def run(self, stop: asyncio.Event) -> BlockRecord:
        """Run until every counted request has ended or `stop` is set."""
        return await run_watched(self._performer, self._start, stop)

    def _start(self, started_ns: int) -> Tasks:
        return {asyncio.create_task(self._pace(started_ns))}

    async def _pace(self, started_ns: int) -> None:
        try:
            async with asyncio.TaskGroup() as requests:
                base_ns = await self._lead_up(requests, started_ns)
                self._performer.begin_counting()
                last_ns = await self._send_counted(requests, base_ns)
                await self._follow_up(requests, last_ns)
                await asyncio.Event().wait()  # the turn ends when the last counted request has
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _lead_up(self, requests: asyncio.TaskGroup, started_ns: int) -> int:
        """Send fill requests until the load stands; return when the counted part begins.

        It stands when as many requests have ended as are in flight: those that met an empty service are
        then gone, and the ones in flight all came into a loaded one.
        """
        performer, lead = self._performer, self._performer.turn.lead
        if lead is None:
            return started_ns
        limit_ns = round(performer.settings.lead_s * NS_PER_S)
        for offset_ns in self._times(lead, "lead"):
            await sleep_until(started_ns + min(offset_ns, limit_ns), performer.clock)
            if offset_ns >= limit_ns:
                return started_ns + limit_ns
            if self._ended and self._ended >= performer.in_flight:
                return started_ns + offset_ns
            self._send(requests, performer.schedule.lead_job(1.0), started_ns + offset_ns)
        return performer.clock()

    async def _send_counted(self, requests: asyncio.TaskGroup, base_ns: int) -> int:
        """Send every counted request when it is due, a resumed turn from its first missing one on."""
        performer, first_ns, due_ns = self._performer, None, base_ns
        while performer.schedule.has_waiting and (job := performer.schedule.next_job()) is not None:
            offset_ns = performer.turn.due_ns[job.order_in_block]
            if first_ns is None:  # a turn that goes on does not wait for what is over
                first_ns = offset_ns if job.order_in_block else 0
            due_ns = base_ns + offset_ns - first_ns
            await sleep_until(due_ns, performer.clock)
            self._send(requests, job, due_ns)
        return due_ns

    async def _follow_up(self, requests: asyncio.TaskGroup, last_ns: int) -> None:
        performer, tail = self._performer, self._tail()
        if tail is None:
            return
        for offset_ns in self._times(tail, "tail"):
            await sleep_until(last_ns + offset_ns, performer.clock)
            has_room = performer.in_flight < performer.turn.max_in_flight
            if has_room and (fill := performer.schedule.next_job()) is not None:
                self._send(requests, fill, last_ns + offset_ns)

    def _tail(self) -> OpenLoop | None:
        """Return the pace of the last counted requests, by which the load is kept up behind them."""
        last = self._performer.turn.due_ns[-_TAIL_GAPS - 1 :]
        span_ns = last[-1] - last[0] if last else 0
        if span_ns <= 0:
            return self._performer.turn.lead
        return OpenLoop(profile=Steady(rps=(len(last) - 1) * NS_PER_S / span_ns), spacing=Spacing())

    def _times(self, process: OpenLoop, purpose: str) -> Iterator[int]:
        turn = self._performer.turn
        seed = hash_number(purpose, turn.load, turn.block, turn.repeat) % 2**31
        return arrival_times_ns(process.profile, process.spacing, seed)

    def _send(self, requests: asyncio.TaskGroup, job: Job, due_ns: int) -> None:
        requests.create_task(self._ask(job, due_ns))

    async def _ask(self, job: Job, due_ns: int) -> None:
        self._performer.held_back += self._room.locked()
        async with self._room:
            await self._performer.converse(job, due_ns)
        self._ended += 1
