"""The wall clock may do what it likes: durations stay, and what it did is on record."""

import json

import msgspec
import pytest

from draftproof.core.clock import (
    LEAST_STEP_NS,
    ClockReading,
    compare_clocks,
    monotonic_ns,
    read_clocks,
)
from draftproof.core.records import BlockRecord
from draftproof.measure.run.measure import note_clocks

S = 10**9
BEFORE = ClockReading(wall_ns=1_700_000_000 * S, monotonic_ns=50 * S, boottime_ns=70 * S, boot="a")


def later(elapsed_ns: int, *, step_ns: int = 0, slept_ns: int = 0) -> ClockReading:
    """Return a reading so much later, the wall clock having been set and the host having slept meanwhile."""
    assert BEFORE.boottime_ns is not None
    return ClockReading(
        wall_ns=BEFORE.wall_ns + elapsed_ns + slept_ns + step_ns,
        monotonic_ns=BEFORE.monotonic_ns + elapsed_ns,
        boottime_ns=BEFORE.boottime_ns + elapsed_ns + slept_ns,
        boot="a",
    )


@pytest.mark.parametrize("step_ns", [-3600 * S, -S, S // 10, 86_400 * S])
def test_a_clock_that_is_set_is_told_with_its_size(step_ns):
    """Forward or back, by a tenth of a second or a day, with a sleep beside it or without."""
    for slept_ns in (0, 30 * S):
        change = compare_clocks(BEFORE, later(20 * S, step_ns=step_ns, slept_ns=slept_ns))
        assert (change.wall_step_ns, change.slept_ns) == (step_ns, slept_ns)


@pytest.mark.parametrize(("elapsed_s", "drift_ns"), [(1, LEAST_STEP_NS), (600, S // 2), (86_400, 60 * S)])
def test_a_clock_that_is_steered_is_not_suspected(elapsed_s, drift_ns):
    """What a time service does within its limits, however long the period, is no step."""
    for sign in (1, -1):
        change = compare_clocks(BEFORE, later(elapsed_s * S, step_ns=sign * drift_ns))
        assert change.wall_step_ns == 0


def test_without_a_clock_that_counts_sleep_a_sleep_is_a_step():
    """Something happened is still told; what it was is not known."""
    after = msgspec.structs.replace(later(20 * S, slept_ns=5 * S), boottime_ns=None)
    change = compare_clocks(BEFORE, after)
    assert (change.wall_step_ns, change.slept_ns) == (5 * S, None)


def test_the_clocks_of_this_host_do_nothing_in_between():
    """Two readings taken one after the other show neither step nor sleep, and belong to one boot."""
    first, second = read_clocks(), read_clocks()
    assert first.boot == second.boot
    assert first.monotonic_ns <= second.monotonic_ns <= monotonic_ns()
    change = compare_clocks(first, second)
    assert change.wall_step_ns == 0
    assert not change.slept_ns


def test_a_period_keeps_its_times_and_gets_an_anchor():
    """No duration of a period changes by what is noted of the clocks; its own start gets a date."""
    period = BlockRecord(
        block=0, load="low", arm="baseline", order=0, started_ns=52 * S, ended_ns=60 * S, completed=True,
        event_loop_lag_max_ns=0, client_cpu_s=0.1,
    )  # fmt: skip
    noted = note_clocks(period, BEFORE, later(11 * S, step_ns=-7 * S, slept_ns=3 * S))
    changed = {
        name: value
        for name, value in json.loads(msgspec.json.encode(noted)).items()
        if value != json.loads(msgspec.json.encode(period))[name]
    }
    assert changed == {
        "started_wall_ns": BEFORE.wall_ns + 2 * S,
        "boot": "a",
        "wall_step_ns": -7 * S,
        "suspended_ns": 3 * S,
    }
