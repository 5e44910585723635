"""The time that is left, in runs whose pace is known."""

import pytest

from draftproof.measure.run.progress_model import LevelFacts, Pace

LEVELS = {
    "single": LevelFacts(concurrency=1),
    "busy": LevelFacts(concurrency=8),
    "rate": LevelFacts(concurrency=None, due_s_per_request=0.5),
}


def pace(*periods):
    told = Pace(LEVELS)
    for period in periods:
        told.add(*period)
    return told


def test_nothing_is_known_before_the_first_period_has_ended():
    """None, not zero; with nothing left it is zero."""
    assert pace().estimate_s({("single", "baseline"): 4}) is None
    assert pace().estimate_s({("single", "baseline"): 0}) == 0.0


def test_each_arm_is_priced_by_its_own_periods():
    """Ten requests in 20 s leave five times 2 s."""
    told = pace(("single", "baseline", 10, 20.0), ("single", "candidate", 10, 10.0))
    assert told.estimate_s({("single", "baseline"): 5, ("single", "candidate"): 5}) == 15.0


def test_an_arm_that_has_not_been_on_is_priced_by_the_others_at_its_level():
    """Weighted by their requests."""
    told = pace(("single", "baseline", 10, 20.0), ("single", "candidate", 30, 20.0))
    assert told.estimate_s({("single", "alternative"): 4}) == 4.0


def test_a_level_that_has_not_been_run_is_priced_by_the_requests_in_flight():
    """Eight at once take an eighth of the time that one at a time takes."""
    assert pace(("single", "baseline", 10, 20.0)).estimate_s({("busy", "baseline"): 8}) == 2.0


def test_an_open_loop_knows_its_pace_from_the_start():
    """From its own due times."""
    assert pace().estimate_s({("rate", "baseline"): 6}) == 3.0


def test_an_open_loop_of_one_request_is_unknown_until_it_has_run():
    """Closed loops say nothing of it."""
    told = Pace(LEVELS | {"lone": LevelFacts(concurrency=None)})
    told.add("single", "baseline", 10, 20.0)
    assert told.estimate_s({("lone", "baseline"): 1}) is None
    told.add("lone", "baseline", 1, 3.0)
    assert told.estimate_s({("lone", "candidate"): 2}) == pytest.approx(6.0)
