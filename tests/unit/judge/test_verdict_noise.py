"""The off-versus-off null counts against effects; a forecast says what a plan can never show."""

import msgspec
import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.effects import index_effects, null_difference_at
from draftproof.judge.decide.forecast import forecast_shortfalls
from draftproof.judge.decide.guardrails import pairs_needed_for_margin
from draftproof.judge.results.run import Figure

ARMS = ("baseline", "candidate", "baseline_null")


def truth(*, candidate, null):
    """Return times per token in which two arms differ from the baseline by the given factors."""
    factors = {"candidate": candidate, "baseline_null": null}
    return lambda case: 20.0 * factors.get(case.arm, 1.0)


@pytest.mark.parametrize("null", [0.88, 1 / 0.88])
def test_an_effect_as_large_as_the_null_is_no_gain(world, null):
    """Where two equal arms differ by 14 %, a candidate 15 % faster gains nowhere, whichever is faster."""
    results = decide_run(world(arms=ARMS, tpot_ms=truth(candidate=0.85, null=null)).run())
    assert {cell.status for cell in results.cells} == {"inconclusive"}
    assert {reason.code for cell in results.cells for reason in cell.reasons} >= {"within_noise"}


def test_an_effect_far_beyond_the_null_is_still_a_gain(world):
    """Where two equal arms differ by 4 %, a candidate twice as fast gains everywhere."""
    results = decide_run(world(arms=ARMS, tpot_ms=truth(candidate=0.5, null=1.04)).run())
    assert {cell.status for cell in results.cells} == {"gain"}


def test_a_slowdown_within_the_null_is_no_harm(world):
    """Where two equal arms differ by 14 %, a candidate 12 % slower is not called harmful by its cadence."""
    results = decide_run(world(arms=ARMS, tpot_ms=truth(candidate=1.12, null=0.88)).run())
    assert not any(r.code == "effect_harm" for cell in results.cells for r in cell.reasons)


def test_noise_needs_a_null_and_has_no_direction(world):
    """Without a null arm the noise is 1; with one it is the ratio or its reciprocal, whichever is above 1."""
    assert null_difference_at({}, "tpot_ns", "low") == 1.0
    results = compute_results(world(arms=ARMS, tpot_ms=truth(candidate=1.0, null=0.8)).run())
    found = null_difference_at(index_effects(results.effects), "tpot_ns", "low")
    assert found == pytest.approx(1 / 0.8, rel=0.02)


def test_the_margin_moves_by_the_noise(world):
    """An interval that ends just below the margin is a gain without noise and open with 1 %."""
    thresholds = world().run().plan.thresholds
    figure = Figure(value=0.9, low=0.86, high=0.945)
    assert decide_effect(figure, thresholds) == "gain"
    assert decide_effect(figure, thresholds, 1.01) == "inconclusive"


def test_a_plan_without_checks_is_told_before_it_runs(world):
    """Items without checks, and too few pairs for a margin, are said in words before anything is measured."""
    run = world(has_checks=False, comparison={"quality": "checks"}, thresholds={"failure_margin": 0.02}).run()
    texts = [one.text for one in forecast_shortfalls(run.plan, run.items)]
    assert any(text.startswith("No item has a check") for text in texts)
    missing = pairs_needed_for_margin(0.02, 0.95) - len(run.items)
    assert any("failure_margin = 0.02" in text and f"{missing} more" in text for text in texts)


@pytest.mark.parametrize(("evidence", "told"), [("representative", True), ("synthetic", False)])
def test_a_workload_too_small_for_its_tail_is_told_where_that_withholds_a_gain(world, evidence, told):
    """Forty prompts cannot show p95, whose interval takes fifty: ten more, for representative traffic."""
    run = world(evidence=evidence).run()
    texts = [one.text for one in forecast_shortfalls(run.plan, run.items) if "p95" in one.text]
    assert bool(texts) is told
    assert all("10 more" in text for text in texts)


def test_a_plan_with_enough_of_everything_is_told_nothing(world):
    """Forty checked items against margins of 10 and 15 % leave nothing to say."""
    run = world().run()
    assert forecast_shortfalls(run.plan, run.items) == ()


def test_prompts_without_a_language_are_not_called_absent_languages(world):
    """Where no item names its language, the report does not list languages as absent."""
    run = world().run()
    items = tuple(
        msgspec.structs.replace(item, segments={"task": item.segments["task"]}) for item in run.items
    )
    texts = compute_results(msgspec.structs.replace(run, items=items)).not_measured
    assert "Languages apart: no item says which one it is in." in texts
    assert not any("English" in text for text in texts)
