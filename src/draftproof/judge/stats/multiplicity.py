"""Many comparisons at once: intervals that hold together, and Holm's step-down decisions.

`simultaneous_intervals` cover all true ratios at once with at least the family's level (Bonferroni, each at 1
− alpha/m). `holm_adjusted` (Holm 1979, Scand. J. Statist. 6, 65-70) rejects any true hypothesis with at most
alpha; it decides against one stated boundary and makes no intervals, since those at the step-down levels
would not cover jointly.
"""

from collections.abc import Sequence
from typing import NamedTuple

from draftproof.judge.stats.bootstrap import RatioEstimate, interval_at


class SimultaneousInterval(NamedTuple):
    """Limits that hold jointly over a family, each at `level` by itself; None without an estimate."""

    low: float | None
    high: float | None
    level: float | None


NOT_ESTIMATED = SimultaneousInterval(None, None, None)


def simultaneous_intervals(
    estimates: Sequence[RatioEstimate], alpha: float
) -> tuple[SimultaneousInterval, ...]:
    """Widen the intervals of a family so that all of them hold at once; in the order given.

    Comparisons without an estimate make no claim and do not count in the family's size.
    """
    known = [one.value is not None and one.standard_error is not None for one in estimates]
    level = bonferroni_level(sum(known), alpha)
    return tuple(
        SimultaneousInterval(*interval_at(one, level), level) if is_known else NOT_ESTIMATED
        for one, is_known in zip(estimates, known, strict=True)
    )


def bonferroni_level(family: int, alpha: float) -> float:
    """Return the level each of `family` intervals needs so that all hold with 1 − alpha.

    Raises:
        ValueError: alpha is outside (0, 1).
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is a share between 0 and 1, got {alpha}")
    return 1.0 - alpha / max(1, family)


def holm_adjusted(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return Holm's adjusted p-values in the order given; None stays None and is outside the family.

    The k-th smallest is multiplied by m − k + 1 and never falls below the one before it.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return tuple(adjusted)
