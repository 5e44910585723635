"""Counts of many drawn clusters: their sums, their spread and their seed are those of a multinomial draw."""

import numpy as np

from draftproof.judge.stats.resampling import draw_seeded_weights, draw_weights

CLUSTERS = 300  # beyond the number from which indices are drawn


def test_many_clusters_are_drawn_as_often_as_a_multinomial_says():
    """Weights of a draw sum to the clusters; mean, variance and a contrast are those of the distribution."""
    weights = draw_weights(np.zeros(CLUSTERS, dtype=np.intp), 4000, np.random.default_rng(1))
    assert np.allclose(weights.sum(axis=1), CLUSTERS)
    counts = weights * (CLUSTERS - 1) / CLUSTERS
    assert np.allclose(counts, np.round(counts))
    assert abs(counts.mean(axis=0) - (CLUSTERS - 1) / CLUSTERS).max() < 0.09  # six standard errors
    variance = (CLUSTERS - 1) / CLUSTERS * (1 - 1 / CLUSTERS)
    assert abs(counts.var() / variance - 1) < 0.01
    means = counts @ np.linspace(0, 1, CLUSTERS) / (CLUSTERS - 1)
    assert abs(means.std() * np.sqrt(12 * (CLUSTERS - 1)) - 1) < 0.05


def test_many_clusters_of_a_seed_are_the_same_again():
    """Strata large and small give the same bits whether they are drawn or remembered."""
    strata = np.repeat([0, 1], [CLUSTERS, 5])
    expected = draw_weights(strata, 900, np.random.default_rng(7))
    for _ in range(2):
        assert np.array_equal(draw_seeded_weights(strata, 900, 7), expected)
