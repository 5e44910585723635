"""The closed loop: a stated number of slots, each of which sends its next request when its last has ended.

A request is scheduled when its slot becomes free, later turns of a conversation when its thought is over. The
slots start one after the other, and each first asks for a part of an answer, a longer part from slot to slot:
so they end at different times, and neither the burst of a start nor slots in step decide a first-token tail.
Counting begins when every slot has started.
"""

import asyncio

from draftproof.load.alarm import sleep_until
from draftproof.load.performing import Performer, Tasks, run_watched
from draftproof.records import BlockRecord


class ClosedLoop:
    """Runs one turn; used once."""

    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._slots = performer.turn.concurrency or 1

    async def run(self, stop: asyncio.Event) -> BlockRecord:
        """Run until every counted request has ended or `stop` is set."""
        return await run_watched(self._performer, self._start, stop)

    def _start(self, started_ns: int) -> Tasks:
        """Start this part's slots; each begins at the time that its number among all slots gives it."""
        performer = self._performer
        stagger_ns = round(performer.settings.stagger_s * 1e9)
        last_ns = started_ns + (self._slots - 1) * stagger_ns
        is_led = not performer.schedule.is_counting
        counting = self._begin_counting(last_ns if is_led else started_ns)
        return {asyncio.create_task(counting)} | {
            asyncio.create_task(self._work(slot, started_ns + slot * stagger_ns, is_led=is_led))
            for slot in performer.part.share.own_slots(self._slots)
        }

    async def _begin_counting(self, at_ns: int) -> None:
        """The ramp is over when the last slot of all parts starts."""
        await sleep_until(at_ns, self._performer.clock)
        self._performer.begin_counting()

    async def _work(self, slot: int, first_ns: int, *, is_led: bool) -> None:
        """Work off one slot: its first request is due at `first_ns`, each later one when the slot is free."""
        performer, schedule = self._performer, self._performer.schedule
        await sleep_until(first_ns, performer.clock)
        scheduled_ns = first_ns
        if is_led:
            lead = schedule.lead_job((slot + 1) / (self._slots + 1))
            scheduled_ns = await performer.converse(lead, scheduled_ns)
        while (job := schedule.next_job()) is not None:
            free_ns = max(scheduled_ns, performer.counted_from_ns or scheduled_ns)
            scheduled_ns = await performer.converse(job, await performer.think(job, free_ns))
