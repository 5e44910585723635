"""Order-statistic intervals: textbook ranks, floors from both sides, repeats of a prompt."""

import math

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.quantiles import effective_size, interval_ranks, quantile_interval, sample_floor


@pytest.mark.parametrize(
    ("n", "ranks"), [(6, (1, 6)), (9, (2, 8)), (10, (2, 9)), (12, (3, 10)), (15, (4, 12)), (20, (6, 15))]
)
def test_median_ranks_are_those_of_the_sign_test(n, ranks):
    """95 % ranks for a median are those of the binomial table (Conover 1999, section 3.2 and table A3)."""
    assert interval_ranks(n, 0.5, 0.95) == ranks


@pytest.mark.parametrize(("n", "q"), [(12, 0.5), (100, 0.9), (400, 0.99)])
def test_ranks_cover_and_are_the_tightest_with_equal_tails(n, q):
    """Each tail is at most 2.5 %, and one rank tighter it would be more."""
    low, high = interval_ranks(n, q, 0.95)
    assert stats.binom.cdf(low - 1, n, q) <= 0.025 < stats.binom.cdf(low, n, q)
    assert stats.binom.sf(high - 1, n, q) <= 0.025 < stats.binom.sf(high - 2, n, q)


@pytest.mark.parametrize(("q", "floor"), [(0.5, 6), (0.95, 72), (0.99, 368), (0.05, 72)])
def test_the_floor_is_the_first_sample_with_an_interval(q, floor):
    """At the floor both limits exist, one request below it they do not."""
    assert sample_floor(q) == floor
    low, high = interval_ranks(floor, q, 0.95)
    assert low >= 1
    assert high <= floor
    low, high = interval_ranks(floor - 1, q, 0.95)
    assert low < 1 or high > floor - 1


def test_below_the_floor_a_percentile_is_none():
    """The largest of 300 values is not shown as a p99: 68 requests are missing."""
    estimate = quantile_interval(np.arange(300.0), 0.99)
    assert (estimate.value, estimate.low, estimate.high, estimate.needed) == (None, None, None, 68)
    assert "300 independent requests of at least 368" in str(estimate.reason)


def test_above_the_floor_value_and_limits_are_observations():
    """Twenty ordered values: median 10, limits the 6th and the 15th."""
    estimate = quantile_interval(np.arange(20.0, 0.0, -1.0), 0.5)
    assert (estimate.value, estimate.low, estimate.high) == (10.0, 6.0, 15.0)


def test_failures_reach_the_upper_limit_first():
    """With infinite values for failures the limit may be infinite while the median is not."""
    estimate = quantile_interval([*range(13), *[math.inf] * 7], 0.5)
    assert (estimate.value, estimate.high) == (9.0, math.inf)


def test_repeats_that_say_the_same_count_once():
    """Six repeats of each of ten prompts, equal within a prompt, are ten requests."""
    values, prompts = np.repeat(np.arange(10.0), 6), np.repeat(np.arange(10), 6)
    assert effective_size(values, prompts) == 10
    estimate = quantile_interval(values, 0.5, clusters=prompts)
    assert (estimate.low, estimate.value, estimate.high) == (1.0, 4.0, 8.0)
    assert (estimate.n, estimate.effective_n) == (60, 10)


def test_independent_repeats_count_in_full():
    """Repeats no more alike than strangers lose next to nothing, single requests nothing."""
    values = np.random.default_rng(1).normal(size=400)
    assert effective_size(values, np.repeat(np.arange(100), 4)) > 350
    assert effective_size(values, np.arange(400)) == 400
    assert effective_size([], []) == 0


def test_one_prompt_or_one_value_is_one_request():
    """Repeats of a single prompt, or values that never vary, show no spread between prompts."""
    assert effective_size([1.0, 2.0, 3.0], [0, 0, 0]) == 1
    assert effective_size([5.0] * 6, [0, 0, 1, 1, 2, 2]) == 3


def test_missing_requests_are_counted_in_repeats():
    """If three repeats count as one request, three times as many requests are missing."""
    values, prompts = np.repeat(np.arange(4.0), 3), np.repeat(np.arange(4), 3)
    assert quantile_interval(values, 0.5, clusters=prompts).needed == 6


@pytest.mark.parametrize(("q", "level"), [(0.0, 0.95), (1.0, 0.95), (99, 0.95), (0.5, 95)])
def test_percent_numbers_are_refused(q, level):
    """Shares are between 0 and 1."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_interval([1.0], q, level)


def test_labels_must_fit_the_values():
    """One label per value."""
    with pytest.raises(ValueError, match="one cluster label per value"):
        effective_size([1.0, 2.0], [0])
