"""Whole searches against simulated services whose knee is known, and what the journal makes of them."""

from typing import TYPE_CHECKING

import msgspec
import pytest
from knee_searches import FAST, QUICK, SLOW, arm, find, knee_of
from tests.builders.knee import (
    PLAN,
    Service,
    answer_period,
    make_plan,
    search_to_end,
    start_run,
)

from draftproof.judge.knee.search import replay
from draftproof.judge.knee.trials import fell_behind, measure_slowing, read_periods
from draftproof.judge.observe.levels import (
    choose_items,
    knee_levels,
    knee_only,
    plan_trial,
    prompt_of,
    without_knee,
)
from draftproof.judge.observe.run_data import prepare_run

if TYPE_CHECKING:
    from draftproof.core.records import RequestRecord


@pytest.fixture(scope="module")
def searched():
    return find()


def test_the_knee_of_a_simulated_service_lies_in_its_bracket(searched):
    """The slow service's knee of about 3.2 requests/s lies between what holds and what fails."""
    _, found = searched
    slow, fast = arm(found, "baseline"), arm(found, "candidate")
    assert slow.holds <= 3.2 < slow.fails
    assert fast.holds > slow.holds
    assert found.ended == "settled"


def test_the_ratio_of_two_knees_covers_the_truth(searched):
    """Four times as fast, its deadline is four times as many service times: it carries over four times."""
    _, found = searched
    ratio = next(one for one in found.ratios if (one.arm, one.versus) == ("candidate", "baseline"))
    assert ratio.low <= 4.5 <= (ratio.high or 100)


def test_every_arm_of_a_trial_answers_the_same_prompts_due_at_the_same_times(searched):
    """Loads are compared on equal terms: items and arrival times are those of the block, in every arm."""
    run, _ = searched
    by_period: dict[tuple[str, int], dict[str, list[RequestRecord]]] = {}
    for one in run.records:
        if one.phase == "measure":
            by_period.setdefault((one.load, one.block), {}).setdefault(one.arm, []).append(one)
    shared = [arms for arms in by_period.values() if len(arms) == 2]
    assert shared
    for arms in shared:
        first, second = ([one.item_id for one in own] for own in arms.values())
        assert first == second


def test_a_null_arm_at_the_baselines_own_service_trials_last():
    """Before it nobody has asked that service what a trial asks."""
    attached = PLAN.replace(
        "[arms.baseline]", '[arms.baseline]\nengine = "generic"\nurl = "http://127.0.0.1:1"'
    )
    plan = make_plan(attached.replace("null_arm = false", "null_arm = true"))
    run = start_run(plan)
    arms = ("baseline", "candidate", "baseline_null")
    trials = [
        plan_trial(plan, run.items, point=0, number=number, arms=arms, index=number) for number in range(3)
    ]
    assert {trial.block.arm_order[-1] for trial in trials} == {"baseline_null"}


def test_a_search_that_was_broken_off_goes_on_where_it_was(searched):
    """From every prefix of its periods the search takes the same trials as it did without a break."""
    run, found = searched
    order = {(one.block, one.arm): at for at, one in enumerate(run.blocks)}
    for kept in range(0, len(run.blocks), 3):
        part = msgspec.structs.replace(
            run,
            blocks=run.blocks[:kept],
            records=tuple(one for one in run.records if order[one.block, one.arm] < kept),
        )
        trial = replay(part.plan, part.items, read_periods(part)).next
        assert trial is not None
        assert trial.block.index == run.blocks[kept].block
        assert trial.block.load == run.blocks[kept].load
        services = {"baseline": SLOW, "candidate": FAST}
        if kept and run.blocks[kept - 1].block == trial.block.index:
            done = run.blocks[kept - 1].arm
            left = next(name for name in trial.block.arm_order if name != done)
            part = answer_period(part, trial, left, 1, services[left])
        assert msgspec.structs.replace(
            knee_of(search_to_end(part, services)), spent_s=0
        ) == msgspec.structs.replace(found, spent_s=0)


def test_a_period_of_which_something_is_missing_is_gone_on_with(searched):
    """A trial lacks a record, or its period was broken off: it is the next one, and tells nothing before."""
    run, _ = searched
    block = run.blocks[0]
    own = [one for one in run.records if (one.block, one.arm) == (block.block, block.arm)]
    lost = next(one for one in own if one.phase == "measure")
    lacking = msgspec.structs.replace(run, records=tuple(one for one in run.records if one is not lost))
    broken = msgspec.structs.replace(
        run, blocks=(msgspec.structs.replace(block, completed=False), *run.blocks[1:])
    )
    for part in (lacking, broken):
        found = replay(part.plan, part.items, read_periods(part))
        assert (found.ended, found.trials, found.points) == ("unfinished", (), {})
        assert found.next is not None
        assert found.next.block.index == block.block


def test_the_order_of_records_does_not_matter(searched):
    """The same journal backwards gives the same results."""
    run, found = searched
    backwards = msgspec.structs.replace(run, records=run.records[::-1], blocks=run.blocks[::-1])
    assert knee_of(backwards) == found


def test_trials_that_another_version_chose_count(searched):
    """A journal whose second trial is at a load that the search would not take now is read to its end."""
    run, _ = searched
    trial = plan_trial(run.plan, run.items, point=4, number=0, arms=("baseline", "candidate"), index=1)
    first = run.blocks[0].block
    begun = msgspec.structs.replace(
        run,
        blocks=tuple(one for one in run.blocks if one.block == first),
        records=tuple(one for one in run.records if one.block == first),
    )
    trial = msgspec.structs.replace(trial, block=msgspec.structs.replace(trial.block, index=first + 1))
    for order, name in enumerate(trial.block.arm_order):
        begun = answer_period(begun, trial, name, order, FAST)
    search = replay(begun.plan, begun.items, read_periods(begun))
    assert [one.load for one in search.trials] == [0.5, 8.0]
    assert search.next is not None
    assert search.next.load == 16.0  # both hold 8, so nothing below it is left to tell


def test_a_trial_without_one_arm_counts_once_the_journal_goes_on(searched):
    """Where a version before asked fewer arms at a load, its later trials are read all the same."""
    run, found = searched
    gone = next(one for one in run.blocks if one.order == 1)
    kept = msgspec.structs.replace(
        run,
        blocks=tuple(one for one in run.blocks if one is not gone),
        records=tuple(one for one in run.records if (one.block, one.arm) != (gone.block, gone.arm)),
    )
    search = replay(kept.plan, kept.items, read_periods(kept))
    assert len(search.trials) == len({one.block for one in run.blocks})
    assert sum(len(one.periods) for one in search.points.values()) == found.periods - 1


def test_an_oversaturated_load_fails_at_once():
    """A deadline that no queue of one trial reaches does not hide that the service falls behind."""
    plan = make_plan(PLAN.replace("e2e_ms = 3000", "e2e_ms = 3000000"), **QUICK)
    _, found = find(plan=plan)
    failed = [one for one in found.points if one.arm == "baseline" and one.standing == "fails"]
    assert failed
    assert all(one.trials == 1 and "grew" in one.saturated for one in failed)
    assert min(one.load for one in failed) >= 4


def test_a_queue_that_the_lead_made_long_falls_behind_by_its_steady_growth():
    """From 360 to 605 in flight is no doubling: what comes and stays, and what takes ever longer, say it."""
    assert fell_behind(320, 75, (360, 605), slowing=3.0)
    assert not fell_behind(320, 75, (360, 605), slowing=0.0)  # slow answers that the lead did not wait for
    assert not fell_behind(320, 300, (360, 380), slowing=3.0)
    assert fell_behind(320, 75, (100, 345))


def test_requests_of_a_queue_without_end_take_longer_and_longer(searched):
    """At 8 requests/s a service of 4 makes each second of arrivals a second longer; at 1 it does not."""
    run, _ = searched
    heavy = msgspec.structs.replace(run, records=(), blocks=())
    slowing = {}
    for index, point in enumerate((1, 4)):
        trial = plan_trial(run.plan, run.items, point=point, number=0, arms=("baseline",), index=index)
        one = answer_period(heavy, trial, "baseline", 0, SLOW)
        seen = [own for own in prepare_run(knee_only(one)).observations if own.record.phase == "measure"]
        slowing[point] = measure_slowing(
            sorted((own.record for own in seen), key=lambda own: own.scheduled_ns)
        )
    assert abs(slowing[1]) < 0.1
    assert 0.5 < slowing[4] < 1.5
    assert measure_slowing(()) == 0.0


def test_failures_of_more_than_half_end_a_climb():
    """A service that refuses above a load fails there, whatever the requests that it answers look like."""
    refusing = Service(slots=64, service_s=0.1, fails=lambda load: load >= 4)
    _, found = find({"baseline": refusing, "candidate": FAST})
    slow = arm(found, "baseline")
    assert (slow.holds, slow.fails) == (2.0, 4.0)
    assert "failed" in next(one for one in found.points if one.load == 4 and one.arm == "baseline").saturated


def test_a_curve_that_is_not_monotone_counts_up_to_its_lowest_failure():
    """A service that fails in the middle is held only below, with a note."""
    odd = Service(slots=64, service_s=0.1, fails=lambda load: load == 1)
    _, found = find({"baseline": odd, "candidate": FAST})
    assert (arm(found, "baseline").holds, arm(found, "baseline").fails) == (0.5, 1.0)


def test_no_load_that_holds_says_to_trial_lower_and_none_that_fails_to_trial_higher():
    """Both ends of the grid give the reason and the fix, and no number."""
    _, found = find({"baseline": Service(service_s=9.0), "candidate": Service(slots=64, service_s=0.1)})
    slow, fast = arm(found, "baseline"), arm(found, "candidate")
    assert slow.holds is None
    assert "lower low" in slow.reason
    assert fast.fails is None
    assert "higher high" in fast.reason
    assert slow.conversations_per_device_hour.value is None


def test_trials_of_a_late_client_count_for_nothing():
    """Where the client itself was late nothing is known of the service, and the notes say so."""
    late = Service(slots=4, service_s=0.25, late_s=9.0)
    _, found = find({"baseline": SLOW, "candidate": late})
    rows = [one for one in found.points if one.arm == "candidate"]
    assert all(
        one.standing == "open" and one.invalid_trials == one.trials and one.attempted == 0 for one in rows
    )
    assert arm(found, "candidate").holds is None
    assert any("client itself" in note for note in found.notes)


def test_too_few_prompts_show_nothing():
    """Copies of a few prompts are no sample: below the floor of prompts every load stays open."""
    _, found = find(prompts=3)
    held = [one for one in found.points if one.standing == "holds"]
    assert not held
    assert "3 prompts" in next(one for one in found.points if one.standing == "open").reason


def test_requests_in_flight_are_an_axis_too():
    """In a closed loop the load is whole, and the deadline decides alone."""
    _, found = find(axis="concurrency", low=1, high=32)
    assert found.unit == "in flight"
    assert arm(found, "baseline").holds >= 4
    assert arm(found, "baseline").fails <= 32
    assert all(one.saturated is None for one in found.points)


def test_what_is_open_says_how_many_more_requests_it_takes():
    """An open load has a number of requests; one that is told has none."""
    _, found = find(points_per_doubling=4, low=2, high=8)
    opened = [one.share.needed for one in found.points if one.standing == "open" and one.share.value != 0.95]
    assert opened
    assert all(needed is None or needed > 0 for needed in opened)
    assert all(one.share.needed is None for one in found.points if one.standing != "open")


def test_figures_of_a_load_follow_from_its_requests(searched):
    """Goodput is good requests over the window, conversations the same per hour and device."""
    _, found = searched
    row = next(one for one in found.points if one.load == 1.0 and one.arm == "candidate")
    assert row.goodput_rps == pytest.approx(row.good / row.window_s)
    assert row.conversations_per_device_hour.value == pytest.approx(3600 * row.goodput_rps)
    assert 0.7 < row.goodput_rps < 1.4


def test_what_keeps_the_load_up_takes_its_part_of_the_window(searched):
    """Fills that end among the counted requests leave them the less of the time, the more there are."""
    run, _ = searched
    before = read_periods(run)
    key, period = next((key, period) for key, period in before.items() if period.saturated is None)
    own = [one for one in run.records if (one.load, one.block, one.arm) == key]
    counted = [one for one in own if one.phase == "measure"]
    ended = sum(period.from_ns < one.end_ns <= period.end_ns for one in own)
    fills = [
        msgspec.structs.replace(one, phase="fill", request_id=f"{one.request_id}#{copy}")
        for copy, one in enumerate(counted)
    ]
    after = read_periods(msgspec.structs.replace(run, records=(*run.records, *fills)))[key]
    length_ns, n = period.end_ns - period.from_ns, len(counted)
    assert period.filled_ns == pytest.approx(length_ns * n / ended)
    assert after.filled_ns == pytest.approx(length_ns * n / (ended + n))


def test_devices_of_the_budget_divide_conversations():
    """An arm of four devices has a quarter of the conversations per device."""
    plan = make_plan(PLAN.replace("[arms.candidate]", "[arms.candidate]\ndevices = 4"), **QUICK)
    _, found = find(plan=plan)
    row = next(one for one in found.points if one.load == 1.0 and one.arm == "candidate")
    assert row.conversations_per_device_hour.value == pytest.approx(900 * row.goodput_rps)


def test_nothing_of_the_search_enters_the_cells_of_the_verdict(searched):
    """A verdict is computed from the plan's levels; the search leaves no record, period or warning there."""
    run, _ = searched
    prepared = prepare_run(run)
    assert prepared.observations == ()
    assert prepared.periods == {}
    assert prepared.warnings == ()
    assert not without_knee(run).records


def test_a_plan_without_a_search_keeps_every_record(searched):
    """An old run with a level of such a name is no search."""
    run, _ = searched
    plan = run.plan.model_copy(update={"knee": None})
    assert without_knee(msgspec.structs.replace(run, plan=plan)).records == run.records
    assert knee_of(msgspec.structs.replace(run, plan=plan)) is None
    assert knee_levels(plan) == frozenset()


def test_a_trial_asks_each_prompt_about_equally_often(searched):
    """A trial of more requests than prompts repeats them under names of their own."""
    run, _ = searched
    chosen = choose_items(run.items, 1, 100, seed=1)
    times: dict[str, int] = {}
    for one in chosen:
        times[prompt_of(one.id)] = times.get(prompt_of(one.id), 0) + 1
    assert len({one.id for one in chosen}) == 100
    assert set(times) == {item.id for item in run.items}
    assert set(times.values()) == {2, 3}


def test_two_trials_ask_other_prompts_where_there_are_others(searched):
    """The second trial goes on in the drawn order where the first one ended."""
    run, _ = searched
    first, second = (choose_items(run.items, number, 20, seed=1) for number in (0, 1))
    assert not {prompt_of(one.id) for one in first} & {prompt_of(one.id) for one in second}


@pytest.mark.slow
def test_brackets_cover_the_true_knee_at_the_stated_confidence():
    """Of searches with other seeds at most one in twenty misses the knee of a service that is known.

    The truth is the share of requests on time over very many periods of the same length.
    """
    missed = total = 0
    for seed in range(40):
        plan = make_plan(seed=seed, requests=200, trials=2, low=0.55, high=18, time_budget_s=80_000)
        _, found = find({"baseline": SLOW, "candidate": SLOW}, plan=plan)
        for one in found.arms:
            total += 1
            missed += (one.holds or 0) > 3.25 or (one.fails or 100) <= 3.1
    assert missed <= 0.05 * total
