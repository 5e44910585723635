"""The two loops by which a period is run; `run` chooses the one that its load level asks for.

The closed loop: a stated number of slots, each of which sends its next request when its last has ended. A
request is scheduled when its slot becomes free, later turns of a conversation when its thought is over. The
slots start one after the other, and each first asks for a part of an answer, a longer part from slot to slot:
so they end at different times, and neither the burst of a start nor slots in step decide a first-token tail.
Counting begins when every slot has started.

The open loop: requests are due at times of their own, however long the service takes over earlier ones. The
pacer waits for absolute times, so its own delay never stretches a later gap, and what is sent late still
counts from when it was due: nothing is left out because the service was slow. Requests at the same pace come
before the counted ones, for as long as `RampUp` says, and follow after them until the last counted one has
ended.
"""

import asyncio
from collections.abc import Iterator

from draftproof.core.clock import NS_PER_S
from draftproof.core.records import BlockRecord, RampUpEnd
from draftproof.measure.load.period import Job, Period
from draftproof.measure.load.request_runner import RequestRunner, Tasks, run_watched
from draftproof.measure.load.timer import WaitUntil, open_alarm, sleep_until
from draftproof.workload.arm_orders import hash_number
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady, arrival_times_ns

RAMP_UP_TIMES = 16
_TAIL_GAPS = 16


async def run(runner: RequestRunner, stop: asyncio.Event | None = None) -> BlockRecord:
    """Run a period, or a part of one, until every counted request has ended or `stop` is set."""
    is_open = runner.period.concurrency is None
    loop = OpenLoopRunner(runner) if is_open else ClosedLoop(runner)
    return await run_watched(runner, loop.start, stop or asyncio.Event())


class ClosedLoop:
    """Runs one period; used once."""

    def __init__(self, runner: RequestRunner) -> None:
        self._runner = runner
        self._slots = runner.period.concurrency or 1

    def start(self, started_ns: int) -> Tasks:
        """Start this part's slots; each begins at the time that its number among all slots gives it."""
        runner = self._runner
        stagger_ns = round(runner.settings.stagger_s * NS_PER_S)
        last_ns = started_ns + (self._slots - 1) * stagger_ns
        is_led = not runner.schedule.is_counting
        counting = self._begin_counting(last_ns if is_led else started_ns)
        return {asyncio.create_task(counting)} | {
            asyncio.create_task(self._work(slot, started_ns + slot * stagger_ns, is_led=is_led))
            for slot in runner.part.share.own_slots(self._slots)
        }

    async def _begin_counting(self, at_ns: int) -> None:
        """The ramp is over when the last slot of all parts starts."""
        await sleep_until(at_ns, self._runner.clock)
        self._runner.begin_counting()

    async def _work(self, slot: int, first_ns: int, *, is_led: bool) -> None:
        """Work off one slot: its first request is due at `first_ns`, each later one when the slot is free."""
        runner, schedule = self._runner, self._runner.schedule
        await sleep_until(first_ns, runner.clock)
        scheduled_ns = first_ns
        if is_led:
            ramp_up = schedule.ramp_up_job((slot + 1) / (self._slots + 1))
            scheduled_ns = await runner.converse(ramp_up, scheduled_ns)
        while (job := schedule.next_job()) is not None:
            free_ns = max(scheduled_ns, runner.counted_from_ns or scheduled_ns)
            scheduled_ns = await runner.converse(job, await runner.think(job, free_ns))


class RampUp:
    """How long the ramp-up of an open loop is, as far as that is known. Pure.

    It first goes on until as many requests have ended as are in flight: those that met an empty service are
    then gone. How long they took on average sets its length once and for all, `RAMP_UP_TIMES` of it,
    `limit_ns` at most. The length does not look at the queue again: a ramp-up that goes on while a queue is
    long ends when it happens to be short, and the waits that are then counted come out too small. How near
    they come by this rule: bench/queues.py.
    """

    def __init__(self, limit_ns: int) -> None:
        self._limit_ns = limit_ns
        self._wanted_ns: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the length will not change any more."""
        return self._wanted_ns is not None

    @property
    def length_ns(self) -> int:
        """Its length: the limit as long as nothing stands."""
        return self._limit_ns if self._wanted_ns is None else min(self._wanted_ns, self._limit_ns)

    @property
    def end(self) -> RampUpEnd:
        """What it ends with."""
        if self._wanted_ns is None:
            return "not_standing"
        return "whole" if self._wanted_ns <= self._limit_ns else "cut"

    def see(self, at_ns: int, *, ended: int, in_flight: int, ended_ns: int) -> int:
        """Look at the requests at a time from the start of the ramp-up; return the length as known then.

        `ended`: requests that have ended. `in_flight`: those that have not. `ended_ns`: what the ended ones
        took together, from when they were due.
        """
        if self._wanted_ns is None and ended > 0 and ended >= in_flight:
            self._wanted_ns = max(at_ns, round(RAMP_UP_TIMES * ended_ns / ended))
        return self.length_ns


class OpenLoopRunner:
    """Runs one period; used once."""

    def __init__(self, runner: RequestRunner) -> None:
        self._runner, self._share = runner, runner.part.share
        self._max_in_flight = self._share.own_limit(runner.period.max_in_flight)
        runner.room = asyncio.Semaphore(self._max_in_flight)

    def start(self, started_ns: int) -> Tasks:
        """Start the pacer."""
        return {asyncio.create_task(self._pace(started_ns))}

    async def _pace(self, started_ns: int) -> None:
        try:
            async with asyncio.TaskGroup() as requests:
                with open_alarm(self._runner.clock) as wait_until:
                    base_ns = await self._ramp_up(requests, wait_until, started_ns)
                    self._runner.begin_counting()
                    last_ns = await self._send_counted(requests, wait_until, base_ns)
                    await self._follow_up(requests, wait_until, last_ns)
                await asyncio.Event().wait()  # the period ends when the last counted request has
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ramp_up(self, requests: asyncio.TaskGroup, wait_until: WaitUntil, started_ns: int) -> int:
        """Send fill requests as long as the ramp-up lasts; return when the counted part begins.

        That is at a time of its own and not at the arrival that would come next: the gap over a time that is
        chosen first is longer than others, and a queue met behind it shorter.
        """
        runner, pace = self._runner, self._runner.period.ramp_up
        if pace is None:
            return started_ns
        if not self._share.is_whole:
            return await self._ramp_up_until_base(requests, pace, started_ns)
        ramp_up = RampUp(round(runner.settings.ramp_up_s * NS_PER_S))
        for offset_ns in _times_ns(runner.period, pace, "lead"):
            await wait_until(started_ns + min(offset_ns, ramp_up.length_ns))
            standing = {"ended": runner.ended, "in_flight": runner.in_flight}
            if offset_ns >= ramp_up.see(offset_ns, **standing, ended_ns=runner.ended_ns):
                runner.lead_end = ramp_up.end
                return started_ns + ramp_up.length_ns
            self._send(requests, runner.schedule.ramp_up_job(1.0), started_ns + offset_ns)
        return runner.clock()

    async def _ramp_up_until_base(
        self, requests: asyncio.TaskGroup, ramp_up: OpenLoop, started_ns: int
    ) -> int:
        """Send this part of the ramp-up until the time that is the base of every part's counted requests."""
        leading = requests.create_task(self._send_ramp_up(requests, ramp_up, started_ns))
        base_ns = await self._runner.part.wait_for_base()
        await sleep_until(base_ns, self._runner.clock)
        leading.cancel()
        return base_ns

    async def _send_ramp_up(self, requests: asyncio.TaskGroup, ramp_up: OpenLoop, started_ns: int) -> None:
        with open_alarm(self._runner.clock) as wait_until:
            for number, offset_ns in enumerate(_times_ns(self._runner.period, ramp_up, "lead")):
                if self._share.owns(number):
                    await wait_until(started_ns + offset_ns)
                    self._send(requests, self._runner.schedule.ramp_up_job(1.0), started_ns + offset_ns)

    async def _send_counted(self, requests: asyncio.TaskGroup, wait_until: WaitUntil, base_ns: int) -> int:
        """Send every counted request when it is due; return when the last one of all parts is."""
        schedule = self._runner.schedule
        times = find_due_ns(self._runner.period, schedule.missing_orders, base_ns)
        while schedule.has_waiting and (job := schedule.next_job()) is not None:
            due_ns = times[job.order_in_block]
            await wait_until(due_ns)
            self._send(requests, job, due_ns)
        return max(times.values(), default=base_ns)

    async def _follow_up(self, requests: asyncio.TaskGroup, wait_until: WaitUntil, last_ns: int) -> None:
        runner, tail = self._runner, self._tail()
        if tail is None:
            return
        for number, offset_ns in enumerate(_times_ns(runner.period, tail, "tail")):
            if not self._share.owns(number):
                continue
            await wait_until(last_ns + offset_ns)
            has_room = runner.in_flight < self._max_in_flight
            if has_room and (fill := runner.schedule.next_job()) is not None:
                self._send(requests, fill, last_ns + offset_ns)

    def _tail(self) -> OpenLoop | None:
        """Return the pace of the last counted requests, by which the load is kept up behind them."""
        last = self._runner.period.due_ns[-_TAIL_GAPS - 1 :]
        span_ns = last[-1] - last[0] if last else 0
        if span_ns <= 0:
            return self._runner.period.ramp_up
        return OpenLoop(profile=Steady(rps=(len(last) - 1) * NS_PER_S / span_ns), spacing=Spacing())

    def _send(self, requests: asyncio.TaskGroup, job: Job, due_ns: int) -> None:
        requests.create_task(self._ask(job, due_ns))

    async def _ask(self, job: Job, due_ns: int) -> None:
        free_ns = await self._runner.converse(job, due_ns)
        self._runner.ended += 1
        self._runner.ended_ns += max(free_ns - due_ns, 0)


def find_due_ns(period: Period, missing: tuple[int, ...], base_ns: int) -> dict[int, int]:
    """Return when each missing request is due, by its place in the block.

    A period that goes on does not wait for what is over: its first missing request is due at `base_ns`.
    """
    skipped_ns = period.due_ns[missing[0]] if missing and missing[0] else 0
    return {place: base_ns + period.due_ns[place] - skipped_ns for place in missing}


def _times_ns(period: Period, process: OpenLoop, purpose: str) -> Iterator[int]:
    """Return when the requests before or behind the counted ones are due, in ns from there, without end."""
    seed = hash_number(purpose, period.load, period.block, period.repeat) % 2**31
    return arrival_times_ns(process.profile, process.spacing, seed)
