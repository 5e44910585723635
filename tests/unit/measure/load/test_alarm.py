"""Waiting for absolute times: never early, whatever the loop and its clock."""

import asyncio

import pytest
import uvloop

from draftproof.core.clock import monotonic_ns
from draftproof.measure.load.timer import open_alarm

MS = 1_000_000


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_no_wait_ends_early_and_what_has_passed_is_not_waited_for(run):
    """Ten times a third of a millisecond apart are met in order, each no sooner than due."""

    async def main():
        with open_alarm(monotonic_ns) as wait_until:
            due_ns = [monotonic_ns() + number * MS // 3 for number in range(10)]
            woken_ns = []
            for one in due_ns:
                await wait_until(one)
                woken_ns.append(monotonic_ns())
            await wait_until(due_ns[0])
            return due_ns, woken_ns

    due_ns, woken_ns = run(main())
    assert all(woken >= due for due, woken in zip(due_ns, woken_ns, strict=True))
    assert woken_ns[-1] - due_ns[-1] < 1000 * MS


def test_a_clock_that_is_not_the_system_s_is_waited_for_by_the_loop():
    """A clock at half speed makes the wait last until it has come round."""

    def slow_clock():
        return monotonic_ns() // 2

    async def main():
        with open_alarm(slow_clock) as wait_until:
            due_ns = slow_clock() + 2 * MS
            await wait_until(due_ns)
            return slow_clock() - due_ns

    assert asyncio.run(main()) >= 0


def test_a_wait_that_is_cancelled_leaves_nothing_behind():
    """The timer's file is closed and the loop no longer looks at it."""

    async def main():
        async def wait():
            with open_alarm(monotonic_ns) as wait_until:
                await wait_until(monotonic_ns() + 10**12)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
