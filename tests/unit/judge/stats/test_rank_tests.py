"""Tests by ranks and signs against scipy.stats, whose figures they are."""

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.quantiles import binomial_at_least, normal_density
from draftproof.judge.stats.rank_tests import friedman_p, kendall_p, kruskal_p, sign_test, theil_sen_slope

GENERATOR = np.random.default_rng(5)


def same(wanted):
    return pytest.approx(wanted, rel=1e-13, abs=1e-300)


def draw(*shape, tied):
    """Return values of which many are equal, or none."""
    return GENERATOR.integers(0, 5, shape).astype(float) if tied else GENERATOR.normal(size=shape)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("size", [8, 9, 20, 33, 34, 60, 200])
def test_drift_is_that_of_scipy_stats(size, tied):
    """Slope and Kendall's p: counted out up to 33 values, approximate beyond and with ties in either."""
    for _ in range(20):
        values, times = draw(size, tied=tied), draw(size, tied=False)
        assert theil_sen_slope(values, times) == stats.theilslopes(values, times).slope
        for first, second in ((times, values), (values, values + draw(size, tied=True))):
            assert kendall_p(first, second) == same(stats.kendalltau(first, second).pvalue)


@pytest.mark.parametrize("size", [8, 33, 40, 170, 171, 300])
def test_order_that_is_hardly_broken_has_an_exact_p(size):
    """At most one pair out of order is counted out at any size."""
    values = np.arange(size, dtype=float)
    swapped = values.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for one in (values, -values, swapped, -swapped):
        assert kendall_p(values, one) == same(stats.kendalltau(values, one).pvalue)


@pytest.mark.parametrize("tied", [False, True])
def test_tests_of_places_are_those_of_scipy_stats(tied):
    """Friedman's and Kruskal & Wallis's p, with and without ties."""
    for blocks, places in ((3, 3), (10, 4), (200, 5)):
        table = draw(blocks, places, tied=tied)
        assert friedman_p(table) == same(stats.friedmanchisquare(*table.T).pvalue)
        groups = np.resize(np.arange(places), blocks * places)
        wanted = stats.kruskal(*(table.ravel()[groups == one] for one in range(places))).pvalue
        assert kruskal_p(table.ravel(), groups) == same(wanted)


def test_counts_of_signs_are_those_of_scipy_stats():
    """The sign test, its one side, and the normal density."""
    for n in (1, 2, 7, 30, 1000):
        for hits in {0, 1, n // 2, n - 1, n}:
            assert sign_test(hits, n - hits) == same(stats.binomtest(hits, n).pvalue)
            wanted = stats.binomtest(hits, n, 0.5, alternative="greater").pvalue
            assert binomial_at_least(hits, n, 0.5) == same(wanted)
    for x in (-3.0, 0.0, 1.6448536269514722):
        assert normal_density(x) == stats.norm.pdf(x)
