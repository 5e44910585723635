"""Many comparisons at once: intervals that hold together, and Holm's step-down decisions.

Two tools, two guarantees.

`simultaneous_intervals`: all intervals of the family cover their true ratios at the same time with at least
the family's level (Bonferroni: each at 1 − alpha/m). Whatever is read off them holds jointly, whichever cell
a reader picks and against whatever margin.

`holm_adjusted`, `holm_levels`: Holm (1979), "A simple sequentially rejective multiple test procedure",
Scand. J. Statist. 6, 65-70. The chance that any true hypothesis is rejected is at most alpha, with more
power than Bonferroni. That is a guarantee for decisions against one stated boundary, not for intervals:
those at the step-down levels do not cover jointly, for if no ratio is 1 every level is used and the chances
of a miss add up to alpha·(1 + 1/2 + … + 1/m). The two-sided intervals that go with Holm's test are the
Bonferroni ones: inverting the test leaves all other ratios free to differ from 1, and then each is held at
alpha/m. For that reason both guarantees hold together: the intervals cover and Holm's rejections are right,
with 1 − alpha.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.judge.stats.bootstrap import RatioEstimate, interval_at, p_value


@dataclass(frozen=True, kw_only=True)
class SimultaneousInterval:
    """One comparison's share in a family.

    `low`, `high` hold jointly over the family, each at `level` by itself. `adjusted_p` is Holm's p-value
    against ratio = 1; `rejected` says it is at most alpha. None where there is no estimate.
    """

    low: float | None
    high: float | None
    level: float | None
    p: float | None
    adjusted_p: float | None
    rejected: bool | None


def simultaneous_intervals(
    estimates: Sequence[RatioEstimate], alpha: float, boundary: float = 1.0
) -> tuple[SimultaneousInterval, ...]:
    """Widen the intervals of a family so that all of them hold at once; in the order given.

    Comparisons without an estimate make no claim and do not count in the family's size. No draws beyond those
    of the single intervals are needed: see `bootstrap`.
    """
    ps = [p_value(estimate, boundary) for estimate in estimates]
    family = sum(p is not None for p in ps)
    level = bonferroni_level(family, alpha)
    adjusted = holm_adjusted(ps)
    return tuple(
        _place(estimate, level, p, corrected, alpha)
        for estimate, p, corrected in zip(estimates, ps, adjusted, strict=True)
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


def holm_levels(p_values: Sequence[float | None], alpha: float) -> tuple[float | None, ...]:
    """Return the level at which Holm tests each comparison: 1 − alpha/(m − k + 1) for the k-th smallest p.

    For decisions against the boundary of the p-values; for intervals to be read jointly use
    `simultaneous_intervals`. Ties take their order of appearance.

    Raises:
        ValueError: alpha is outside (0, 1).
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    levels: list[float | None] = [None] * len(p_values)
    for rank, (_, index) in enumerate(known):
        levels[index] = bonferroni_level(len(known) - rank, alpha)
    return tuple(levels)


def _place(
    estimate: RatioEstimate, level: float, p: float | None, adjusted: float | None, alpha: float
) -> SimultaneousInterval:
    if adjusted is None:
        return SimultaneousInterval(low=None, high=None, level=None, p=None, adjusted_p=None, rejected=None)
    low, high = interval_at(estimate, level)
    return SimultaneousInterval(
        low=low, high=high, level=level, p=p, adjusted_p=adjusted, rejected=adjusted <= alpha
    )
