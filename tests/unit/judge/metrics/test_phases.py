"""The parts of a period whose ramp, window and drain are known."""

import pytest
from tests.builders.records import build_block_record, build_record

from draftproof.judge.metrics.phases import PeriodPhases, split_period


def period(**fields):
    return build_block_record(**({"started_ns": 100, "counted_from_ns": 130, "ended_ns": 500} | fields))


def due(*at_ns):
    return [build_record(sent_ns=at, scheduled_ns=at) for at in at_ns]


def test_ramp_window_and_drain_add_up_to_the_period():
    """From the start to counting, to the last request due, to the end."""
    assert split_period(period(), due(130, 410, 200)) == PeriodPhases(ramp_ns=30, steady_ns=280, drain_ns=90)


def test_a_period_whose_counting_begins_at_once_has_no_ramp():
    """One request at a time needs none."""
    assert split_period(period(counted_from_ns=100), due(100)) == PeriodPhases(
        ramp_ns=0, steady_ns=0, drain_ns=400
    )


def test_a_request_that_was_due_before_counting_began_does_not_give_a_negative_window():
    """The first ones of a closed loop are due as their slots become free, while the ramp ends."""
    assert split_period(period(), due(125)) == PeriodPhases(ramp_ns=30, steady_ns=0, drain_ns=370)


@pytest.mark.parametrize(
    ("block", "records"),
    [(period(counted_from_ns=None), due(130)), (period(completed=False), due(130)), (period(), [])],
    ids=["an older record", "broken off", "nothing counted"],
)
def test_what_is_not_told_has_no_phases(block, records):
    """None, never zeros."""
    assert split_period(block, records) is None
