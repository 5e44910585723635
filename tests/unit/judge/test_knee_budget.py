"""What a search may cost and can show: its budget in time, and what is told before it begins."""

import math

import msgspec
import pytest
from knee_searches import FAST, QUICK, arm, find
from tests.builders.knee import (
    PLAN,
    make_plan,
    start_run,
)

from draftproof.judge.compute import compute_results
from draftproof.judge.inform.unmeasured import CLOSED_ONLY, NO_KNEE
from draftproof.judge.knee.compute import describe_outlook
from draftproof.judge.knee.search import replay
from draftproof.judge.knee.trials import read_periods
from draftproof.plan.loading import parse_plan


def test_the_time_budget_ends_a_search_with_what_is_known():
    """A trial that would end after the budget is not begun, and the result says why an end is missing."""
    budget_s = 620
    run, found = find(time_budget_s=budget_s)
    assert found.ended == "budget"
    assert {one.load for one in found.points} == {0.5, 1.0}  # two arms of 200 s, then two of 100 s
    assert 500 < found.spent_s <= budget_s
    # 50 s for the requests in each arm, and what the trial before took beside that.
    assert found.spent_s + 2 * 50 < found.spent_s + found.next_s
    assert found.spent_s + found.next_s > budget_s
    assert arm(found, "baseline").reason == "no further trial fits into the time budget"
    (note,) = [text for text in found.notes if text.startswith("The search ended")]
    assert f"{budget_s - found.spent_s:,.0f} s were left" in note
    assert replay(run.plan, run.items, read_periods(run)).next is None


@pytest.mark.parametrize("budget_s", [450, 640, 900, 1000])
def test_no_search_of_steady_trials_takes_longer_than_its_budget(budget_s):
    """Where trials take what those before them did, the budget is kept whatever it is."""
    _, found = find({"baseline": FAST, "candidate": FAST}, time_budget_s=budget_s, high=4)
    assert found.spent_s <= budget_s
    assert found.points


def test_a_budget_below_the_first_look_measures_nothing_and_says_so():
    """200 s of requests in each of two arms do not fit into five minutes."""
    run, found = find(time_budget_s=300)
    assert not run.blocks
    assert (found.ended, found.points, found.next_s) == ("budget", (), 400.0)
    assert "too small for its first trial" in found.sentence
    assert any("fewer" in text or "300 s were left" in text for text in found.notes)


def test_a_trial_that_was_begun_is_finished_whatever_it_costs():
    """Half a trial in the journal is gone on with, although as a whole it does not fit any more."""
    run, found = find(time_budget_s=620)
    trial = found.periods // 2
    less = run.plan.knee.model_copy(update={"time_budget_s": 500.0})
    kept = [one for one in run.blocks if one.order == 0 or one.block < run.blocks[-1].block]
    part = msgspec.structs.replace(
        run,
        plan=run.plan.model_copy(update={"knee": less}),
        blocks=tuple(kept),
        records=tuple(
            one for one in run.records if (one.block, one.arm) in {(own.block, own.arm) for own in kept}
        ),
    )
    search = replay(part.plan, part.items, read_periods(part))
    assert (len(search.trials), search.ended) == (trial - 1, "unfinished")
    assert search.next is not None


def test_the_outlook_counts_loads_arms_and_the_way_up():
    """Before anything runs the plan says what the search may take and when its window is short."""
    plan = make_plan(**QUICK)
    items = start_run(plan).items
    (first,) = describe_outlook(plan, items)
    climb_min = 2 * sum(max(100, 20 * load) / load for load in (0.5, 1, 2, 4, 8, 16)) / 60
    assert f"{climb_min:.0f} min" in first or f"{climb_min:.1f} min" in first
    assert "6 loads from 0.5 to 16 requests/s, 2 arms" in first
    short = make_plan(PLAN.replace("3000", "30000"), **QUICK)
    assert "5 times" in describe_outlook(short, items)[1]
    assert describe_outlook(parse_plan(PLAN.partition("[knee]")[0]), items) == ()


def test_a_trial_that_can_never_show_its_target_is_told_before_the_run():
    """For 99 % at two trials it takes log(0.0125)/log(0.99) requests; a trial of 300 has fewer."""
    wanted = math.ceil(math.log(0.0125) / math.log(0.99))
    plan = make_plan(on_time_share=0.99, requests=300, trials=2, time_budget_s=80_000)
    items = start_run(plan).items
    (_, told) = describe_outlook(plan, items)
    assert f"{wanted} requests" in told
    assert "one trial at 0.5 requests/s has 300" in told
    assert "before trial 2 of 2" in told
    assert "All trials together have 600 requests" in told
    assert f"set knee.requests = {wanted} at least" in told
    enough = make_plan(on_time_share=0.99, requests=wanted, trials=2, time_budget_s=80_000)
    assert len(describe_outlook(enough, items)) == 1


def test_a_search_of_too_few_prompts_or_too_little_time_is_told_before_the_run():
    """Three prompts judge no load; 400 s of two arms do not fit into 300 s."""
    plan = make_plan(**QUICK | {"time_budget_s": 300})
    prompts, time = describe_outlook(plan, start_run(plan, prompts=3).items)[1:]
    assert "trials ask 3 different prompts" in prompts
    assert "400 s at least" in time


def test_a_search_whose_requests_are_worth_too_few_says_so():
    """At 99 % a queue's requests, all on time, are worth fewer than it takes: no end, a reason, a number."""
    _, found = find(on_time_share=0.99, requests=240, trials=2, low=1, high=2)
    slow = arm(found, "baseline")
    wanted = math.ceil(math.log(0.0125) / math.log(0.99))
    weak = [one for one in found.points if one.arm == "baseline" and one.standing == "open"]
    assert weak
    assert slow.holds is None
    assert f"and {wanted} are the fewest that show 99%" in slow.reason
    assert [one for one in weak if one.share.value >= 0.99]
    for one in weak:
        told = one.reason is not None and f"count as {one.effective:,.0f} independent" in one.reason
        assert told is (one.share.value >= 0.99 and one.effective < wanted)
    assert slow.needed
    assert slow.reason in " ".join(found.notes)


def test_a_search_answers_what_the_levels_of_the_plan_leave_open():
    """A report with a knee does not deny it, and one whose search has not begun does."""
    run, found = find()
    assert found.points
    told = compute_results(run).not_measured
    assert NO_KNEE not in told
    assert CLOSED_ONLY not in told
    assert NO_KNEE in compute_results(start_run(run.plan)).not_measured
