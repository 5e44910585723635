"""Which periods of an interrupted run are gone on with: those not over, and those that lack one."""

import msgspec
import pytest
from tests.builders.records import build_block_record, build_item

from draftproof.measure.load.period import Period
from draftproof.measure.run.second_attempts import (
    count_starts,
    has_other_blocks,
    list_missing_periods,
    list_request_ids,
)
from draftproof.workload.items import FollowUp

ITEMS = {"a": build_item("a"), "b": build_item("b", follow_ups=(FollowUp(content="more"),))}
TURNS = tuple(
    Period(block=block, load="low", concurrency=1, repeat=0, arm=arm, order=0, item_ids=("a", "b"))
    for block in (0, 1)
    for arm in ("baseline", "candidate")
)
LINES = tuple(build_block_record(block=one.block, arm=one.arm, load="low", completed=True) for one in TURNS)
RECORDED = frozenset(name for one in TURNS for name in list_request_ids(one, ITEMS))


def missing(lines=LINES, recorded=RECORDED):
    found = list_missing_periods(TURNS, ITEMS, lines, recorded)
    return [(one.block, one.arm) for one in found]


def test_a_run_whose_periods_are_whole_and_said_to_be_over_lacks_nothing():
    """Every period has its line and every request its record."""
    assert missing() == []


def test_a_period_whose_requests_are_all_there_but_whose_own_line_is_not_is_gone_on_with():
    """Without the line nothing tells how the client behaved, so that its times would be worth nothing."""
    assert missing(lines=LINES[:1] + LINES[2:]) == [(0, "candidate")]


def test_a_period_that_was_broken_off_is_not_over():
    """Its line says so, whatever is recorded; a later line that says otherwise ends it."""
    broken = msgspec.structs.replace(LINES[2], completed=False)
    assert missing(lines=(*LINES[:2], broken, LINES[3])) == [(1, "baseline")]
    assert missing(lines=(*LINES[:2], broken, *LINES[2:])) == []


@pytest.mark.parametrize("lost", ["low/1/0/candidate/a", "low/1/0/candidate/b", "low/1/0/candidate/b+1"])
def test_a_period_that_lacks_a_request_is_gone_on_with_whatever_its_line_says(lost):
    """A power cut may spare the line and take a request, also that of a conversation's later turn."""
    assert lost in RECORDED
    assert missing(recorded=RECORDED - {lost}) == [(1, "candidate")]


def test_periods_are_asked_in_their_order():
    """Nothing recorded: all of them, as the plan has them."""
    assert missing(lines=(), recorded=frozenset()) == [(one.block, one.arm) for one in TURNS]


def test_blocks_in_another_order_are_of_another_version():
    """A number that means another load's block is not continued; those of a knee search are no part."""
    assert not has_other_blocks(TURNS, LINES)
    assert not has_other_blocks(TURNS, (*LINES, build_block_record(block=7, arm="baseline", load="knee-4")))
    high = msgspec.structs.replace(TURNS[0], block=7, load="high")
    assert has_other_blocks(
        (*TURNS, high), (*LINES, build_block_record(block=1, arm="baseline", load="high"))
    )


def test_starts_are_counted_from_whatever_tells_of_them():
    """The highest number of an arm, from its periods or its warm-ups; 0 for what is attached to."""
    first, second = (build_block_record(block=0, arm="baseline", load="low") for _ in range(2))
    second = msgspec.structs.replace(second, process=3)
    assert count_starts((first, second), ()) == {"baseline": 3}
    assert count_starts((first,), ()) == {"baseline": 0}
