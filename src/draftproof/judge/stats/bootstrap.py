"""Cluster-bootstrap intervals: the ratio of two arms on paired requests, and the mean of one arm.

Student's t around the estimate with the standard error of the draws, ratios on the log scale. The degrees of
freedom of a ratio of means are its effective prompts (Kish 1965) less the strata; from 20 clusters on each
limit is the farther one of t and of Hall's (1992) t corrected for skewness. Percentiles of the draws would
cover too little with few prompts (docs/statistics.md).
"""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from draftproof.judge.stats.quantiles import normal_quantile, student_quantile
from draftproof.judge.stats.resampling import (
    Floats,
    Ints,
    assign_strata,
    degrees_of_freedom,
    draw_seeded_weights,
    index_labels,
)

__all__ = [
    "MeanEstimate",
    "RatioEstimate",
    "interval_at",
    "mean_interval",
    "paired_ratio",
]

Statistic = Literal["mean", "p50"]
MINIMUM_CLUSTERS = 3
SKEWNESS_CLUSTERS = 20  # the skewness of fewer clusters is mostly noise
SYMMETRIC = 1e-6  # below this the cube root loses more digits than the correction changes
# Weights of one batch of draws stay below this many numbers (32 MB), however many pairs there are.
BATCH_NUMBERS = 4_000_000
# Of sorted rows: with so many of them, finding a median's stretch and walking it take about as long.
STRETCHES = 128


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """Ratio numerator / denominator with its interval [`low`, `high`] at `level`.

    `draws`, shape (resamples,): the bootstrap ratios; `standard_error` is theirs on the log scale.
    `skewness`: Σd³ / (Σd²)^1.5 of what each cluster moves the log ratio by; 0 where it is not corrected for.
    Below the sample floor value and interval are None with a `reason`; `needed` more clusters help, None: no
    number does.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    draws: Floats = field(repr=False, compare=False)
    n_pairs: int
    n_clusters: int
    standard_error: float | None = None
    degrees_of_freedom: float = 0.0
    skewness: float = 0.0
    reason: str | None = None
    needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class MeanEstimate:
    """A mean or a ratio of totals with its interval; None with the reason, `needed` more clusters."""

    value: float | None
    low: float | None = None
    high: float | None = None
    level: float
    n: int
    n_clusters: int
    reason: str | None = None
    needed: int | None = None


def paired_ratio(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    clusters: npt.ArrayLike,
    strata: npt.ArrayLike | None = None,
    *,
    statistic: Statistic = "mean",
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    minimum_clusters: int = MINIMUM_CLUSTERS,
) -> RatioEstimate:
    """Return statistic(numerator) / statistic(denominator) of paired rows with a cluster-bootstrap interval.

    Row i is the same prompt in the same block in both arms; all arrays have shape (n,), values are positive.
    Clusters (prompts) are drawn within `strata`, the same draw for both arms; the order of rows does not
    matter.

    Raises:
        ValueError: shapes differ, or level, resamples or the floor is out of range.
    """
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    labels = np.asarray(clusters)
    _check_arguments(above, below, labels, resamples=resamples, level=level, floor=minimum_clusters)
    index = index_labels(labels)
    count = int(index.max(initial=-1)) + 1
    refusal = _refuse(count, minimum_clusters) or _refuse_values(above, below)
    if refusal is not None:
        return no_ratio(level, len(above), count, *refusal)
    groups = assign_strata(index, strata)
    weights = draw_seeded_weights(groups, resamples, seed)
    value = float(_ratio(above, below, index, np.ones((1, count)), statistic)[0])
    draws = _ratio(above, below, index, weights, statistic)
    error = float(np.std(np.log(draws)))
    degrees, skewness = _shape_of(above, below, index, groups, statistic)
    low, high = _around(value, error, degrees, level, skewness)
    return RatioEstimate(
        value=value,
        low=low,
        high=high,
        level=level,
        draws=draws,
        n_pairs=len(above),
        n_clusters=count,
        standard_error=error,
        degrees_of_freedom=degrees,
        skewness=skewness,
    )


def _shape_of(
    above: Floats, below: Floats, index: Ints, groups: Ints, statistic: Statistic
) -> tuple[float, float]:
    """Return degrees of freedom and skewness of a ratio; those of a mean are of its clusters' own weights."""
    if statistic != "mean":
        return float(degrees_of_freedom(groups)), 0.0
    shares = _shares(above, index), _shares(below, index)
    return _effective_degrees(shares[0] + shares[1], groups), _skewness(shares[0] - shares[1], groups)


def mean_interval(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike,
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
    minimum_clusters: int = MINIMUM_CLUSTERS,
) -> MeanEstimate:
    """Return the mean over rows with a cluster-bootstrap t interval.

    Positive values get it on the log scale, which suits latencies; others on their own scale.
    Arguments and errors as in `paired_ratio`.
    """
    sample, labels = np.asarray(values, dtype=np.float64), np.asarray(clusters)
    _check_arguments(sample, sample, labels, resamples=resamples, level=level, floor=minimum_clusters)
    index = index_labels(labels)
    count = int(index.max(initial=-1)) + 1
    refusal = _refuse(count, minimum_clusters)
    if refusal is not None or not np.isfinite(sample).all():
        reason, needed = refusal or ("a value is not finite", None)
        return MeanEstimate(
            value=None, level=level, n=len(sample), n_clusters=count, reason=reason, needed=needed
        )
    groups = assign_strata(index, None)
    weights = draw_seeded_weights(groups, resamples, seed)
    draws = _weighted_mean(sample, index, weights, _weighted_sizes(index, weights))
    value, degrees = float(sample.mean()), degrees_of_freedom(groups)
    if (sample > 0).all():
        low, high = _around(value, float(np.std(np.log(draws))), degrees, level)
    else:
        reach = float(student_quantile(0.5 + level / 2, degrees) * np.std(draws))
        low, high = value - reach, value + reach
    return MeanEstimate(value=value, low=low, high=high, level=level, n=len(sample), n_clusters=count)


def interval_at(estimate: RatioEstimate, level: float) -> tuple[float | None, float | None]:
    """Return the estimate's interval at another level; (None, None) where there is no estimate."""
    if estimate.value is None or estimate.standard_error is None:
        return None, None
    return _around(
        estimate.value, estimate.standard_error, estimate.degrees_of_freedom, level, estimate.skewness
    )


def error_of_interval(estimate: RatioEstimate) -> float | None:
    """Return the standard error of the log ratio that half of the interval's width stands for, if any.

    Where the interval has no upper limit its lower half counts.
    """
    if estimate.value is None or not estimate.low:
        return None
    upper = estimate.value**2 / estimate.low if estimate.high is None else estimate.high
    half = float(np.log(upper / estimate.low)) / 2.0
    return half / normal_quantile(0.5 + estimate.level / 2.0)


def _ratio(above: Floats, below: Floats, index: Ints, weights: Floats, statistic: Statistic) -> Floats:
    if statistic == "mean":
        sizes = _weighted_sizes(index, weights)
        return _weighted_mean(above, index, weights, sizes) / _weighted_mean(below, index, weights, sizes)
    return _weighted_median(above, index, weights) / _weighted_median(below, index, weights)


def _weighted_mean(values: Floats, index: Ints, weights: Floats, sizes: Floats) -> Floats:
    # Sums by einsum, not by BLAS: its threads may add in another order from run to run.
    means: Floats = np.einsum("bg,g->b", weights, np.bincount(index, weights=values)) / sizes
    return means


def _weighted_sizes(index: Ints, weights: Floats) -> Floats:
    """Return how many rows each draw has, shape (draws,)."""
    sizes: Floats = np.einsum("bg,g->b", weights, np.bincount(index).astype(np.float64))
    return sizes


def _weighted_median(values: Floats, index: Ints, weights: Floats) -> Floats:
    """Return the nearest-rank median of each draw, shape (draws,).

    The values are sorted once and cut into stretches. How much weight a draw has in each stretch follows from
    how often each cluster is there; only the one stretch that holds a draw's median is walked row by row.
    """
    order = np.argsort(values, kind="stable")
    ordered, owners = values[order], index[order]
    length = -(-len(values) // STRETCHES)
    held = _count_held(owners, length, weights.shape[1])
    batch = max(1, BATCH_NUMBERS // length)
    parts = [
        ordered[_median_ranks(weights[start : start + batch], owners, held, length)]
        for start in range(0, len(weights), batch)
    ]
    return np.concatenate(parts)


def _count_held(owners: Ints, length: int, clusters: int) -> Floats:
    """Return how many rows each cluster has in each stretch, shape (clusters, stretches)."""
    stretch = np.arange(len(owners)) // length
    count = int(stretch[-1]) + 1
    cells = np.bincount(owners * count + stretch, minlength=clusters * count)
    return cells.reshape(clusters, count).astype(np.float64)


def _median_ranks(weights: Floats, owners: Ints, held: Floats, length: int) -> Ints:
    """Return where the sorted rows reach half of the weight of each draw, shape (draws,)."""
    # In whatever order these are added: a last bit more or less is far within the tolerance below.
    reached = np.cumsum(weights @ held, axis=1)
    # The weights are multiples of G/(G−1): the tolerance keeps an exact half from slipping past its rank.
    half = 0.5 * reached[:, -1:] * (1 - 1e-12)
    stretch = (reached[:, :-1] < half).sum(axis=1)
    draws = np.arange(len(weights))
    before = np.where(stretch > 0, reached[draws, stretch - 1], 0.0)
    rows = (stretch * length)[:, None] + np.arange(length)
    inside = weights[draws[:, None], owners[np.minimum(rows, len(owners) - 1)]]
    walked = before[:, None] + np.cumsum(inside, axis=1)
    ranks: Ints = rows[:, 0] + np.minimum((walked < half).sum(axis=1), length - 1)
    return np.minimum(ranks, len(owners) - 1)


def _shares(values: Floats, index: Ints) -> Floats:
    """Return each cluster's share of the total."""
    totals: Floats = np.bincount(index, weights=values) / values.sum()
    return totals


def _effective_degrees(weights: Floats, strata: Ints) -> float:
    """Return Kish's effective number of clusters less the strata, at least 1."""
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    return max(1.0, effective - (len(strata) - degrees_of_freedom(strata)))


def _skewness(influences: Floats, strata: Ints) -> float:
    """Return Σd³ / (Σd²)^1.5 of the clusters' influences less their stratum's mean; 0 below 20 clusters."""
    centred = influences - (np.bincount(strata, weights=influences) / np.bincount(strata))[strata]
    squares = float((centred**2).sum())
    if len(centred) < SKEWNESS_CLUSTERS or squares == 0.0:
        return 0.0
    return float((centred**3).sum() / squares**1.5)


def _uncorrect(score: float, skewness: float) -> float:
    """Return the t score T whose T + kT²/3 + k²T³/27 + k/6 is this one (Hall 1992), k the skewness."""
    if abs(skewness) < SYMMETRIC:
        return score
    return 3.0 / skewness * (float(np.cbrt(1.0 + skewness * (score - skewness / 6))) - 1.0)


def _around(
    value: float, error: float, degrees: float, level: float, skewness: float = 0.0
) -> tuple[float, float]:
    reach = student_quantile(0.5 + level / 2, degrees)
    down, up = max(reach, _uncorrect(reach, skewness)), max(reach, -_uncorrect(-reach, skewness))
    reach = min(700.0, up * error)  # beyond it there is no float
    return value * float(np.exp(-down * error)), value * float(np.exp(reach))


def _check_arguments(
    above: Floats, below: Floats, labels: npt.NDArray[np.generic], *, resamples: int, level: float, floor: int
) -> None:
    if above.ndim != 1 or not above.shape == below.shape == labels.shape:
        raise ValueError(
            f"paired arrays of one length are needed, got {above.shape}, {below.shape}, {labels.shape}"
        )
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is a share between 0 and 1, got {level}")
    if resamples < 2 or floor < 2:
        raise ValueError(f"at least 2 resamples and 2 clusters are needed, got {resamples} and {floor}")


def _refuse(count: int, floor: int) -> tuple[str, int | None] | None:
    if count >= floor:
        return None
    return f"{count} of at least {floor} prompts", floor - count


def _refuse_values(above: Floats, below: Floats) -> tuple[str, int | None] | None:
    both = np.concatenate([above, below])
    if np.isfinite(both).all() and (both > 0).all():
        return None
    return "a value is not a positive number, so there is no ratio", None


def no_ratio(level: float, pairs: int, count: int, reason: str, needed: int | None) -> RatioEstimate:
    """Return the estimate of a ratio that is not known, of `pairs` pairs of `count` clusters."""
    return RatioEstimate(
        value=None,
        low=None,
        high=None,
        level=level,
        draws=np.empty(0),
        n_pairs=pairs,
        n_clusters=count,
        reason=reason,
        needed=needed,
    )


def null_difference(ratio: float | None, standard_error: float | None) -> float:
    """Return by which factor, 1 or more, two equal arms differ beyond what chance explains.

    exp(√max(0, log² ratio − se²)), with the standard error of the log of the ratio: chance alone makes log²
    as large as se² on average. 1 where there is no ratio; a ratio whose error is not known counts in full.
    """
    if not ratio:
        return 1.0
    excess = math.log(ratio) ** 2 - (standard_error or 0.0) ** 2
    return math.exp(math.sqrt(max(0.0, excess)))


def noise_margin(null: float, statistic: str) -> float:
    """Return by which factor a margin is widened where two equal arms differ by `null`, 1 or more.

    A mean is held against both, and the nearer of them is half their difference away: an effect is to exceed
    the difference from there on.
    """
    return null**1.5 if statistic == "mean" else null


def compare_with_null(
    effect: tuple[float | None, float | None], null: tuple[float | None, float | None]
) -> tuple[float | None, bool | None]:
    """Return how far the null's interval reaches from 1, a factor, and whether it tells an effect.

    An effect is shown whose whole interval is outside [1 / factor, factor]. None without the limits it takes.
    """
    if null[0] is None or null[1] is None:
        return None, None
    floor = float(np.exp(max(abs(np.log(null[0])), abs(np.log(null[1])))))
    if effect[0] is None or effect[1] is None:
        return floor, None
    return floor, effect[1] < 1.0 / floor or effect[0] > floor
