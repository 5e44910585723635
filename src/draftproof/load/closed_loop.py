"""The closed loop: a stated number of slots, each of which sends its next request when its last has ended.

A request is scheduled when its slot becomes free, later turns of a conversation when its thought is over. The
slots start one after the other, and each first asks for a part of an answer, a longer part from slot to slot:
so they end at different times, and neither the burst of a start nor slots in step decide a first-token tail.
Counting begins when every slot has started.
"""

import asyncio

from draftproof.load.performing import Performer, Tasks, run_watched, sleep_until
from draftproof.records import BlockRecord


class ClosedLoop:
    """Runs one turn; used once."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._slots = performer.turn.concurrency or 1
        self._started = 0

    async def run(self, stop: asyncio.Event) -> BlockRecord:
        """Run until every counted request has ended or `stop` is set."""
        return await run_watched(self._performer, self._start, stop)

    def _start(self, started_ns: int) -> Tasks:
        stagger_ns = round(self._performer.settings.stagger_s * 1e9)
        if self._performer.schedule.is_counting:
            self._performer.begin_counting()
        return {
            asyncio.create_task(self._work(slot, started_ns + slot * stagger_ns))
            for slot in range(self._slots)
        }

    async def _work(self, slot: int, first_ns: int) -> None:
        """Work off one slot: its first request is due at `first_ns`, each later one when the slot is free."""
        performer, schedule = self._performer, self._performer.schedule
        await sleep_until(first_ns, performer.clock)
        scheduled_ns = first_ns
        self._started += 1
        is_last = self._started == self._slots
        if not schedule.is_counting:
            lead = schedule.lead_job((slot + 1) / (self._slots + 1))
            if is_last:
                performer.begin_counting()
            await performer.converse(lead, scheduled_ns)
            scheduled_ns = performer.clock()
        while (job := schedule.next_job()) is not None:
            if performer.turn.think_s:
                scheduled_ns = await performer.think(job)
            await performer.converse(job, scheduled_ns)
            scheduled_ns = performer.clock()
