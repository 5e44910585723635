"""Ratio and difference of the medians of two independent samples, by bootstrap.

Each sample is resampled on its own, n − 1 values of n with replacement as in `resampling.draw_weights`, and
the interval is Student's t around the estimate with Welch's degrees of freedom: with five values a percentile
of the draws cannot look beyond the sample. Ratios have it on the logarithmic scale.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.stats.laws import student_quantile
from draftproof.stats.resampling import Floats

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
    spread = _spread(np.log(sample), resamples, np.random.default_rng(seed))
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
    """Return median(above) / median(below).

    Args:
        above: shape (n,), positive.
        below: shape (m,), positive.
        extra_error: standard error on the log scale from elsewhere, such as drift, added in quadrature.
        level: coverage of the interval.
        resamples: number of bootstrap draws.
        seed: of the draws.

    Raises:
        ValueError: a sample is empty, or holds a value that is not positive.
    """
    first, second = _positive(above), _positive(below)
    rng = np.random.default_rng(seed)
    spreads = (_spread(np.log(first), resamples, rng), _spread(np.log(second), resamples, rng))
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
    spreads = (_spread(left, resamples, rng), _spread(right, resamples, rng))
    centre = float(np.median(left) - np.median(right))
    return _around(
        centre, spreads, extra_error=extra_error, level=level, count=len(left) + len(right), move=_plus
    )


def _spread(values: Floats, resamples: int, rng: np.random.Generator) -> _Spread | None:
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
