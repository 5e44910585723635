"""What happened to the run from outside is reported; periods keep their order through restarts and clocks."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.records import BlockRecord, TelemetrySample
from draftproof.judge.inform.unmeasured import list_disturbances
from draftproof.judge.metrics.telemetry import START_TIME, collect_periods
from draftproof.judge.observe.client_limits import find_client_faults
from draftproof.judge.observe.observed import sort_by_time
from draftproof.judge.observe.services import list_restarts
from draftproof.plan.loading import parse_plan

S = 10**9
WALL = 1_700_000_000 * S
PLAN = """\
name = "t"
[[load]]
name = "low"
concurrency = 1
[arms.baseline]
url = "http://h:1"
[arms.candidate]
command = ["serve", "{port}"]
"""


def period(block: int, started_s: float, **fields: Any) -> BlockRecord:
    known: dict[str, Any] = {
        "block": block,
        "load": "low",
        "arm": "baseline",
        "order": 0,
        "started_ns": round(started_s * S),
        "ended_ns": round(started_s * S) + S,
        "completed": True,
        "event_loop_lag_max_ns": 0,
        "client_cpu_s": 0.1,
    }
    return BlockRecord(**(known | fields))


def placed(*periods: BlockRecord) -> list[tuple[int, float]]:
    return [(one.block, at / S) for at, one in sort_by_time(periods, anchor_offset_ns=WALL)]


def test_an_undisturbed_run_has_nothing_to_tell():
    """Zero and not known are no disturbance."""
    quiet = period(0, 1, wall_step_ns=0, suspended_ns=0, unreached=0, boot="a")
    assert list(list_disturbances([quiet, period(1, 3)])) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"wall_step_ns": -3600 * S}, ("set while periods ran", "-3,600.000 s in period low/4 of baseline")),
        ({"suspended_ns": 90 * S}, ("slept", "90.0 s in period low/4", "left out")),
        (
            {"unreached": 7},
            ("no service to connect to", "7 in period low/4 of baseline", "failures of the arm"),
        ),
    ],
)
def test_a_disturbance_is_told_with_place_and_size(fields, words):
    """One sentence, whoever else was undisturbed."""
    (told,) = list_disturbances([period(0, 1), period(4, 9, **fields)])
    for word in words:
        assert word in told


def test_of_many_disturbances_a_few_are_named():
    """A clock that jumps at every period does not fill the report."""
    (told,) = list_disturbances([period(block, block, wall_step_ns=S) for block in range(40)])
    assert "and 37 more" in told


def test_a_sleeping_client_may_not_judge_its_period():
    """Its clock stood while the service went on, so the times of that period are too short."""
    (fault,) = find_client_faults([period(0, 1, suspended_ns=3 * S)], (), 50.0, is_open=False)
    assert (fault.kind, fault.amount) == ("slept", 3.0)
    assert find_client_faults([period(0, 1, wall_step_ns=3 * S)], (), 50.0, is_open=False) == ()


def test_times_of_one_boot_stay_whatever_the_wall_clock_did():
    """The wall clock went back an hour between two periods; their distance is what it was."""
    periods = [
        period(0, 100, boot="a", started_wall_ns=WALL + 100 * S),
        period(1, 160, boot="a", started_wall_ns=WALL - 3440 * S),
    ]
    assert placed(*periods) == [(0, 100.0), (1, 160.0)]


def test_after_a_restart_of_the_host_periods_follow_those_before_it():
    """The monotonic clock begins anew at 5 s; by the wall clock an hour has passed."""
    periods = [
        period(0, 8000, boot="a", started_wall_ns=WALL),
        period(1, 8100, boot="a", started_wall_ns=WALL + 100 * S),
        period(2, 5, boot="b", started_wall_ns=WALL + 3600 * S),
        period(3, 25, boot="b", started_wall_ns=WALL + 3620 * S),
    ]
    assert placed(*periods) == [(0, 8000.0), (1, 8100.0), (2, 11_600.0), (3, 11_620.0)]
    (told,) = list_disturbances(periods)
    assert "in 2 starts of the client's host" in told


def test_periods_without_an_anchor_lie_by_that_of_the_run():
    """A run of an older version that is resumed after a restart is put in order as well."""
    periods = [period(0, 10), period(1, 2, boot="b", started_wall_ns=WALL + 500 * S)]
    assert placed(*periods) == [(0, 10.0), (1, 500.0)]
    assert placed(periods[0]) == [(0, 10.0)]
    assert placed() == []


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True), st.sampled_from([None, "a"]))
def test_a_run_of_one_boot_is_placed_by_its_own_clock(starts, boot):
    """With one start of the host nothing is moved, anchors or not."""
    periods = [
        period(number, start, boot=boot, started_wall_ns=None if boot is None else WALL + number)
        for number, start in enumerate(starts)
    ]
    assert sorted(placed(*periods)) == [(number, float(start)) for number, start in enumerate(starts)]


def readings(*periods: tuple[str, int, float, float]) -> Any:
    """Return readings of periods (arm, block, start time at its start, at its end)."""
    samples = [
        one
        for arm, block, first, last in periods
        for one in (
            TelemetrySample(
                arm=arm, at_ns=block * S, values={START_TIME: first}, period=f"low/{block}", mark="start"
            ),
            TelemetrySample(
                arm=arm, at_ns=block * S + 1, values={START_TIME: last}, period=f"low/{block}", mark="end"
            ),
        )
    ]
    return SimpleNamespace(
        periods={key: SimpleNamespace(samples=found) for key, found in collect_periods(samples).items()}
    )


def restarts(found: Any) -> list[str]:
    prepared: Any = SimpleNamespace(arms=("baseline", "candidate"), plan=parse_plan(PLAN))
    return list(list_restarts(prepared, found))


def test_an_attached_service_that_began_anew_between_periods_is_told():
    """Its counters are in order in every period, and yet it was cold in one."""
    (told,) = restarts(
        readings(("baseline", 0, 5.0, 5.0), ("baseline", 2, 9.0, 9.0), ("baseline", 4, 9.0, 9.0))
    )
    assert "The service of baseline was started anew between its periods low/0 and low/2" in told


def test_a_service_that_this_run_starts_and_stops_is_not_suspected():
    """Arms that take periods, and those of a resumed run, begin anew by design."""
    assert restarts(readings(("candidate", 0, 5.0, 5.0), ("candidate", 2, 9.0, 9.0))) == []
    assert restarts(readings(("baseline", 0, 5.0, 5.0), ("baseline", 2, 5.0, 5.0))) == []
