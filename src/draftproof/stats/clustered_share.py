"""The interval of a share whose trials rise and fall together: by prompt, and by their place in a queue.

The exact interval of Clopper & Pearson at an effective number of trials: Korn & Graubard (1998), "Confidence
intervals for proportions with small expected number of positive counts estimated from survey data", Survey
Methodology 24(2), 193-201. Two things make trials worth less than their number. Trials of one prompt: by the
variance of the share as a ratio of cluster totals (Cochran 1977, "Sampling Techniques", section 9A.2). Trials
one after the other: a queue makes late requests come in runs, so that a stretch without one says little; what
a stretch is worth is told by the correlation time of the quantity behind the successes, which can be seen
before the first failure. The one that leaves less counts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.stats.laws import average_ranks, beta_quantile, student_quantile

Floats = npt.NDArray[np.float64]


class ClusteredShare(NamedTuple):
    """A share with its interval; `effective` is the number of independent trials that the `n` are worth."""

    value: float
    low: float
    high: float
    n: int
    effective: float


def clustered_share(
    successes: npt.ArrayLike, clusters: npt.ArrayLike, level: float, *, correlation_time: float = 1.0
) -> ClusteredShare | None:
    """Return the share of successes with its interval, None without a trial.

    Args:
        successes: shape (n,), 1 or 0 for each trial.
        clusters: shape (n,), label of the prompt of each trial.
        level: coverage, e.g. 0.95.
        correlation_time: trials in a row that are worth one, see `correlation_time`; at least 1.

    Raises:
        ValueError: shapes differ, or level is outside (0, 1).
    """
    hits, labels = np.asarray(successes, dtype=float), np.asarray(clusters)
    if not 0.0 < level < 1.0 or labels.shape != hits.shape or hits.ndim != 1:
        raise ValueError("a share needs one cluster for each trial and a level between 0 and 1")
    if not hits.size:
        return None
    share = float(hits.mean())
    effective = min(
        hits.size / max(1.0, correlation_time), _effective_of_clusters(hits, share, labels, level)
    )
    low, high = exact_limits(share * effective, effective, level)
    return ClusteredShare(share, low, high, hits.size, effective)


def exact_limits(successes: float, trials: float, level: float) -> tuple[float, float]:
    """Return the limits of Clopper & Pearson; counts may be fractions."""
    tail, failures = (1.0 - level) / 2.0, trials - successes
    low = beta_quantile(tail, successes, failures + 1.0) if successes > 0 else 0.0
    high = beta_quantile(1.0 - tail, successes + 1.0, failures) if failures > 1e-9 else 1.0
    return low, high


def correlation_time(runs: Sequence[npt.ArrayLike]) -> float:
    """Return how many trials in a row are worth one independent trial, at least 1.

    1 + 2 Σ r(k) over the autocorrelations r of the ranks, summed while the sum of two neighbours is positive
    and does not rise (initial monotone sequence, Geyer 1992, Statistical Science 7(4), 473-483); and one
    standard error of it more, a factor of 1 + √(2(2W + 1)/n) with W the last lag summed (Madras & Sokal 1988,
    Journal of Statistical Physics 50, 109-186), since a short series shows too little of its own correlation.
    Ranks, so that infinite values and a long tail do no harm.

    Args:
        runs: each of shape (m,), the quantity behind the successes in the order of time; lags do not reach
            from one run to the next.
    """
    ranks = _centred_ranks(runs)
    total, count = math.fsum(float(run @ run) for run in ranks), sum(run.size for run in ranks)
    longest = max((run.size for run in ranks), default=0)
    if total <= 0.0:
        return 1.0
    time, before, last = -1.0, math.inf, 0
    for lag in range(0, longest, 2):
        pair = min(_autocorrelation(ranks, lag, total) + _autocorrelation(ranks, lag + 1, total), before)
        if pair <= 0.0:
            break
        time, before, last = time + 2.0 * pair, pair, lag + 1
    if time <= 1.0:
        return 1.0
    return time * (1.0 + math.sqrt(2.0 * (2.0 * last + 1.0) / count))


def rising_times(times: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """Return the correlation times of one queue at rising loads as one curve that does not fall.

    The nearer a queue is to its capacity, the longer it remembers. So of two estimates the wrong way round
    both are replaced by their weighted mean, in logarithms: isotonic regression by pooling adjacent violators
    (Barlow, Bartholomew, Bremner & Brunk 1972, "Statistical Inference under Order Restrictions").

    Args:
        times: shape (k,), each at least 1, from the lowest load to the highest.
        weights: shape (k,), the number of trials behind each.

    Raises:
        ValueError: shapes differ.
    """
    if len(times) != len(weights):
        raise ValueError("each time needs a weight")
    if len(times) < 2:
        return tuple(times)
    fitted = scipy.optimize.isotonic_regression(np.log(times), weights=np.asarray(weights, dtype=float))
    return tuple(float(time) for time in np.exp(fitted.x))


def _centred_ranks(runs: Sequence[npt.ArrayLike]) -> list[Floats]:
    series = [np.asarray(run, dtype=float) for run in runs]
    if not sum(one.size for one in series):
        return []
    ranks = average_ranks(np.concatenate(series))
    return np.split(ranks - ranks.mean(), np.cumsum([one.size for one in series])[:-1])


def _autocorrelation(runs: Sequence[Floats], lag: int, total: float) -> float:
    return math.fsum(float(run[lag:] @ run[: run.size - lag]) for run in runs if run.size > lag) / total


def _effective_of_clusters(hits: Floats, share: float, labels: npt.NDArray[np.str_], level: float) -> float:
    """Return the effective number of trials of some prompts; all of them where none succeeded or failed."""
    _, groups = np.unique(labels, return_inverse=True)
    excess = np.bincount(groups, weights=hits - share)
    count = excess.size
    if share in (0.0, 1.0) or count == hits.size:
        return float(hits.size)
    if count < 2:
        return 1.0
    variance = count / (count - 1) * float(excess @ excess) / hits.size**2
    independent = share * (1.0 - share) / hits.size
    tail = 0.5 + level / 2.0
    width = student_quantile(tail, count - 1) / student_quantile(tail, hits.size - 1)
    return max(1.0, hits.size / (max(1.0, variance / independent) * width**2))
