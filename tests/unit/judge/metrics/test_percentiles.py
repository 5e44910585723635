"""Nearest-rank percentiles: pinned to numpy's definition, with failures and with token weights."""

import math

import numpy as np
import pytest

from draftproof.judge.metrics.service import nearest_rank, percentile, token_weighted


@pytest.mark.parametrize("count", [1, 2, 7, 20, 100])
@pytest.mark.parametrize("q", [0.0, 0.05, 0.5, 0.95, 0.99, 1.0])
def test_percentile_is_the_inverse_of_the_empirical_distribution(count, q):
    """The value equals numpy's inverted_cdf quantile, of a list and of an array."""
    values = np.random.default_rng(count).lognormal(size=count)
    expected = np.quantile(values, q, method="inverted_cdf")
    assert (percentile(values.tolist(), q), percentile(values, q)) == (expected, expected)


def test_a_binary_fraction_does_not_push_the_rank_up():
    """0.07 of 100 is rank 7 although the product is a little above 7 in binary."""
    assert math.ceil(0.07 * 100) == 8
    assert nearest_rank(100, 0.07) == 7


def test_no_values_have_no_percentile():
    """Empty input gives None in every form."""
    assert percentile([], 0.5) is None
    assert percentile(np.array([]), 0.5) is None
    assert token_weighted([], [], 0.5) is None


def test_token_weights_repeat_a_value():
    """Weighted percentiles equal the percentiles of the values written out once per token."""
    values, tokens = [5.0, 1.0, 3.0], [2, 5, 0]
    for q in (0.1, 0.5, 0.72, 0.99):
        assert token_weighted(values, tokens, q) == percentile([1.0] * 5 + [5.0] * 2, q)


@pytest.mark.parametrize("q", [-0.1, 1.01, 99])
def test_a_percent_number_is_refused(q):
    """Percentiles are asked for by shares; 99 for p99 is a mistake of the caller."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        percentile([1.0], q)
