"""Resampling weights: how often each cluster counts in each bootstrap draw.

A cluster is a prompt: its repeats are drawn together, and with them both arms of every pair. Rao & Wu (1988),
JASA 83: within a stratum of G clusters draw G − 1 with replacement and weigh each by G/(G − 1), so that the
spread of the draws is unbiased for a mean however small G is.
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


# From so many clusters on, drawing their indices is several times faster than a multinomial of all of them.
_MANY_CLUSTERS = 200
# Indices of one batch of draws: they fit the processor's cache with their counts.
_BATCH_INDICES = 1 << 18
# Rivals of an estimator draw as it does, so the counts of the last draws are kept, at most 4 MB of each.
_KEPT_DRAWS, _KEPT_NUMBERS = 48, 2_000_000


def index_labels(labels: npt.ArrayLike) -> Ints:
    """Return 0 … k−1 for the k distinct labels, in sorted order, so the order of rows does not matter."""
    return sort_labels(labels)[1]


def sort_labels(labels: npt.ArrayLike) -> tuple[npt.NDArray[np.generic], Ints]:
    """Return the k distinct labels in sorted order, and for each row which of them it has."""
    array = np.asarray(labels)
    if array.dtype.kind != "U":
        distinct, index = np.unique(array, return_inverse=True)
        return distinct, index.reshape(-1)
    # A table of few texts: hashing them is many times faster than sorting every row.
    rows = array.reshape(-1).tolist()
    names = sorted(set(rows))
    ranks = {name: rank for rank, name in enumerate(names)}
    return np.array(names, dtype=array.dtype), np.fromiter(map(ranks.__getitem__, rows), np.intp, len(rows))


def assign_strata(clusters: Ints, strata: npt.ArrayLike | None) -> Ints:
    """Return the stratum, 0 … h−1, of each cluster; `clusters`, shape (n,), are indices from `index_labels`.

    A cluster whose rows are in several strata forms one with the clusters that share exactly these. Strata of
    one cluster are put together, and a single one that is left joins the smallest other ("collapsed strata",
    Wolter 2007, section 2.5), at the price of width.
    """
    count = int(clusters.max()) + 1
    if strata is None:
        return np.zeros(count, dtype=np.intp)
    rows = index_labels(strata)
    width = int(rows.max()) + 1
    met = np.unique(clusters * width + rows)  # each cluster with each of its strata, in order
    parts = np.split(met % width, np.searchsorted(met // width, np.arange(1, count)))
    return _collapse([tuple(part.tolist()) for part in parts])


def draw_weights(strata: Ints, resamples: int, rng: np.random.Generator) -> Floats:
    """Return weights, shape (resamples, clusters); every draw's weights sum to the number of clusters."""
    weights = np.empty((resamples, len(strata)))
    for members, drawn in _draw(strata, resamples, rng):
        size = drawn.shape[1]
        weights[:, members] = drawn * (size / (size - 1))
    return weights


def draw_seeded_weights(strata: Ints, resamples: int, seed: int) -> Floats:
    """Return `draw_weights` of a generator of that seed; the counts of the last few draws are remembered."""
    if resamples * len(strata) > _KEPT_NUMBERS:
        return draw_weights(strata, resamples, np.random.default_rng(seed))
    counts = _draw_counts(strata.astype(np.intp).tobytes(), resamples, seed)
    sizes = np.bincount(strata)
    scales = sizes / (sizes - 1)
    weights: Floats = counts * scales[strata]
    return weights


@lru_cache(maxsize=_KEPT_DRAWS)
def _draw_counts(strata: bytes, resamples: int, seed: int) -> npt.NDArray[np.uint16]:
    groups, rng = np.frombuffer(strata, dtype=np.intp), np.random.default_rng(seed)
    counts = np.empty((resamples, len(groups)), dtype=np.uint16)
    for members, drawn in _draw(groups, resamples, rng):
        counts[:, members] = drawn
    counts.setflags(write=False)
    return counts


def degrees_of_freedom(strata: Ints) -> int:
    """Return clusters − strata, the degrees of freedom of a stratified cluster sample."""
    return len(strata) - (int(strata.max()) + 1)


def _draw(
    strata: Ints, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[slice | Ints, npt.NDArray[np.integer]]]:
    """Yield where the members of each stratum are and how often each is drawn, shape (resamples, members)."""
    for stratum in range(int(strata.max()) + 1):
        members = np.flatnonzero(strata == stratum)
        size = len(members)
        if size < _MANY_CLUSTERS:
            drawn: npt.NDArray[np.integer] = rng.multinomial(
                size - 1, np.full(size, 1.0 / size), size=resamples
            )
        else:
            drawn = _count_indices(size, resamples, rng)
        yield _as_slice(members), drawn


def _as_slice(members: Ints) -> slice | Ints:
    """Return members that lie side by side as a slice: columns are written ten times as fast by one."""
    first, last = int(members[0]), int(members[-1])
    return slice(first, last + 1) if last - first + 1 == len(members) else members


def _count_indices(size: int, resamples: int, rng: np.random.Generator) -> npt.NDArray[np.uint32]:
    """Return how often each of `size` clusters is among size − 1 drawn, shape (resamples, size)."""
    batch = max(1, _BATCH_INDICES // size)
    counts = np.empty((resamples, size), dtype=np.uint32)
    for start in range(0, resamples, batch):
        rows = min(batch, resamples - start)
        drawn = rng.integers(0, size, size=(rows, size - 1), dtype=np.uint32)
        indices = drawn + (np.arange(rows) * size)[:, None]
        counts[start : start + rows] = np.bincount(indices.reshape(-1), minlength=rows * size).reshape(
            rows, size
        )
    return counts


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
