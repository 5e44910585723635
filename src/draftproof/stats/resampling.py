"""Resampling weights: how often each cluster counts in each bootstrap draw.

A cluster is a prompt: its repeats rise and fall together, so they are drawn together, and with them both arms
of every pair. Rao & Wu (1988), "Resampling inference with complex survey data", JASA 83: within a stratum of
G clusters draw G − 1 with replacement and weigh each by G/(G − 1). The spread of the draws is then
unbiased for a mean however small G is; drawing G clusters makes it too small by the factor (G − 1)/G.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def index_labels(labels: npt.ArrayLike) -> Ints:
    """Return 0 … k−1 for the k distinct labels, in sorted order, so the order of rows does not matter."""
    return np.unique(np.asarray(labels), return_inverse=True)[1].reshape(-1)


def assign_strata(clusters: Ints, strata: npt.ArrayLike | None) -> Ints:
    """Return the stratum of each cluster, 0 … h−1.

    A cluster whose rows lie in several strata (a prompt repeated in several blocks) forms its stratum with
    the clusters that share exactly these. A stratum of one cluster shows no spread: such strata are put
    together, and if a single one is left it joins the smallest other ("collapsed strata", Wolter 2007,
    section 2.5). The cost is width: differences between the strata then count as spread.

    Args:
        clusters: shape (n,), indices from `index_labels`.
        strata: shape (n,), one label per row, or None for a single stratum.
    """
    count = int(clusters.max()) + 1
    if strata is None:
        return np.zeros(count, dtype=np.intp)
    rows = index_labels(strata)
    members = [tuple(sorted(set(rows[clusters == cluster].tolist()))) for cluster in range(count)]
    return _collapse(members)


def draw_weights(strata: Ints, resamples: int, rng: np.random.Generator) -> Floats:
    """Return weights, shape (resamples, clusters); every draw's weights sum to the number of clusters.

    Args:
        strata: shape (clusters,), from `assign_strata`; every stratum has at least two clusters.
        resamples: number of draws.
        rng: the only source of randomness.
    """
    weights = np.empty((resamples, len(strata)))
    for stratum in range(int(strata.max()) + 1):
        members = np.flatnonzero(strata == stratum)
        size = len(members)
        drawn = rng.multinomial(size - 1, np.full(size, 1.0 / size), size=resamples)
        weights[:, members] = drawn * (size / (size - 1))
    return weights


def degrees_of_freedom(strata: Ints) -> int:
    """Return clusters − strata, the degrees of freedom of a stratified cluster sample."""
    return len(strata) - (int(strata.max()) + 1)


def _collapse(members: list[tuple[int, ...]]) -> Ints:
    sizes = Counter(members)
    merged: tuple[int, ...] = (-1,)
    keys = [key if sizes[key] > 1 else merged for key in members]
    sizes = Counter(keys)
    if sizes[merged] == 1 and len(sizes) > 1:
        smallest = min((key for key in sizes if key != merged), key=lambda key: (sizes[key], key))
        keys = [smallest if key == merged else key for key in keys]
    order = {key: index for index, key in enumerate(sorted(set(keys)))}
    return np.array([order[key] for key in keys], dtype=np.intp)
