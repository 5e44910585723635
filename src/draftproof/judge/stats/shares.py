"""Intervals for shares: of one, of one whose trials go together, and of the difference of two.

Trials that rise and fall together enter Clopper & Pearson's exact interval as an effective number (Korn &
Graubard 1998, Survey Methodology 24(2), 193-201): by prompt, from the variance of a ratio of cluster totals
(Cochran 1977, section 9A.2), and by their position in a queue, from the correlation time of the quantity
behind the successes, which shows before the first failure. The one that leaves less counts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.judge.stats.quantiles import average_ranks, beta_quantile, normal_quantile, student_quantile
from draftproof.judge.stats.roots import find_root

Floats = npt.NDArray[np.float64]
EDGE = 1e-12  # the score is evaluated strictly inside [−1, 1]


class ShareInterval(NamedTuple):
    """A share, or first share − second share, with its interval; None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def share_interval(successes: int, n: int, level: float = 0.95) -> ShareInterval:
    """Return successes / n with the exact interval of Clopper & Pearson (1934), never below `level`.

    Raises:
        ValueError: successes are not between 0 and n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and n, got {successes} of {n}")
    if n == 0:
        return ShareInterval(None, None, None)
    return ShareInterval(successes / n, *exact_limits(successes, n, level))


def exact_limits(successes: float, trials: float, level: float) -> tuple[float, float]:
    """Return the limits of Clopper & Pearson; counts may be fractions."""
    tail, failures = (1.0 - level) / 2.0, trials - successes
    low = beta_quantile(tail, successes, failures + 1.0) if successes > 0 else 0.0
    high = beta_quantile(1.0 - tail, successes + 1.0, failures) if failures > 1e-9 else 1.0
    return low, high


def paired_share_difference(
    both: float, only_first: float, only_second: float, neither: float, level: float = 0.95
) -> ShareInterval:
    """Return the difference of two paired shares with Tango's score interval.

    Tango (1998), Statistics in Medicine 17, 891-908. It keeps its coverage for few pairs and shares near 0 or
    1. Counts may be fractions, where repeats of a prompt share its one vote: the interval is then on the wide
    side.

    Raises:
        ValueError: a count is negative or level is outside (0, 1).
    """
    if min(both, only_first, only_second, neither) < 0 or not 0.0 < level < 1.0:
        raise ValueError("counts must not be negative and level must lie between 0 and 1")
    n = both + only_first + only_second + neither
    if n == 0:
        return ShareInterval(None, None, None)
    quantile = normal_quantile(0.5 + level / 2)

    def solve(target: float) -> float:
        # The score falls from +∞ to −∞ over (−1, 1), but for the arm that won or lost every pair.
        def off(at: float) -> float:
            return max(-1e9, min(1e9, tango_score(only_first, only_second, n, at))) - target

        return find_root(off, -1.0 + EDGE, 1.0 - EDGE, within=1e-12)

    return ShareInterval(
        (only_first - only_second) / n,
        -1.0 if only_second == n else solve(quantile),
        1.0 if only_first == n else solve(-quantile),
    )


def tango_score(only_first: float, only_second: float, n: float, difference: float) -> float:
    """Return Tango's standardised score for a true difference strictly between −1 and 1.

    (b − c − nδ) / √(n(2p + δ(1 − δ))), where p, the chance of "only second", is its maximum-likelihood
    value given δ. At δ = 0 it is McNemar's (b − c)/√(b + c).
    """
    chance = restricted_share(only_first, only_second, n, difference)
    variance = n * (2.0 * chance + difference * (1.0 - difference))
    excess = only_first - only_second - n * difference
    if variance <= 0.0:
        return math.copysign(math.inf, excess) if excess else 0.0
    return excess / math.sqrt(variance)


def restricted_share(only_first: float, only_second: float, n: float, difference: float) -> float:
    """Return the maximum-likelihood share of "only second" if the true difference is `difference`.

    Counts, or shares with n = 1 (Tango 1998).
    """
    linear = (2.0 * n - only_first + only_second) * difference - only_first - only_second
    constant = -only_second * difference * (1.0 - difference)
    root = math.sqrt(max(0.0, linear * linear - 8.0 * n * constant))
    return (root - linear) / (4.0 * n)


class ClusteredShare(NamedTuple):
    """A share with its interval; `effective` is the number of independent trials that the `n` count for."""

    value: float
    low: float
    high: float
    n: int
    effective: float


def clustered_share(
    successes: npt.ArrayLike, clusters: npt.ArrayLike, level: float, *, correlation_time: float = 1.0
) -> ClusteredShare | None:
    """Return the share of successes, shape (n,) of 1 or 0, with its interval by prompt; None without a trial.

    `correlation_time`: trials in a row that count for one, at least 1.

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


def correlation_time(runs: Sequence[npt.ArrayLike]) -> float:
    """Return how many trials in a row count for one independent trial, at least 1.

    Each run is in the order of time. 1 + 2 Σ r(k) over the autocorrelations of the ranks, summed while the
    sum of two neighbours is positive and does not rise (Geyer 1992, Statistical Science 7(4), 473-483), and
    one standard error more, 1 + √(2(2W + 1)/n) with W the last lag (Madras & Sokal 1988, J. Stat. Phys. 50,
    109-186), since a short series shows too little of it.
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
    """Return the correlation times of one queue at rising loads as a curve that does not fall.

    Of estimates the wrong way round both become their mean in logarithms, weighted by trials: isotonic
    regression (Barlow, Bartholomew, Bremner & Brunk 1972).

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
