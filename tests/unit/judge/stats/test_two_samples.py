"""Medians of two independent samples: values, symmetry, and intervals that hold the truth."""

import numpy as np
import pytest

from draftproof.judge.stats.totals import Estimate, median_difference, median_interval, median_ratio

WORLDS = 200


def limits(found: Estimate) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def test_values_are_those_of_the_medians():
    """The estimates are the median, the ratio and the difference of medians."""
    first, second = [2.0, 8.0, 4.0], [1.0, 2.0, 3.0]
    assert median_interval(first).value == 4.0
    assert median_ratio(first, second).value == 2.0
    assert median_difference(first, second).value == 2.0
    assert median_ratio(first, second).n == 6


def test_turning_a_ratio_around_periods_its_interval_around():
    """A ratio and its inverse are mirror images on the log scale."""
    rng = np.random.default_rng(1)
    first, second = rng.lognormal(size=6), rng.lognormal(size=6)
    there = median_ratio(first, second, resamples=20_000)
    back = median_ratio(second, first, resamples=20_000)
    low, high = limits(back)
    assert limits(there) == pytest.approx((1 / high, 1 / low), rel=0.1)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """Of 200 worlds with waves of equal spread, 95 % intervals of a ratio of 1.3 hold it in over 90 %."""
    rng = np.random.default_rng(7)
    held = 0
    for world in range(WORLDS):
        ordinary = rng.lognormal(0.0, 0.1, size=10)
        drafted = 1.3 * rng.lognormal(0.0, 0.1, size=5)
        found = median_ratio(drafted, ordinary, resamples=400, seed=world)
        low, high = limits(found)
        held += low <= 1.3 <= high
    assert held >= 0.9 * WORLDS


def test_further_error_widens_and_never_moves():
    """Drift makes an interval wider around the same value."""
    first, second = [10.0, 11.0, 10.5, 10.2], [5.0, 5.1, 5.2, 5.05]
    plain, widened = median_ratio(first, second), median_ratio(first, second, extra_error=0.1)
    assert widened.value == plain.value
    (low, high), (lower, higher) = limits(plain), limits(widened)
    assert lower < low < high < higher


def test_below_three_values_there_is_no_interval():
    """Two waves have a median and no interval; that is None, not a narrow one."""
    found = median_ratio([2.0, 2.2], [1.0, 1.1, 1.2])
    assert (found.low, found.high) == (None, None)
    assert found.value == pytest.approx(2.1 / 1.1)


def test_equal_values_have_an_interval_of_no_width():
    """Values that are all alike leave nothing to be unsure of."""
    found = median_ratio([2.0] * 4, [1.0] * 4)
    assert (found.low, found.value, found.high) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, float("nan")], [[1.0]]])
def test_what_is_no_sample_is_refused(values):
    """Empty samples and times that are not positive are errors."""
    with pytest.raises(ValueError, match=r"needed|positive"):
        median_interval(values)
