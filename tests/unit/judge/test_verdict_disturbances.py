"""What befell the run from outside is told, and turns keep their order through restarts and clock steps."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core.records import BlockRecord, TelemetrySample
from draftproof.judge.inform.unmeasured import list_disturbances
from draftproof.judge.metrics.telemetry import START_TIME, collect_turns
from draftproof.judge.observe.client_limits import find_client_faults
from draftproof.judge.observe.observed import place_in_time
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


def turn(block: int, started_s: float, **fields: Any) -> BlockRecord:
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


def placed(*turns: BlockRecord) -> list[tuple[int, float]]:
    return [(one.block, at / S) for at, one in place_in_time(turns, anchor_offset_ns=WALL)]


def test_an_undisturbed_run_has_nothing_to_tell():
    """Zero and not known are no disturbance."""
    quiet = turn(0, 1, wall_step_ns=0, suspended_ns=0, unreached=0, boot="a")
    assert list(list_disturbances([quiet, turn(1, 3)])) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"wall_step_ns": -3600 * S}, ("set while turns ran", "-3,600.000 s in turn low/4 of baseline")),
        ({"suspended_ns": 90 * S}, ("slept", "90.0 s in turn low/4", "left out")),
        (
            {"unreached": 7},
            ("no service to connect to", "7 in turn low/4 of baseline", "failures of the arm"),
        ),
    ],
)
def test_a_disturbance_is_told_with_place_and_size(fields, words):
    """One sentence, whoever else was undisturbed."""
    (told,) = list_disturbances([turn(0, 1), turn(4, 9, **fields)])
    for word in words:
        assert word in told


def test_of_many_disturbances_a_few_are_named():
    """A clock that jumps at every turn does not fill the report."""
    (told,) = list_disturbances([turn(block, block, wall_step_ns=S) for block in range(40)])
    assert "and 37 more" in told


def test_a_sleeping_client_may_not_judge_its_turn():
    """Its clock stood while the service went on, so the times of that turn are too short."""
    (fault,) = find_client_faults([turn(0, 1, suspended_ns=3 * S)], (), 50.0, is_open=False)
    assert (fault.kind, fault.amount) == ("slept", 3.0)
    assert find_client_faults([turn(0, 1, wall_step_ns=3 * S)], (), 50.0, is_open=False) == ()


def test_times_of_one_boot_stay_whatever_the_wall_clock_did():
    """The wall clock went back an hour between two turns; their distance is what it was."""
    turns = [
        turn(0, 100, boot="a", started_wall_ns=WALL + 100 * S),
        turn(1, 160, boot="a", started_wall_ns=WALL - 3440 * S),
    ]
    assert placed(*turns) == [(0, 100.0), (1, 160.0)]


def test_after_a_restart_of_the_host_turns_follow_those_before_it():
    """The monotonic clock begins anew at 5 s; by the wall clock an hour has passed."""
    turns = [
        turn(0, 8000, boot="a", started_wall_ns=WALL),
        turn(1, 8100, boot="a", started_wall_ns=WALL + 100 * S),
        turn(2, 5, boot="b", started_wall_ns=WALL + 3600 * S),
        turn(3, 25, boot="b", started_wall_ns=WALL + 3620 * S),
    ]
    assert placed(*turns) == [(0, 8000.0), (1, 8100.0), (2, 11_600.0), (3, 11_620.0)]
    (told,) = list_disturbances(turns)
    assert "in 2 starts of the client's host" in told


def test_turns_without_an_anchor_lie_by_that_of_the_run():
    """A run of an older version that is resumed after a restart is put in order as well."""
    turns = [turn(0, 10), turn(1, 2, boot="b", started_wall_ns=WALL + 500 * S)]
    assert placed(*turns) == [(0, 10.0), (1, 500.0)]
    assert placed(turns[0]) == [(0, 10.0)]
    assert placed() == []


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=8, unique=True), st.sampled_from([None, "a"]))
def test_a_run_of_one_boot_is_placed_by_its_own_clock(starts, boot):
    """With one start of the host nothing is moved, anchors or not."""
    turns = [
        turn(number, start, boot=boot, started_wall_ns=None if boot is None else WALL + number)
        for number, start in enumerate(starts)
    ]
    assert sorted(placed(*turns)) == [(number, float(start)) for number, start in enumerate(starts)]


def readings(*turns: tuple[str, int, float, float]) -> Any:
    """Return readings of turns (arm, block, start time at its start, at its end)."""
    samples = [
        one
        for arm, block, first, last in turns
        for one in (
            TelemetrySample(
                arm=arm, at_ns=block * S, values={START_TIME: first}, turn=f"low/{block}", mark="start"
            ),
            TelemetrySample(
                arm=arm, at_ns=block * S + 1, values={START_TIME: last}, turn=f"low/{block}", mark="end"
            ),
        )
    ]
    return SimpleNamespace(
        turns={key: SimpleNamespace(samples=found) for key, found in collect_turns(samples).items()}
    )


def restarts(found: Any) -> list[str]:
    prepared: Any = SimpleNamespace(arms=("baseline", "candidate"), plan=parse_plan(PLAN))
    return list(list_restarts(prepared, found))


def test_an_attached_service_that_began_anew_between_turns_is_told():
    """Its counters are in order in every turn, and yet it was cold in one."""
    (told,) = restarts(
        readings(("baseline", 0, 5.0, 5.0), ("baseline", 2, 9.0, 9.0), ("baseline", 4, 9.0, 9.0))
    )
    assert "The service of baseline was started anew between its turns low/0 and low/2" in told


def test_a_service_that_this_run_starts_and_stops_is_not_suspected():
    """Arms that take turns, and those of a resumed run, begin anew by design."""
    assert restarts(readings(("candidate", 0, 5.0, 5.0), ("candidate", 2, 9.0, 9.0))) == []
    assert restarts(readings(("baseline", 0, 5.0, 5.0), ("baseline", 2, 5.0, 5.0))) == []
