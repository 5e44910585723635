"""Tests by ranks and signs, and the slope beside them: the figures of scipy.stats without its load time.

Every run asks for some of them, and `scipy.stats` takes a second to load (see `quantiles`). Where its methods
have variants, these are its defaults: exact for few values without ties, otherwise the usual approximation.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.judge.stats.quantiles import average_ranks, binomial_at_least
from draftproof.judge.stats.resampling import Floats, Ints

MOST_EXACT = 33  # values up to which Kendall's law is counted out


def sign_test(higher: int, lower: int) -> float:
    """Return p of signs that fall either way alike, two-sided; not both counts are 0."""
    return min(1.0, 2.0 * binomial_at_least(max(higher, lower), higher + lower, 0.5))


def theil_sen_slope(values: Floats, at: Floats) -> float:
    """Return the median slope between all pairs of points, shape (n,) each (Sen 1968)."""
    apart = at[:, None] - at
    is_later = apart > 0
    return float(np.median((values[:, None] - values)[is_later] / apart[is_later]))


def kendall_p(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return p of Kendall's τ, two-sided; shape (n,) each, neither of them constant (Kendall 1970)."""
    one, other = np.asarray(first), np.asarray(second)
    size, ties_one, ties_other = len(one), _count_ties(one), _count_ties(other)
    signs = np.sign(one[:, None] - one) * np.sign(other[:, None] - other)
    score, pairs = round(float(signs.sum()) / 2.0), size * (size - 1) // 2
    agreeing = (pairs + score) // 2
    if not len(ties_one) + len(ties_other) and (size <= MOST_EXACT or min(agreeing, pairs - agreeing) <= 1):
        return _exact_kendall_p(size, min(agreeing, pairs - agreeing))
    both, steps = size * (size - 1.0), 2 * size + 5
    variance = (
        (both * steps - _add_ties(ties_one, 2, 5) - _add_ties(ties_other, 2, 5)) / 18
        + _add_ties(ties_one, 0, 1) * _add_ties(ties_other, 0, 1) / (2 * both)
        + _add_ties(ties_one, 1, -2) * _add_ties(ties_other, 1, -2) / (9 * both * (size - 2))
    )
    return 2.0 * float(scipy.special.ndtr(-abs(score) / math.sqrt(variance)))


def friedman_p(table: Floats) -> float:
    """Return p of Friedman's test that columns are alike; shape (blocks, places), at least three places."""
    blocks, places = table.shape
    ties = sum(_add_ties(_count_ties(row), 1, 1) for row in table)
    left = 1.0 - ties / (places * (places * places - 1) * blocks)
    squares = float((np.sum([average_ranks(row) for row in table], axis=0) ** 2).sum())
    statistic = 12.0 / (places * blocks * (places + 1)) * squares - 3 * blocks * (places + 1)
    return float(scipy.special.chdtrc(places - 1, statistic / left))


def kruskal_p(values: Floats, groups: Ints) -> float:
    """Return p of Kruskal & Wallis's test that groups are alike; shape (n,) each, groups from 0."""
    count, sizes = len(values), np.bincount(groups)
    left = 1.0 - _add_ties(_count_ties(values), 1, 1) / (count**3 - count)
    squares = float((np.bincount(groups, weights=average_ranks(values)) ** 2 / sizes).sum())
    statistic = 12.0 / (count * (count + 1)) * squares - 3 * (count + 1)
    return float(scipy.special.chdtrc(len(sizes) - 1, statistic / left))


def _count_ties(values: npt.NDArray[np.generic]) -> Ints:
    counts = np.unique(values, return_counts=True)[1]
    ties: Ints = counts[counts > 1]
    return ties


def _exact_kendall_p(size: int, inversions: int) -> float:
    """Return twice the share of orders of `size` values with at most so many inversions, at most 1."""
    if size > 170:  # one order of 171! is nothing to a double
        return 0.0
    orders = np.zeros(inversions + 1)
    orders[:2] = 1.0
    for length in range(3, size + 1):
        orders = np.cumsum(orders)
        if length <= inversions:
            orders[length:] -= orders[: inversions + 1 - length].copy()
    return min(1.0, 2.0 * float(orders.sum()) / math.factorial(size))


def _add_ties(ties: Ints, factor: int, rest: int) -> float:
    """Return Σ t(t − 1)(factor·t + rest) over the sizes t of ties, of which every correction is made."""
    return float((ties * (ties - 1.0) * (factor * ties + rest)).sum())
