"""From waves of known truth to step costs, drift, and drafting apart from verification."""

import math
import re

import msgspec
import pytest
from cost_builders import build_waves, known

from draftproof.explore.estimate import (
    NONE_PAYS,
    acceptance_figure,
    drift_error,
    estimate_drifts,
    estimate_splits,
    estimate_steps,
    list_assumptions,
    list_warnings,
    step_values,
)
from draftproof.judge.metrics.acceptance import expected_tokens
from draftproof.judge.results.run import Figure
from draftproof.judge.stats.totals import median_ratio


def test_ratio_and_acceptance_are_those_of_the_truth():
    """4 drafts at batch 1 take 1.6 ordinary steps, at batch 8 2.7; the acceptance solves equation 1."""
    steps = {(one.draft_length, one.batch, one.drafting): one for one in estimate_steps(build_waves())}
    for batch, ratio in ((1, 1.6), (8, 2.7)):
        step = steps[4, batch, "own"]
        assert step.ratio.value == pytest.approx(ratio, rel=0.02)
        assert known(step.ratio.low) < ratio < known(step.ratio.high)
        needed = known(step.acceptance.value)
        assert expected_tokens(needed, 4) == pytest.approx(step.ratio.value)
        assert known(step.acceptance.low) < needed < known(step.acceptance.high)
        assert (step.waves, step.requests, step.note) == (4, 4 * batch, None)
    assert steps[0, 1, "own"].waves == 8
    assert steps[0, 1, "own"].ratio.value == 1.0


def test_no_acceptance_pays_is_said_and_has_no_number():
    """A ratio above K + 1 has no break-even; a limit above it is None while the value stands."""
    dear = acceptance_figure(Figure(value=2.4, low=2.1, high=2.6, level=0.95, n=9), 1)
    assert (dear.value, dear.low, dear.high, dear.reason) == (None, None, None, NONE_PAYS)
    near = acceptance_figure(Figure(value=1.8, low=1.5, high=2.2, level=0.95, n=9), 1)
    assert [near.value, near.low] == pytest.approx([0.8, 0.5])
    assert near.high is None


def test_drift_is_told_and_widens_the_intervals():
    """The last ordinary start 20 % slower: a warning with the batch, wider ratios; 1 % is no warning."""
    steady, drifting = build_waves(), build_waves(drift=1.2)
    assert [one.is_large for one in estimate_drifts(build_waves(drift=1.01))] == [False, False]
    assert [one.ratio for one in estimate_drifts(drifting)] == [pytest.approx(1.2, rel=0.02)] * 2
    narrow, wide = (estimate_steps(waves)[2].ratio for waves in (steady, drifting))
    assert known(wide.high) / known(wide.low) > 1.1 * known(narrow.high) / known(narrow.low)
    (warning,) = list_warnings(estimate_steps(drifting), estimate_drifts(drifting), ())
    assert re.search(r"by \+2\d% at batch 1, \+2\d% at batch 8:", warning)
    assert list_warnings(estimate_steps(steady), estimate_drifts(steady), ()) == ()


def test_half_of_the_drift_is_added_to_the_error_of_a_ratio():
    """A move of 20 % adds log(1.2) / 2, and the interval is wider than that of the waves alone."""
    waves = build_waves(drift=1.2)
    assert drift_error(waves, 1) == pytest.approx(math.log(1.2) / 2, rel=0.05)
    step = next(one for one in estimate_steps(waves) if one.draft_length == 4 and one.batch == 1)
    alone = median_ratio(step_values(waves.select(4, 1)), step_values(waves.select(0, 1)), seed=1)
    assert known(step.ratio.low) < known(alone.low)
    assert known(step.ratio.high) > known(alone.high)


def test_drafts_that_were_not_all_made_are_noted():
    """Half the drafts missing: the step is cheaper than a full one, and the row says so."""
    steps = estimate_steps(build_waves(drafted_share=0.5))
    assert {one.note is None for one in steps if one.draft_length} == {False}
    assert "only 2.00 of 4 tokens" in str(next(one.note for one in steps if one.draft_length == 4))


def test_lookup_steps_tell_drafting_from_checking():
    """Drafter's step − lookup's step = drafting; lookup's step − ordinary step = checking."""
    splits = {(one.draft_length, one.batch): one for one in estimate_splits(build_waves())}
    split = splits[4, 8]
    assert split.source == "ngram"
    assert split.draft_ns.value == pytest.approx(2e6, abs=1e6)
    assert split.verification_ns.value == pytest.approx(32e6, abs=1e6)
    assert known(split.draft_ns.low) <= 2e6 <= known(split.draft_ns.high)


@pytest.mark.parametrize(
    ("told", "source"), [({"rounds": True}, "rounds"), ({"timer": True}, "device_timer")]
)
def test_an_engine_that_tells_its_drafting_needs_no_lookup(told, source):
    """The engine's own time is drafting; what is left beyond an ordinary step is checking."""
    splits = {
        (one.draft_length, one.batch): one for one in estimate_splits(build_waves(with_lookup=False, **told))
    }
    split = splits[4, 1]
    assert (split.source, split.draft_ns.value) == (source, 2e6)
    assert split.verification_ns.value == pytest.approx(4e6, rel=0.1)


def test_longest_drafting_that_pays_at_the_acceptance_asked_for():
    """At an acceptance of 50 % a step of 4 drafts commits 1.9375 tokens: 19.4 ms less 14 ms of checking."""
    splits = {(one.draft_length, one.batch): one for one in estimate_splits(build_waves())}
    assert splits[4, 1].draft_limit_ns.value == pytest.approx(5.4e6, abs=0.6e6)
    assert splits[4, 8].draft_limit_ns.value is None
    assert "no drafting is quick enough" in str(splits[4, 8].draft_limit_ns.reason)


def test_a_candidate_that_looks_up_is_all_checking_and_a_silent_engine_has_no_split():
    """A lookup's own time is taken for none and said so; without any source there is no split, not a zero."""
    lookup = build_waves(with_lookup=False, is_lookup=True)
    splits = estimate_splits(lookup)
    assert {one.draft_ns.value for one in splits} == {0.0}
    assert any("next to none" in text for text in list_assumptions(splits, is_lookup=True, from_rounds=False))
    assert estimate_splits(build_waves(with_lookup=False)) == ()


def test_few_waves_have_no_interval():
    """Two waves a combination: values stand, intervals are None with the reason."""
    waves = build_waves()
    few = {(cost.start, cost.batch): cost for cost in waves.costs}
    step = estimate_steps(msgspec.structs.replace(waves, costs=tuple(few.values())))[2]
    assert (step.ratio.low, step.ratio.high) == (None, None)
    assert "three waves" in str(step.ratio.reason)


def test_the_same_waves_give_the_same_figures():
    """Nothing is drawn without the seed."""
    assert estimate_steps(build_waves()) == estimate_steps(build_waves())
