"""Intervals for shares: one share, and the difference of two shares on the same prompts."""

import math
from collections.abc import Callable
from typing import NamedTuple

import scipy

from draftproof.stats.laws import beta_quantile, normal_quantile

EDGE = 1e-12  # the score is evaluated strictly inside [−1, 1]


class ShareDifference(NamedTuple):
    """First share − second share with its interval; None where there is no pair."""

    difference: float | None
    low: float | None
    high: float | None


class ShareInterval(NamedTuple):
    """A share with its interval; None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def share_interval(successes: int, n: int, level: float = 0.95) -> ShareInterval:
    """Return successes / n with the exact interval of Clopper & Pearson (1934).

    It never covers less than `level`, at the price of some width: a gate errs to the careful side.

    Raises:
        ValueError: successes are not between 0 and n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes must lie between 0 and n, got {successes} of {n}")
    if n == 0:
        return ShareInterval(None, None, None)
    tail, failures = (1.0 - level) / 2.0, n - successes
    low = beta_quantile(tail, successes, failures + 1) if successes else 0.0
    high = beta_quantile(1.0 - tail, successes + 1, failures) if failures else 1.0
    return ShareInterval(successes / n, low, high)


def paired_share_difference(
    both: float, only_first: float, only_second: float, neither: float, level: float = 0.95
) -> ShareDifference:
    """Return the difference of two paired shares with Tango's score interval.

    Tango (1998), "Equivalence test and confidence interval for the difference in proportions for the
    paired-sample design", Statistics in Medicine 17, 891-908. It keeps its coverage for few pairs and shares
    near 0 or 1, and has a width even where the arms never differed.

    Counts may be fractions, where repeats of a prompt share its one vote: their variance is at most that of
    whole votes, so the interval is on the wide side.

    Args:
        both: pairs that succeeded in both arms.
        only_first: pairs that succeeded in the first arm only.
        only_second: pairs that succeeded in the second arm only.
        neither: pairs that succeeded in neither.
        level: coverage, e.g. 0.95.

    Raises:
        ValueError: a count is negative or level is outside (0, 1).
    """
    if min(both, only_first, only_second, neither) < 0 or not 0.0 < level < 1.0:
        raise ValueError("counts must not be negative and level must lie between 0 and 1")
    n = both + only_first + only_second + neither
    if n == 0:
        return ShareDifference(None, None, None)
    quantile = normal_quantile(0.5 + level / 2)

    def score(difference: float) -> float:
        return tango_score(only_first, only_second, n, difference)

    return ShareDifference(
        (only_first - only_second) / n,
        _solve(score, quantile, whole_side=-1.0 if only_second == n else None),
        _solve(score, -quantile, whole_side=1.0 if only_first == n else None),
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


def _solve(score: Callable[[float], float], target: float, *, whole_side: float | None) -> float:
    # The score falls from +∞ to −∞ over (−1, 1), but for the arm that won or lost every pair.
    if whole_side is not None:
        return whole_side
    return float(
        scipy.optimize.brentq(lambda at: _bounded(score(at)) - target, -1.0 + EDGE, 1.0 - EDGE, xtol=1e-12)
    )


def _bounded(value: float) -> float:
    return max(-1e9, min(1e9, value))
