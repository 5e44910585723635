"""The error that the requests of a period share: found where it is, nought where it is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.bootstrap import paired_ratio
from draftproof.judge.stats.periods import (
    PeriodSpread,
    count_spread,
    period_spread,
    stretch_for_periods,
    widen_by_periods,
    widen_count,
)


def draw_ratios(seed, *, period, blocks=40, prompts=8, prompt=0.1):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(blocks), prompts)
    return rng.normal(0, period, blocks)[labels] + rng.normal(0, prompt, len(labels)), labels


def test_the_variance_component_is_that_of_a_balanced_analysis_of_variance():
    """By hand: means 1, 3, 5 of two values each; MSW = 2, MSB = 8, its median right by 2/(2 ln 2)."""
    values, blocks = [0.0, 2.0, 2.0, 4.0, 4.0, 6.0], [1, 1, 2, 2, 3, 3]
    found = period_spread(values, blocks, ["a"] * 6)
    assert found is not None
    assert found.variance == pytest.approx((8.0 / math.log(2.0) - 2.0) / 2.0)
    assert found.blocks == 3


def test_a_count_spreads_as_the_same_values_written_out():
    """Counts that are not 0, with the sizes of the blocks, tell what all values tell."""
    rng = np.random.default_rng(8)
    blocks = np.repeat(np.arange(6), 10)
    values = (rng.random(60) < 0.2).astype(float) - (rng.random(60) < 0.1)
    told = values != 0
    listed = count_spread(values[told], blocks[told], np.full(6, 10.0))
    whole = period_spread(values, blocks, blocks * 0)
    assert listed is not None
    assert whole is not None
    assert listed.variance == pytest.approx(whole.variance)


def test_a_count_of_one_block_says_little_and_one_of_all_blocks_its_number():
    """Twelve failures in one block of six have a variance beyond 12 squared; two in each keep 12."""
    sizes = np.full(6, 20.0)
    together = count_spread(np.ones(12), np.zeros(12, dtype=np.intp), sizes)
    apart = count_spread(np.ones(12), np.repeat(np.arange(6), 2), sizes)
    assert widen_count(12.0, together, sizes, 0.025) > 144.0
    assert widen_count(12.0, apart, sizes, 0.025) == 12.0


def test_two_blocks_tell_nothing_of_a_count():
    """Below three blocks the spread of a count is not known, and nothing is widened."""
    sizes = np.full(2, 20.0)
    assert count_spread(np.ones(4), np.zeros(4, dtype=np.intp), sizes) is None
    assert widen_count(4.0, None, sizes, 0.025) == 4.0


def test_halves_of_an_interval_are_stretched_by_the_variance_of_periods():
    """A half of z·0.1 and periods of 0.01 at so many degrees of freedom that t is z: z·√0.02."""
    value, error = 2.0, 0.1
    reach = float(stats.norm.isf(0.025))
    plain = paired_ratio(np.full(9, value), np.ones(9), np.arange(9))
    plain = replace(plain, low=value * math.exp(-reach * error), high=None, n_clusters=10**9)
    found = stretch_for_periods(plain, 0.01, error, degrees=10**9)
    assert found.low == pytest.approx(value * math.exp(-reach * math.sqrt(0.02)))
    assert found.high is None
    assert stretch_for_periods(plain, 0.0, error, degrees=5) is plain


def test_the_spread_between_periods_is_given_back():
    """With 400 blocks the estimate is the variance that was drawn; without one it is near nought."""
    values, blocks = draw_ratios(1, period=0.05, blocks=400)
    drawn = period_spread(values, blocks, blocks * 0)
    assert drawn is not None
    assert drawn.variance == pytest.approx(0.0025, rel=0.2)
    values, blocks = draw_ratios(2, period=0.0, blocks=400)
    without = period_spread(values, blocks, blocks * 0)
    assert without is not None
    assert without.variance < 0.0003


def test_segments_of_different_effect_are_no_periods():
    """A segment that gains and one that loses, both in every block, leave nothing between blocks."""
    values, blocks = draw_ratios(3, period=0.0)
    segments = np.where(np.arange(len(values)) % 2 == 0, "a", "b")
    shifted = values + np.where(segments == "a", -1.0, 1.0)
    plain, moved = (period_spread(one, blocks, segments) for one in (values, shifted))
    assert plain is not None
    assert moved is not None
    assert moved.variance == pytest.approx(plain.variance, abs=1e-12)


@pytest.mark.parametrize(("blocks", "prompts"), [(2, 8), (8, 1)])
def test_too_few_blocks_or_no_repeats_tell_nothing(blocks, prompts):
    """Two blocks, or blocks of one pair, cannot tell periods from prompts: None, not nought."""
    values, labels = draw_ratios(4, period=0.1, blocks=blocks, prompts=prompts)
    assert period_spread(values, labels, labels * 0) is None


def test_labels_that_do_not_fit_are_refused():
    """One block and one group per pair."""
    with pytest.raises(ValueError, match="one label per pair"):
        period_spread([1.0, 2.0], [1], [1, 1])


def test_an_estimate_is_widened_by_the_periods_it_rests_on():
    """Variances add: 0.01 between blocks over four equal blocks is 0.0025, with Satterthwaite's degrees."""
    rng = np.random.default_rng(5)
    below = np.exp(rng.normal(0, 0.1, 40))
    plain = paired_ratio(below * np.exp(rng.normal(0, 0.2, 40)), below, np.arange(40))
    wide = widen_by_periods(plain, PeriodSpread(variance=0.01, blocks=4), np.repeat(np.arange(4), 10))
    assert plain.standard_error is not None
    assert wide.standard_error is not None
    prompts, periods = plain.standard_error**2, 0.0025
    assert wide.standard_error**2 == pytest.approx(prompts + periods)
    wanted = (prompts + periods) ** 2 / (prompts**2 / plain.degrees_of_freedom + periods**2 / 3)
    assert wide.degrees_of_freedom == pytest.approx(wanted)
    ends = [wide.low, plain.low, plain.value, plain.high, wide.high]
    assert wide.value == plain.value
    assert ends == sorted({end for end in ends if end is not None})


def test_without_periods_an_estimate_stays_as_it_is():
    """Nothing known of periods, nothing between them, or no estimate: the same object comes back."""
    plain = paired_ratio(np.exp(np.arange(6) / 10), np.ones(6), np.arange(6))
    refused = paired_ratio([1.0], [1.0], [1])
    assert widen_by_periods(plain, None, np.arange(6)) is plain
    assert widen_by_periods(plain, PeriodSpread(variance=0.0, blocks=6), np.arange(6)) is plain
    assert widen_by_periods(refused, PeriodSpread(variance=0.1, blocks=6), [1]) is refused


def test_the_widened_interval_covers_where_periods_move_all_requests():
    """300 runs of 10 blocks: the interval of prompts alone covers too rarely, with the periods about 95 %."""
    rng, hits = np.random.default_rng(6), {"prompts": 0, "periods": 0}
    for seed in range(300):
        values, blocks = draw_ratios(rng.integers(1 << 30), period=0.04, blocks=10)
        plain = paired_ratio(np.exp(values), np.ones(80), np.arange(80), resamples=200, seed=seed)
        wide = widen_by_periods(plain, period_spread(values, blocks, blocks * 0), blocks)
        truth = np.exp((0.04**2 + 0.1**2) / 2)
        hits["prompts"] += plain.low <= truth <= plain.high
        hits["periods"] += wide.low <= truth <= wide.high
    assert hits["prompts"] / 300 < 0.88
    assert 0.91 < hits["periods"] / 300 < 0.98
