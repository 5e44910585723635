"""When the arms are started anew: each load meets every process, and starts take a quarter of the time."""

import pytest

from draftproof.measure.load.period import Period
from draftproof.measure.run.second_attempts import Restarts, choose_blocks, list_boundaries


def make_period(block: int, load: str) -> Period:
    return Period(block=block, load=load, concurrency=1, repeat=0, arm="baseline", order=0, item_ids=())


def lay_out(*loads: str, arms: int = 3) -> tuple[Period, ...]:
    return tuple(make_period(block, load) for block, load in enumerate(loads) for _ in range(arms))


ROUNDS = lay_out("low", "high", "high", "low", "low", "high")


def run(restarts: Restarts, periods, *, period_s: float, start_s: float, warmup_s: float = 0.0) -> list[int]:
    """Measure periods of one length; return the blocks before which the arms were started anew."""
    found, warm = list[int](), set[str]()
    for period in periods:
        if restarts.is_due(period):
            found.append(period.block)
            restarts.count_start(period.load, start_s)
            warm.clear()
        if period.load not in warm:
            warm.add(period.load)
            restarts.count_warmup(warmup_s)
        restarts.count_period(period_s)
    return found


def test_a_block_of_a_load_that_was_answered_begins_with_new_processes():
    """Every load meets every process: none is started between two loads of a round."""
    assert list_boundaries(ROUNDS) == [2, 4]
    assert run(Restarts("auto", ROUNDS, 0.0), ROUNDS, period_s=10.0, start_s=0.0) == [2, 4]


def test_without_a_second_block_of_a_load_nothing_is_started_anew():
    """A single round has no boundary, whatever is wanted."""
    single = lay_out("low", "high")
    assert run(Restarts(5, single, 1.0), single, period_s=10.0, start_s=1.0) == []


@pytest.mark.parametrize("start_s", [0.1, 2.0, 9.0, 40.0, 200.0])
def test_starts_and_warm_ups_take_a_quarter_of_the_run_at_any_moment(start_s):
    """However long a start takes; and where one more would fit, it is not left out."""
    periods = lay_out(*["low", "high"] * 30)
    restarts = Restarts("auto", periods, start_s)
    found = run(restarts, periods, period_s=5.0, start_s=start_s, warmup_s=1.0)
    cost_s, measured_s = start_s + 2.0, 5.0 * len(periods)
    assert len(found) * cost_s <= 0.25 * (measured_s + len(found) * cost_s)
    fitting = int(measured_s / 3 / cost_s)
    assert len(found) >= min(fitting - 1, len(list_boundaries(periods)))


def test_three_processes_of_a_slow_start_where_the_run_is_long():
    """Three arms of 60 s each in a run of 20 minutes: started anew twice, evenly spread."""
    periods = lay_out(*["only"] * 20)
    found = run(Restarts("auto", periods, 180.0), periods, period_s=20.0, start_s=180.0)
    assert found == [9, 18]


@pytest.mark.parametrize(("count", "expected"), [(0, set()), (1, {4}), (2, {2, 6}), (99, {2, 4, 6})])
def test_a_stated_number_is_spread_over_the_run(count, expected):
    """0 is never; more than there are boundaries is each of them, whatever they cost."""
    periods = lay_out(*["low", "high"] * 4)
    assert list_boundaries(periods) == [2, 4, 6]
    assert choose_blocks(periods, count) == expected
    found = run(Restarts(count, periods, 1e6), periods, period_s=1.0, start_s=1e6)
    assert set(found) == expected


def test_what_is_only_attached_to_is_never_started_anew():
    """Nothing that the run started, nothing to start."""
    assert run(Restarts(3, ROUNDS, None), ROUNDS, period_s=10.0, start_s=0.0) == []
