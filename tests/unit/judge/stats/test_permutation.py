"""Permutation tests of paired draws, against closed forms and against scipy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftproof.judge.stats.permutation import (
    DistanceBlock,
    category_p_value,
    difference_p_value,
    draw_swaps,
    energy_p_value,
)

# Darwin's maize, height differences of crossed and selfed plants in eighths of an inch: Fisher (1935), The
# Design of Experiments, section 21, where 863 of 32768 patterns give a sum as large as the observed 314.
DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)


def test_darwins_maize():
    """Fisher's own example: 863 · 2 of 32768 patterns, here by 200,000 drawn ones."""
    assert DARWIN.sum() == 314
    p = difference_p_value(DARWIN, draw_swaps(15, 200_000, seed=1))
    assert p == pytest.approx(2 * 863 / 32768, abs=0.0015)


def test_all_patterns_of_few_units_are_taken():
    """Three equal differences: 2 of 8 patterns are as extreme, whatever the seed."""
    swaps = draw_swaps(3, draws=5, seed=7)
    assert swaps.is_exact
    assert difference_p_value(np.array([1.0, 1.0, 1.0]), swaps) == 0.25


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9))
def test_the_exact_p_value_is_scipys(values):
    """The same as scipy.stats.permutation_test of paired samples, ties included."""
    values = np.array(values, dtype=float)
    theirs = stats.permutation_test(
        (values, np.zeros_like(values)),
        lambda x, y, axis: np.sum(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    ours = difference_p_value(values, draw_swaps(len(values), 10, seed=0))
    assert ours == pytest.approx(min(1.0, theirs.pvalue))


def test_a_drawn_p_value_is_never_zero():
    """The observed pattern counts among the drawn ones: (0 + 1) / (m + 1) at least."""
    assert difference_p_value(np.ones(30), draw_swaps(30, 99, seed=3)) == pytest.approx(1 / 100)


def test_no_difference_has_p_one():
    """Ties with the observed statistic count as reached."""
    swaps = draw_swaps(20, 99, seed=3)
    assert difference_p_value(np.zeros(20), swaps) == 1.0
    assert category_p_value(np.zeros((20, 2)), swaps) == 1.0


def test_categories_shift_both_ways():
    """Four units that all went from one category to another: 2 of 16 patterns."""
    moved = np.array([[1.0, -1.0]] * 4)
    assert category_p_value(moved, draw_swaps(4, 1, seed=0)) == 2 / 16


def brute_energy(first, second):
    """The energy distance by its definition, V-statistic form: 2 E|X−Y| − E|X−X'| − E|Y−Y'|."""
    gaps = [
        np.abs(np.subtract.outer(a, b)).mean() for a, b in ((first, second), (first, first), (second, second))
    ]
    return 2 * gaps[0] - gaps[1] - gaps[2]


def block_of(first, second):
    outer = np.subtract.outer
    return DistanceBlock(
        units=np.arange(len(first)),
        within_first=np.abs(outer(first, first)),
        within_second=np.abs(outer(second, second)),
        across=np.abs(outer(first, second)),
    )


def test_the_energy_p_value_is_that_of_every_swap_by_hand():
    """All 32 swaps of five pairs, the distance computed from its definition each time."""
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=5), rng.normal(0.8, size=5)
    observed = brute_energy(first, second)
    reached = 0
    for pattern in range(32):
        swapped = (pattern >> np.arange(5)) & 1 == 1
        one, other = np.where(swapped, second, first), np.where(swapped, first, second)
        reached += brute_energy(one, other) >= observed - 1e-12
    assert energy_p_value([block_of(first, second)], draw_swaps(5, 1, seed=0)) == reached / 32


def test_the_energy_distance_sees_what_a_mean_does_not():
    """Equal means, another spread: the sum of differences is blind to it, the distance is not."""
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(20, 8)), rng.normal(scale=4.0, size=(20, 8))
    swaps = draw_swaps(160, 999, seed=1)
    blocks = [
        block_of(a, b)._replace(units=np.arange(8) + 8 * index)
        for index, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    assert energy_p_value(blocks, swaps) < 0.01
    balanced = first - first.mean(axis=1, keepdims=True)
    assert difference_p_value(balanced.ravel(), swaps) > 0.5


def test_the_level_is_held_for_any_distribution():
    """Skewed and tied values from one distribution: 5 % of 2,000 tests at 5 % reject, within noise."""
    rng = np.random.default_rng(6)
    swaps = draw_swaps(30, 499, seed=2)
    draws = np.floor(rng.lognormal(0.0, 1.5, size=(2000, 30, 2)))
    rejected = sum(difference_p_value(one[:, 0] - one[:, 1], swaps) <= 0.05 for one in draws)
    assert stats.binomtest(rejected, 2000, 0.05, alternative="greater").pvalue > 0.001


def test_nothing_to_swap_is_refused():
    """No unit means no test, not a p-value."""
    with pytest.raises(ValueError, match="at least one unit"):
        draw_swaps(0, 99, seed=0)
