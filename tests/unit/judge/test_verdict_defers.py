"""A run defers where no gain shows and one could have shown; else it is inconclusive and says what hid it."""

from itertools import product

import msgspec
import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.order import warn_about_order
from draftproof.judge.decide.samples import default_question, plan_samples
from draftproof.judge.decide.spreads import list_obstacles, read_earlier
from draftproof.judge.observe.attempts import Attempts, HostEvent
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.decide import Figure

ARMS = ("baseline", "candidate", "baseline_null")


def slower(factor):
    """Return times of which the candidate's are `factor` times the baseline's."""
    return lambda case: 20.0 * (factor if case.arm == "candidate" else 1.0)


def null_off(case):
    return {"baseline_null": 24.0, "candidate": 22.0}.get(case.arm, 20.0)


def samples_of(run):
    return plan_samples(run.plan, run.items, default_question(run.plan), read_earlier(prepare_run(run)))


def disturb(prepared, periods):
    """Return a run in which the host disturbed the first periods of a load, and what was measured counts."""
    event = HostEvent(kind="foreign", amount=1.9)
    attempts = tuple(
        Attempts(load=load, block=block, arm=arm, first=(event,), second=None, counts=0)
        for load, block, arm in list(prepared.periods)[:periods]
    )
    return msgspec.structs.replace(prepared, attempts=attempts)


def test_equal_arms_on_a_quiet_host_defer(world):
    """Intervals of a percent around 1 leave no gain open: the decision is to defer."""
    assert decide_run(world(arms=ARMS).run()).decision == "defer"


def test_a_harm_defers_whatever_equal_arms_differ_by(world):
    """Twice the time is no gain, though two equal arms are 20 % apart."""

    def times(case):
        return 40.0 if case.arm == "candidate" else null_off(case)

    assert decide_run(world(arms=ARMS, tpot_ms=times).run()).decision == "defer"


def test_intervals_too_wide_for_a_gain_are_inconclusive(world):
    """Estimates above 1 of intervals that hold a gain of 10 % do not defer; the prompts it takes are said."""
    run = world(arms=ARMS, tpot_ms=slower(1.1), noise=0.45, items_per_segment=12).run()
    results = compute_results(run)
    assert all((one.effect.low or 1) < 0.9 < (one.effect.value or 0) for one in results.cells)
    assert results.verdict.decision == "inconclusive"
    assert "more prompts" in results.verdict.sentence


def test_a_null_as_large_as_the_gain_is_inconclusive_and_named_first(world):
    """Equal arms 20 % apart hide a gain of 10 %, even where the candidate is midway between them."""
    run = world(arms=ARMS, tpot_ms=null_off).run()
    results = compute_results(run)
    assert {cell.status for cell in results.cells} == {"neutral"}
    assert results.verdict.decision == "inconclusive"
    assert "in 4 of 4 cells it is open" in results.verdict.sentence
    assert "equal services differ by 20" in results.verdict.sentence
    obstacle = next(one for one in results.verdict.reasons if one.code == "obstacle")
    assert obstacle.evidence.startswith("effects: baseline_null / baseline, all × ")
    assert "equal services differ by 20" in samples_of(run).sentence


@pytest.mark.parametrize(("factor", "noise", "items"), list(product((1.0, 1.05), (0.02, 0.1, 0.3), (6, 20))))
def test_a_run_that_defers_lacks_nothing_that_samples_asks_for(world, factor, noise, items):
    """Most cells of a deferral have enough prompts for the gain asked for, or leave none of it open."""
    run = world(arms=ARMS, tpot_ms=slower(factor), noise=noise, items_per_segment=items).run()
    results, found = compute_results(run), samples_of(run)
    gains = {(one.segment, one.load): one for one in found.needs if one.aim == "gain"}
    enough = [
        cell.status == "harm"
        or gains[cell.segment, cell.load].more == 0
        or (cell.effect.low or 0) >= 0.9 * gains[cell.segment, cell.load].null_difference
        for cell in results.cells
    ]
    assert (results.verdict.decision == "defer") <= (2 * sum(enough) > len(enough))


@pytest.mark.parametrize(("periods", "is_named"), [(10, False), (60, True)])
def test_a_host_that_disturbs_more_than_a_fifth_of_a_load_is_named_first(world, periods, is_named):
    """Of 60 periods of a load 60 disturbed ones count and are what to mend first, 10 are not."""
    run = world(arms=ARMS, loads=(("low", 1),), tpot_ms=slower(1.1), noise=0.45).run()
    prepared = disturb(prepare_run(run), periods)
    earlier = read_earlier(prepared, pair_observations(prepared))
    found = plan_samples(run.plan, run.items, default_question(run.plan), earlier)
    first = list_obstacles(found, [(one.segment, one.load) for one in found.needs if one.aim == "gain"])[0]
    named = first.text.startswith(f"The host disturbed {periods} of 60 periods at load low")
    assert (named, found.sentence.startswith(first.text)) == (is_named, is_named)


def test_a_null_that_does_not_hold_one_is_a_warning(world):
    """1.03 to 3.98 alone does not hold 1, though it does jointly; of others the joint one counts."""
    run = world(arms=ARMS, loads=(("low", 1),)).run()
    order, thresholds = compute_results(run).order, run.plan.thresholds
    alone, joint = Figure(value=2.02, low=1.03, high=3.98), Figure(value=2.02, low=0.9, high=4.5)
    assert order is not None
    noise = tuple(msgspec.structs.replace(one, null=alone, joint=joint) for one in order.noise)
    order = msgspec.structs.replace(order, noise=noise)
    (told,) = warn_about_order(order, thresholds, 0.95, "tpot_ns")
    assert "time per token, null / baseline, is 2.02 (1.03 to 3.98)" in told


def test_a_deferral_says_in_how_many_cells_no_gain_could_have_shown(world):
    """Three quiet cells defer; the fourth, too noisy for a gain of 10 %, is not passed over in silence."""

    def times(case):
        wild = (0.5, 1.6)[case.number % 2] if (case.segment, case.load) == ("chat", "high") else 1.0
        return 20.0 * (wild if case.arm == "candidate" else 1.0)

    verdict = compute_results(world(arms=ARMS, tpot_ms=times).run()).verdict
    assert verdict.decision == "defer"
    assert "though 1 of 4 cells could not have shown it" in verdict.sentence


def test_an_invalid_cell_asks_for_no_prompts(world):
    """Of two prompts six are wanted; where the client was late no number of them mends it, in no table."""

    def late(case):
        return 500.0 if case.load == "high" else 1.0

    results = compute_results(world(arms=ARMS, lag_ms=late, items_per_segment=2).run())
    tables = (*results.effects, *results.tail_effects)
    asked: dict[str, set[int | None]] = {one.load: set() for one in results.cells}
    for one in tables:
        asked[one.load] |= {one.ratio.needed, one.simultaneous.needed}
    for cell in results.cells:
        asked[cell.load].add(cell.effect.needed)
    assert {one.status for one in results.cells if one.load == "high"} == {"invalid"}
    assert asked["high"] == {None}
    assert 4 in asked["low"]
