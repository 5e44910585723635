"""Ratios of totals over clusters (a share of time, a cost per token), and medians of independent samples.

Σy / Σx has the standard error of the ratio estimator by linearisation, with prompts as sampling units
(Cochran 1977, chapters 6 and 9A), and Student's t with clusters − 1 degrees of freedom, on the log scale for
rates, the logistic one for shares. Arms on the same prompts are compared by the difference of their
influences, so what makes a prompt dear in both cancels. Medians are resampled each on its own, n − 1 of n
values, with Welch's degrees of freedom.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from draftproof.judge.stats.bootstrap import MeanEstimate
from draftproof.judge.stats.quantiles import student_quantile
from draftproof.judge.stats.resampling import Floats, sort_labels

Scale = Literal["log", "logit"]
MINIMUM_CLUSTERS = 3
_EXACT_BELOW = 2.0**52  # half of the bound, since this sum may be rounded itself


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Σy and Σx of each cluster, shape (clusters,), clusters by sorted label; `n` rows behind them."""

    labels: tuple[str, ...]
    above: Floats
    below: Floats
    n: int


def sum_by_cluster(above: npt.ArrayLike, below: npt.ArrayLike, clusters: npt.ArrayLike) -> Totals:
    """Return the totals of each cluster; above, below and labels have shape (n,) and any order.

    Raises:
        ValueError: shapes differ.
    """
    labels, index = sort_labels(np.asarray(clusters, dtype=str))
    return sum_by_index(above, below, index, labels.tolist())


def sum_by_index(
    above: npt.ArrayLike, below: npt.ArrayLike, indices: npt.NDArray[np.intp], labels: Sequence[str]
) -> Totals:
    """Return `sum_by_cluster` of rows whose clusters are indices into `labels`, which are sorted.

    Labels without a row are left out.
    """
    y, x = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if y.ndim != 1 or not y.shape == x.shape == indices.shape:
        raise ValueError(f"arrays of one length are needed, got {y.shape}, {x.shape}, {indices.shape}")
    met = np.flatnonzero(np.bincount(indices, minlength=len(labels)))
    return Totals(
        labels=tuple(labels[index] for index in met.tolist()),
        above=_exact_sums(y, indices, len(labels))[met],
        below=_exact_sums(x, indices, len(labels))[met],
        n=len(y),
    )


def ratio_of_totals(
    totals: Totals, *, scale: Scale = "log", level: float = 0.95, minimum_clusters: int = MINIMUM_CLUSTERS
) -> MeanEstimate:
    """Return Σy / Σx with its interval, on the plain scale where the other has no room (a share of 0 or 1).

    Raises:
        ValueError: the level is outside (0, 1).
    """
    _check_level(level)
    count, x = len(totals.labels), math.fsum(totals.below)
    if x <= 0:
        return MeanEstimate(
            value=None, level=level, n=totals.n, n_clusters=count, reason="nothing to divide by"
        )
    value = math.fsum(totals.above) / x
    if count < minimum_clusters:
        return _without_interval(value, totals.n, count, level, minimum_clusters)
    error = _spread((totals.above - value * totals.below) / x)
    low, high = _limits(value, error, _quantile(level, count), scale)
    return MeanEstimate(value=value, low=low, high=high, level=level, n=totals.n, n_clusters=count)


def ratio_of_ratios(
    arm: Totals, versus: Totals, *, level: float = 0.95, minimum_clusters: int = MINIMUM_CLUSTERS
) -> MeanEstimate:
    """Return (Σy / Σx of the arm) / (Σy / Σx of the other) on the log scale, common clusters paired.

    Raises:
        ValueError: the level is outside (0, 1).
    """
    _check_level(level)
    labels = sorted({*arm.labels, *versus.labels})
    n = arm.n + versus.n
    sums = [math.fsum(part) for part in (arm.above, arm.below, versus.above, versus.below)]
    if min(sums) <= 0:
        reason = "one of the totals is not positive, so there is no ratio"
        return MeanEstimate(value=None, level=level, n=n, n_clusters=len(labels), reason=reason)
    value = (sums[0] / sums[1]) / (sums[2] / sums[3])
    if len(labels) < minimum_clusters:
        return _without_interval(value, n, len(labels), level, minimum_clusters)
    error = _spread(_influence(arm, labels) - _influence(versus, labels))
    low, high = _limits(value, error * value, _quantile(level, len(labels)), "log")
    return MeanEstimate(value=value, low=low, high=high, level=level, n=n, n_clusters=len(labels))


def _influence(totals: Totals, labels: list[str]) -> Floats:
    """Return what each cluster adds to log(Σy / Σx), shape (labels,); 0 where the arm lacks the cluster."""
    own = totals.above / math.fsum(totals.above) - totals.below / math.fsum(totals.below)
    by_label = dict(zip(totals.labels, own, strict=True))
    return np.array([by_label.get(label, 0.0) for label in labels], dtype=np.float64)


def _spread(influence: Floats) -> float:
    """Return the standard error of a sum of influences, each of mean about 0: √(G/(G−1) Σψ²)."""
    count = len(influence)
    return math.sqrt(count / (count - 1) * math.fsum(influence**2))


def _limits(value: float, error: float, quantile: float, scale: Scale) -> tuple[float, float]:
    reach = quantile * error
    if scale == "logit" and 0.0 < value < 1.0:
        centre, width = math.log(value / (1 - value)), reach / (value * (1 - value))
        return _expit(centre - width), _expit(centre + width)
    if scale == "log" and value > 0.0:
        return value * math.exp(-reach / value), value * math.exp(min(reach / value, 700.0))
    return value - reach, value + reach


def _expit(at: float) -> float:
    return 1 / (1 + math.exp(-at)) if at > -700.0 else 0.0


def _quantile(level: float, clusters: int) -> float:
    return student_quantile(0.5 + level / 2, clusters - 1)


def _exact_sums(values: Floats, index: npt.NDArray[np.intp], count: int) -> Floats:
    """Sum by cluster without rounding, so that the order of rows cannot show."""
    if _add_exactly(values):
        return np.bincount(index, weights=values, minlength=count).astype(np.float64, copy=False)
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=count))
    rows = values[order].tolist()
    return np.array([math.fsum(rows[a:b]) for a, b in pairwise([0, *ends.tolist()])], dtype=np.float64)


def _add_exactly(values: Floats) -> bool:
    """Return whether every sum of some of the values is exact: whole numbers that stay below 2⁵³."""
    return bool((values == np.floor(values)).all() and np.abs(values).sum() < _EXACT_BELOW)


def _without_interval(value: float, n: int, count: int, level: float, floor: int) -> MeanEstimate:
    return MeanEstimate(
        value=value,
        level=level,
        n=n,
        n_clusters=count,
        reason=f"{count} of at least {floor} prompts for an interval",
        needed=floor - count,
    )


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is a share between 0 and 1, got {level}")


MINIMUM_VALUES = 3


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`value` with its interval [`low`, `high`] at `level`; the interval is None below three values."""

    value: float
    low: float | None
    high: float | None
    level: float
    n: int


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """Standard error of a sample's median and its degrees of freedom."""

    error: float
    degrees: int


def median_interval(
    values: npt.ArrayLike, *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Return the median of positive values, its interval taken on the log scale.

    Raises:
        ValueError: no value, or one that is not positive.
    """
    sample = _positive(values)
    spread = _spread_of_medians(np.log(sample), resamples, np.random.default_rng(seed))
    centre = float(np.median(sample))
    return _around(centre, (spread,), extra_error=0.0, level=level, count=len(sample), move=_times)


def median_ratio(
    above: npt.ArrayLike,
    below: npt.ArrayLike,
    *,
    extra_error: float = 0.0,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return median(above) / median(below) of positive values.

    `extra_error`: standard error on the log scale from elsewhere, such as drift, added in quadrature.

    Raises:
        ValueError: a sample is empty, or holds a value that is not positive.
    """
    first, second = _positive(above), _positive(below)
    rng = np.random.default_rng(seed)
    spreads = (
        _spread_of_medians(np.log(first), resamples, rng),
        _spread_of_medians(np.log(second), resamples, rng),
    )
    centre = float(np.median(first) / np.median(second))
    return _around(
        centre,
        spreads,
        extra_error=extra_error,
        level=level,
        count=len(first) + len(second),
        move=_times,
    )


def median_difference(
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    *,
    extra_error: float = 0.0,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return median(first) − median(second); `extra_error` is in the values' own unit.

    Raises:
        ValueError: a sample is empty.
    """
    left, right = _filled(first), _filled(second)
    rng = np.random.default_rng(seed)
    spreads = (_spread_of_medians(left, resamples, rng), _spread_of_medians(right, resamples, rng))
    centre = float(np.median(left) - np.median(right))
    return _around(
        centre, spreads, extra_error=extra_error, level=level, count=len(left) + len(right), move=_plus
    )


def _spread_of_medians(values: Floats, resamples: int, rng: np.random.Generator) -> _Spread | None:
    count = len(values)
    if count < MINIMUM_VALUES:
        return None
    draws = np.median(values[rng.integers(0, count, size=(resamples, count - 1))], axis=1)
    return _Spread(error=float(np.std(draws)), degrees=count - 1)


def _around(
    centre: float,
    spreads: tuple[_Spread | None, ...],
    *,
    extra_error: float,
    level: float,
    count: int,
    move: Callable[[float, float], float],
) -> Estimate:
    known = [spread for spread in spreads if spread is not None]
    if len(known) < len(spreads):
        return Estimate(value=centre, low=None, high=None, level=level, n=count)
    variances = [spread.error**2 for spread in known]
    error = float(np.sqrt(sum(variances) + extra_error**2))
    reach = student_quantile(0.5 + level / 2, _welch(known)) * error
    return Estimate(value=centre, low=move(centre, -reach), high=move(centre, reach), level=level, n=count)


def _welch(spreads: list[_Spread]) -> float:
    """Return the degrees of freedom of a sum of independent errors (Welch 1947)."""
    total = sum(spread.error**2 for spread in spreads)
    if total == 0.0:
        return float(min(spread.degrees for spread in spreads))
    return float(total**2 / sum(spread.error**4 / spread.degrees for spread in spreads))


def _times(centre: float, reach: float) -> float:
    return centre * float(np.exp(reach))


def _plus(centre: float, reach: float) -> float:
    return centre + reach


def _positive(values: npt.ArrayLike) -> Floats:
    sample = _filled(values)
    if not (np.isfinite(sample).all() and (sample > 0).all()):
        raise ValueError("a value is not a positive number")
    return sample


def _filled(values: npt.ArrayLike) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"a filled one-dimensional sample is needed, got shape {sample.shape}")
    return sample
