"""Resampling weights and strata."""

import numpy as np
import pytest

from draftproof.judge.stats.resampling import assign_strata, degrees_of_freedom, draw_weights, index_labels


def test_weights_have_mean_one_and_the_unbiased_variance():
    """Drawing G − 1 of G, the spread of a mean is s²/G on average, not (G − 1)/G of it."""
    values = np.array([1.0, 4.0, 2.0, 8.0, 3.0])
    weights = draw_weights(np.zeros(5, dtype=np.intp), 200_000, np.random.default_rng(1))
    assert weights.sum(axis=1) == pytest.approx(5.0)
    assert weights.mean(axis=0) == pytest.approx(1.0, abs=0.01)
    assert (weights @ values / 5).var() == pytest.approx(values.var(ddof=1) / 5, rel=0.02)


def test_strata_keep_their_share_in_every_draw():
    """Within each stratum the weights of a draw sum to the stratum's clusters."""
    strata = np.array([0, 0, 1, 1, 1])
    weights = draw_weights(strata, 50, np.random.default_rng(2))
    assert weights[:, :2].sum(axis=1) == pytest.approx(2.0)
    assert weights[:, 2:].sum(axis=1) == pytest.approx(3.0)
    assert degrees_of_freedom(strata) == 3


@pytest.mark.parametrize(
    ("clusters", "strata", "expected"),
    [
        ([0, 1, 2, 3], None, [0, 0, 0, 0]),
        ([0, 1, 2, 3], ["a", "a", "b", "b"], [0, 0, 1, 1]),
        ([0, 1, 2, 3, 4, 5], ["a", "a", "b", "b", "c", "d"], [1, 1, 2, 2, 0, 0]),
        ([0, 1, 2, 3, 4, 5], ["a", "a", "a", "b", "b", "c"], [0, 0, 0, 1, 1, 1]),
        ([0, 1, 2], ["a", "b", "c"], [0, 0, 0]),
        ([0, 0, 1, 1, 2, 2], ["a", "b", "b", "a", "c", "a"], [0, 0, 0]),
    ],
    ids=["none", "two", "singles together", "a single joins the smallest", "all single", "spanning"],
)
def test_strata_without_spread_are_put_together(clusters, strata, expected):
    """Every stratum ends with at least two clusters; prompts in the same several strata form one."""
    assert assign_strata(np.array(clusters), strata).tolist() == expected


def test_labels_are_indexed_in_sorted_order():
    """The index of a label does not depend on where it first stands."""
    assert index_labels(["b", "a", "b", "c"]).tolist() == [1, 0, 1, 2]
