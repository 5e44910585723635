"""What is said before a run of the processes that each arm will have, and of what they take."""

import pytest

from draftproof.measure.load.period import Period
from draftproof.measure.run.check import describe_processes
from draftproof.plan.schema import Plan


def make_plan(restarts="auto", *, placement="together", evidence="synthetic", **urls) -> Plan:
    arms = {name: {"url": urls[name]} if name in urls else {} for name in ("baseline", "candidate")}
    return Plan.model_validate(
        {
            "name": "outlook",
            "placement": placement,
            "evidence": evidence,
            "load": [{"name": "low", "concurrency": 1}],
            "arms": arms,
            "limits": {"restarts": restarts},
        }
    )


def periods(blocks: int) -> list[Period]:
    return [
        Period(block=block, load="low", concurrency=1, repeat=0, arm=arm, order=0, item_ids=("a",))
        for block in range(blocks)
        for arm in ("baseline", "candidate")
    ]


def test_auto_says_how_many_at_most_and_from_when_on_three():
    """Six blocks, starts of 10 s: up to six processes, two more starts are a quarter of 80 s."""
    (told,) = describe_processes(make_plan(), periods(6), 10.0)
    assert told == (
        "processes: up to 6 of each arm that the run starts (limits.restarts = auto); a start of all takes "
        "10 s and warm-ups, at most a quarter of the run: 3 of each from about 60 s of measuring on"
    )


@pytest.mark.parametrize(("restarts", "count", "cost"), [(0, 1, "10 s"), (2, 3, "30 s"), (50, 6, "60 s")])
def test_a_stated_number_says_what_it_costs(restarts, count, cost):
    """As many as are stated, and no more than there are boundaries."""
    (told,) = describe_processes(make_plan(restarts), periods(6), 10.0)
    assert told.startswith(
        f"processes: {count} of each arm that the run starts (limits.restarts = {restarts})"
    )
    assert f"starts take {cost} and warm-ups" in told


def test_a_load_of_one_block_is_answered_by_one_process():
    """There is nothing to start anew before."""
    (told,) = describe_processes(make_plan(), periods(1), 10.0)
    assert "1 of each arm that the run starts: no load has a second block" in told


def test_arms_that_run_one_at_a_time_are_started_for_their_periods():
    """Whatever limits.restarts says."""
    assert describe_processes(make_plan(0, placement="one_at_a_time"), periods(6), None) == (
        "processes: each arm is started anew for its periods",
    )


def test_what_is_attached_to_cannot_be_started_anew():
    """Both arms, one of them, or both at one address, where one process is enough."""
    own = {"baseline": "http://h:1", "candidate": "http://h:2"}
    (both,) = describe_processes(make_plan(**own), periods(6), None)
    assert "baseline and candidate are attached to and cannot be started anew: one process each" in both
    started, attached = describe_processes(make_plan(baseline="http://h:1"), periods(6), 10.0)
    assert "of each arm that the run starts" in started
    assert "baseline is attached to and cannot be started anew: one process, unless" in attached
    (shared,) = describe_processes(make_plan(baseline="http://h:1", candidate="http://h:1"), periods(6), None)
    assert shared == "processes: baseline and candidate share one, whose luck is in no ratio of the two"
