"""A period that the host disturbed is measured once more, right after its block, and none twice more."""

import msgspec
from tests.builders.disturbed import BUSY, QUIET
from tests.builders.records import build_block_record

from draftproof.measure.load.period import Period
from draftproof.measure.run.second_attempts import Repeats

ARMS = ("baseline", "candidate")
TURNS = tuple(
    Period(block=block, load="low", concurrency=1, repeat=0, arm=arm, order=order, item_ids=("a",))
    for block in range(5)
    for order, arm in enumerate(ARMS)
)


def record(block, arm, host=QUIET, **fields):
    return build_block_record(block=block, arm=arm, load="low", host=host, **fields)


def due(repeats, block):
    own = [period for period in TURNS if period.block == block]
    return [(period.arm, period.attempt, period.order) for period in repeats.list_due(own)]


def repeats(*records, **options):
    return Repeats(TURNS, records, lag_limit_ms=50.0, **options)


def test_a_disturbed_period_is_due_again_after_its_block():
    """The same items, under a number of its own behind the block; quiet ones stay as they are."""
    found = repeats(record(0, "baseline"), record(0, "candidate", BUSY))
    assert due(found, 0) == [("candidate", 1, 3)]
    (period,) = found.list_due(TURNS[:2])
    assert period.key == "low/0/0/candidate~1"
    assert msgspec.structs.replace(period, attempt=0, order=1) == TURNS[1]


def test_a_second_attempt_is_the_last():
    """Also where the host disturbed it too."""
    assert due(repeats(record(0, "candidate", BUSY), record(0, "candidate", BUSY, attempt=1)), 0) == []


def test_a_second_attempt_that_was_broken_off_is_gone_on_with():
    """A resumed run takes it up again, beyond any bound on new ones."""
    others = [record(block, "candidate", BUSY) for block in range(2)]
    others += [record(0, "candidate", attempt=1), record(1, "candidate", attempt=1, completed=False)]
    assert due(repeats(*others), 1) == [("candidate", 1, 3)]


def test_a_period_that_did_not_end_is_not_repeated():
    """It is gone on with first."""
    assert due(repeats(record(0, "candidate", BUSY, completed=False)), 0) == []


def test_no_more_than_a_fifth_of_a_load():
    """Two of ten periods: where the host disturbs more, no repeat helps."""
    found = repeats(*(record(block, "candidate", BUSY) for block in range(5)))
    assert [len(found.list_due(TURNS[2 * block : 2 * block + 2])) for block in range(5)] == [1] * 5
    assert len(list(found.list_all_due())) == 5
    for block in range(2):
        found.note(record(block, "candidate", attempt=1))
    assert list(found.list_all_due()) == []


def test_nothing_is_repeated_where_the_plan_says_so():
    """`limits.repeat_disturbed = false`."""
    assert due(repeats(record(0, "candidate", BUSY), is_wanted=False), 0) == []


def test_a_slow_period_on_a_quiet_host_is_not_repeated():
    """However long it took: a candidate that stalls keeps its stalls."""
    slow = record(0, "candidate", started_ns=0, ended_ns=10**13)
    assert due(repeats(slow), 0) == []


def test_periods_of_other_loads_do_not_matter():
    """Those of a knee search, say."""
    others = [
        msgspec.structs.replace(record(block, "candidate", BUSY, attempt=1), load="knee")
        for block in range(5)
    ]
    assert len(due(repeats(record(0, "candidate", BUSY), *others), 0)) == 1
