"""Distribution-free intervals for percentiles, from order statistics (Conover 1999, section 3.2).

No shape of the latency distribution is assumed. Far percentiles need many requests before an interval exists
at all: below that floor there is no value to show, because the largest of a few values is no percentile.

Quantiles and tails of the laws behind the intervals: those of scipy.stats to the last bit.

`scipy.stats` takes a second to load and checks its arguments for longer than it computes, so what is asked
often or at a start comes from `scipy.special`; `import scipy` loads the rest at its first use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.judge.stats.resampling import Floats, Ints, index_labels


def normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal law."""
    return float(scipy.special.ndtri(p))


def normal_density(x: float) -> float:
    """Return the density of the standard normal law."""
    return math.exp(-(x**2) / 2.0) / math.sqrt(2.0 * math.pi)


def student_quantile(p: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    return float(scipy.special.stdtrit(degrees, p))


def chi_square_quantile(p: float, degrees: float) -> float:
    """Return the quantile of χ²."""
    return float(2.0 * scipy.special.gammaincinv(degrees / 2.0, p))


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return the quantile of Beta(a, b)."""
    return float(scipy.special.betaincinv(a, b, p))


def binomial_quantile(p: float, n: int, share: float) -> int:
    """Return the least k with P(Bin(n, share) ≤ k) ≥ p."""
    near = math.ceil(float(scipy.special.bdtrik(p, n, share)))
    below = max(near - 1, 0)
    return below if scipy.special.bdtr(below, n, share) >= p else near


def binomial_at_least(hits: int, n: int, share: float) -> float:
    """Return P(Bin(n, share) ≥ hits)."""
    return float(scipy.special.betainc(hits, n - hits + 1, share)) if hits > 0 else 1.0


def average_ranks(values: npt.ArrayLike) -> Floats:
    """Return ranks from 1, those of equal values their mean; shape (n,)."""
    _, index, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[index]
    return ranks


RANK_DIGITS = 9  # binary fractions such as 0.07 × 100 must not reach the next rank


@dataclass(frozen=True, kw_only=True)
class QuantileEstimate:
    """Nearest-rank quantile with an interval that covers with at least `level`.

    `effective_n` is `n` less what repeats of a prompt say twice. Below the floor value and interval are None
    and `needed` is how many more requests it takes.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    n: int
    effective_n: int
    reason: str | None = None
    needed: int | None = None


def quantile_interval(
    values: npt.ArrayLike, q: float, level: float = 0.95, clusters: npt.ArrayLike | None = None
) -> QuantileEstimate:
    """Return the q-quantile and the order statistics around it; values, shape (n,), may hold +∞ for failures.

    Where prompts (`clusters`) repeat, the sample counts for fewer requests (Kish's design effect with the
    intraclass correlation of the ranks). Tails are equal.

    Raises:
        ValueError: q or level is outside (0, 1), or shapes differ.
    """
    (found,) = quantile_intervals(values, (q,), level, clusters)
    return found


def quantile_intervals(
    values: npt.ArrayLike, shares: Sequence[float], level: float = 0.95, clusters: npt.ArrayLike | None = None
) -> tuple[QuantileEstimate, ...]:
    """Return `quantile_interval` of each share; the values are sorted once."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    effective = len(ordered) if clusters is None else effective_size(values, clusters)
    return tuple(_interval_of(ordered, effective, q, level) for q in shares)


def _interval_of(ordered: Floats, effective: int, q: float, level: float) -> QuantileEstimate:
    floor, count = sample_floor(q, level), len(ordered)
    if effective < floor:
        needed = math.ceil((floor - effective) * max(1.0, count / max(1, effective)))
        reason = f"{effective} independent requests of at least {floor} for this percentile"
        return QuantileEstimate(
            value=None,
            low=None,
            high=None,
            level=level,
            n=count,
            effective_n=effective,
            reason=reason,
            needed=needed,
        )
    lower, upper = interval_ranks(effective, q, level)
    stretch = count / effective
    return QuantileEstimate(
        value=float(ordered[math.ceil(round(q * count, RANK_DIGITS)) - 1]),
        low=float(ordered[max(1, math.floor(round(lower * stretch, RANK_DIGITS))) - 1]),
        high=float(ordered[min(count, math.ceil(round(upper * stretch, RANK_DIGITS))) - 1]),
        level=level,
        n=count,
        effective_n=effective,
    )


@cache  # one run asks for a few hundred intervals with a handful of sizes
def interval_ranks(n: int, q: float, level: float) -> tuple[int, int]:
    """Return 1-based ranks (l, u): [x_(l), x_(u)] covers the q-quantile with at least `level`.

    l is the largest rank with P(Bin(n, q) < l) ≤ alpha/2, u the smallest with P(Bin(n, q) ≥ u) ≤ alpha/2.
    Ranks 0 or n + 1 mean that no observation bounds that side.
    """
    tail = (1.0 - level) / 2.0
    return binomial_quantile(tail, n, q), binomial_quantile(1.0 - tail, n, q) + 1


def sample_floor(q: float, level: float = 0.95) -> int:
    """Return the fewest independent requests for which the interval exists on both sides.

    All values are on one side with probability q^n or (1 − q)^n, each at most alpha/2. At 95 %: 6 for p50, 72
    for p95, 368 for p99.

    Raises:
        ValueError: q or level is outside (0, 1).
    """
    if not (0.0 < q < 1.0 and 0.0 < level < 1.0):
        raise ValueError(f"q and level are shares between 0 and 1, got {q} and {level}")
    return math.ceil(math.log((1.0 - level) / 2.0) / math.log(max(q, 1.0 - q)))


def effective_size(values: npt.ArrayLike, clusters: npt.ArrayLike) -> int:
    """Return n / (1 + (m − 1)·r), rounded down (Kish 1965, section 5.4).

    m is the cluster size that a member meets on average, r the intraclass correlation of the ranks, 0 to 1.

    Raises:
        ValueError: shapes differ.
    """
    ranks, index = average_ranks(values), index_labels(clusters)
    if len(ranks) != len(index):
        raise ValueError(f"one cluster label per value is needed, got {len(index)} for {len(ranks)}")
    sizes = np.bincount(index).astype(np.float64)
    if len(ranks) == 0 or sizes.max() <= 1.0:
        return len(ranks)
    met = float((sizes**2).sum() / sizes.sum())
    return math.floor(len(ranks) / (1.0 + (met - 1.0) * _intraclass_correlation(ranks, index, sizes)) + 1e-9)


def _intraclass_correlation(values: Floats, index: Ints, sizes: Floats) -> float:
    # One-way analysis of variance; its two mean squares are equal in expectation if repeats are independent.
    groups, count = len(sizes), len(values)
    if groups < 2:
        return 1.0
    means = np.bincount(index, weights=values) / sizes
    between = float((sizes * (means - values.mean()) ** 2).sum()) / (groups - 1)
    within = float(((values - means[index]) ** 2).sum()) / (count - groups)
    size = (count - float((sizes**2).sum()) / count) / (groups - 1)
    total = between + (size - 1.0) * within
    return min(1.0, max(0.0, (between - within) / total)) if total > 0 else 1.0
