"""Figures of the results: floors, percentiles, agreement, estimators, diagnosis and what was not measured."""

import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.effects import derive_seed
from draftproof.judge.decide.equivalence.greedy import find_divergence
from draftproof.judge.decide.guardrails import pairs_needed_for_margin
from draftproof.judge.metrics.request import end_to_end_gain
from draftproof.judge.stats.shares import paired_share_difference


def test_below_the_floor_a_cell_has_no_effect_and_says_what_it_needs(world, lookup):
    """Four prompts where six are asked for: None, two more needed, and no decision is based on it."""
    results = compute_results(world(items_per_segment=4).run())
    effect = lookup.effect(results, "tpot_ns", segment="rewriting", load="low")
    assert effect.ratio.value is None
    assert effect.ratio.needed == 2
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "inconclusive"
    assert "no_effect_estimate" in lookup.codes(cell)
    assert results.verdict.decision == "inconclusive"


def test_a_percentile_below_its_floor_is_none_with_the_number_missing(world, lookup):
    """Twenty requests give a median and no p99."""
    cell = lookup.arm_cell(compute_results(world().run()), "baseline", "rewriting", "low")
    assert cell.tpot.p50.value == pytest.approx(20e6, rel=0.05)
    assert cell.tpot.p99.value is None
    assert cell.tpot.p99.needed == 348


def test_failures_count_as_infinite_and_the_successes_stand_beside(world, lookup):
    """With 60 % failures the median is infinite; the median of the successes is shown next to it."""
    broken = world(
        outcome=lambda case: "timeout" if case.arm == "candidate" and case.number % 5 < 3 else "ok"
    )
    cell = lookup.arm_cell(compute_results(broken.run()), "candidate", "rewriting", "low")
    assert cell.e2e.p50.value is None
    assert cell.e2e.p50.low is not None
    assert cell.e2e.ok_p50.value is not None
    assert cell.outcomes == {"ok": 8, "timeout": 12}
    assert cell.checks.judged == 20
    assert cell.checks.passed == 8


def test_simultaneous_intervals_are_wider_and_pooled_ones_are_not_in_the_family(world, lookup):
    """Four cells make each joint interval wider than the single one; "all" has none of its own."""
    results = compute_results(world().run())
    effect = lookup.effect(results, "tpot_ns", segment="chat", load="high")
    assert effect.simultaneous.low < effect.ratio.low
    assert effect.simultaneous.high > effect.ratio.high
    pooled = lookup.effect(results, "tpot_ns", segment="all", load="high")
    assert pooled.ratio.low is not None
    assert pooled.simultaneous.low is None
    assert pooled.prompts == 40


def test_the_length_of_answers_is_compared_by_its_mean(world, lookup):
    """A plan that compares medians of times still compares mean lengths."""
    results = compute_results(world(comparison={"statistic": "p50"}).run())
    length = lookup.effect(results, "output_tokens", segment="chat", load="low")
    rate = lookup.effect(results, "tpot_ns", segment="chat", load="low")
    assert (length.statistic, rate.statistic) == ("mean", "p50")


def test_acceptance_and_progress_are_pooled_by_arm(world, lookup):
    """Two accepted drafts a step of 30 ms: acceptance length 3, and 10 ms per committed token."""
    slow = world(round_ms=lambda case: 30.0 if case.arm == "candidate" else 20.0)
    results = compute_results(slow.run())
    candidate = lookup.arm_cell(results, "candidate", "all", "low")
    assert candidate.acceptance.mean_acceptance_length == pytest.approx(3.0)
    assert candidate.progress.time_per_committed_token_ns == pytest.approx(10e6, rel=0.05)
    assert lookup.arm_cell(results, "baseline", "all", "low").progress.draft_ns == 0.0


def test_agreement_beyond_the_null_is_said(world):
    """A candidate that differs on every item while the null differs on none is beyond the null."""

    def text(case):
        return "yes, but" if case.arm == "candidate" else "yes"

    results = compute_results(world(arms=world.ALL_ARMS, text=text).run())
    rows = {(row.arm, row.load): row for row in results.agreements}
    assert rows["candidate", "low"].identical == 0
    assert set(rows["candidate", "low"].first_divergence_tokens) == {3}
    assert rows["candidate", "low"].statement == (
        "40 of 40 outputs differ from the baseline's, 0 of the null's: beyond what two equal services show."
    )
    assert rows["baseline_null", "low"].identical_share.value == 1.0


def test_differences_that_the_null_shows_too_are_not_held_against_the_candidate(world):
    """Where two equal arms differ as often as the candidate, its disagreement is not beyond the null."""

    def text(case):
        differs = case.arm in ("candidate", "baseline_null") and case.number % 2
        return "yes, but" if differs else "yes"

    results = compute_results(world(arms=world.ALL_ARMS, text=text).run())
    row = next(row for row in results.agreements if row.arm == "candidate")
    assert row.identical == 20
    assert row.statement == (
        "20 of 40 outputs differ from the baseline's, 20 of the null's: "
        "not shown to be beyond what two equal services show."
    )


def test_sampled_items_are_not_compared_word_for_word(world):
    """Sampled outputs may differ rightly, so agreement covers none of them."""
    results = compute_results(world(temperature=0.7).run())
    assert {row.compared for row in results.agreements} == {0}
    assert results.agreements[0].identical_share.reason is not None
    assert any("repeated draws" in text for text in results.not_measured)


@pytest.mark.parametrize(
    ("first", "second", "position"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (), None)],
)
def test_the_first_divergence_is_found(first, second, position):
    """The index of the first differing token; a prefix differs where it ends."""
    assert find_divergence(first, second) == position


def test_rival_estimators_disagree_under_speculation(world):
    """With equal time per token and three tokens a chunk, raw gaps look about three times as long."""
    rows = compute_results(world(noise=0.0).run()).estimators
    by_name = {(row.load, row.estimator): row for row in rows}
    assert by_name["low", "tpot_ns"].ratio_mean == pytest.approx(1.0, abs=0.01)
    assert by_name["low", "chunk_gap"].ratio_mean == pytest.approx(3.0, rel=0.2)


def test_the_diagnosis_states_bound_and_ceiling(world):
    """A baseline that spends 88 % on decoding is decode-bound, and the ceiling follows from that share."""
    run = world(noise=0.0, tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0).run()
    row = compute_results(run).diagnosis[0]
    assert row.bound == "decode-bound"
    assert row.decode_share == pytest.approx(780 / 879, rel=1e-3)
    assert row.ceiling_gain == pytest.approx(end_to_end_gain(780 / 879, None))
    assert row.predicted_gain == pytest.approx(880 / 490, rel=5e-3)
    assert row.measured_gain == pytest.approx(880 / 490, rel=1e-3)


def test_a_long_prompt_makes_a_service_prefill_bound(world):
    """Where the first token takes most of the time, the diagnosis says that speculation does not reach it."""
    row = compute_results(world(ttft_ms=lambda _: 5000.0).run()).diagnosis[0]
    assert row.bound == "prefill-bound"
    assert "speculation does not shorten" in row.text


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.1])
def test_the_pairs_needed_for_a_margin_are_those_of_tango(margin):
    """With the stated number of concordant pairs the interval is inside the margin, one less is too few."""
    enough = pairs_needed_for_margin(margin, 0.95)
    assert paired_share_difference(0, 0, 0, enough, 0.95).high <= margin
    assert paired_share_difference(0, 0, 0, enough - 1, 0.95).high > margin


def test_no_number_of_pairs_shows_a_margin_of_zero():
    """A margin of nothing is refused, because no sample shows it."""
    with pytest.raises(ValueError, match="cannot be shown"):
        pairs_needed_for_margin(0.0, 0.95)


def test_seeds_depend_on_what_is_resampled():
    """Two cells never share a seed by accident of joining their names."""
    assert derive_seed(1, "a", "b") == derive_seed(1, "a", "b")
    assert len({derive_seed(1, "a", "b"), derive_seed(1, "ab"), derive_seed(2, "a", "b")}) == 3


def test_what_was_not_measured_is_computed_from_the_run(world):
    """English items only and two loads: two languages are missing and no single load is complained of."""
    texts = compute_results(world(items_per_segment=8).run()).not_measured
    assert "Languages without an item in this run: Arabic, Chinese." in texts
    assert not any("Any load but one" in text for text in texts)
    single = compute_results(world(items_per_segment=8, loads=(("low", 1),)).run()).not_measured
    assert any("Any load but one" in text for text in single)
