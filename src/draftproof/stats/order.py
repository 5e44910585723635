"""Effects of order: does an arm's place in its block, or the time of day of the run, move the latencies?

Interleaving keeps such effects from favouring an arm; these figures tell how large they are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.stats.resampling import Floats, index_labels

MINIMUM_BLOCKS = 3
MINIMUM_VALUES = 8


@dataclass(frozen=True, kw_only=True)
class PositionEffect:
    """How much places in a block differ.

    `ratios` holds one factor per place, the geometric mean over blocks of (place / block); `p` is Friedman's
    test that all places are alike. None with a `reason` where it cannot be told; `needed` more blocks.
    """

    ratios: tuple[float, ...] | None
    p: float | None
    blocks: int
    reason: str | None = None
    needed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Monotone change over a run: Theil-Sen slope of log values as a factor per hour, and Kendall's p."""

    factor_per_hour: float | None
    p: float | None
    n: int
    reason: str | None = None
    needed: int | None = None


def position_effect(values: npt.ArrayLike, positions: npt.ArrayLike, blocks: npt.ArrayLike) -> PositionEffect:
    """Return the effect of the place in a block on positive values.

    Args:
        values: shape (n,), e.g. one mean latency per block and place, already divided by its arm's mean so
            that arms do not pass for places.
        positions: shape (n,), place labels.
        blocks: shape (n,), block labels. Blocks that lack a place are left out.
    """
    table = _tabulate(np.log(np.asarray(values, dtype=np.float64)), positions, blocks)
    complete, places = table.shape
    if places < 2:
        return PositionEffect(ratios=None, p=None, blocks=complete, reason="there is one place only")
    if complete < MINIMUM_BLOCKS:
        return PositionEffect(
            ratios=None,
            p=None,
            blocks=complete,
            reason=f"{complete} of at least {MINIMUM_BLOCKS} complete blocks",
            needed=MINIMUM_BLOCKS - complete,
        )
    centred = table - table.mean(axis=1, keepdims=True)
    ratios = tuple(float(ratio) for ratio in np.exp(centred.mean(axis=0)))
    return PositionEffect(ratios=ratios, p=_place_p(table), blocks=complete)


def drift(values: npt.ArrayLike, times_ns: npt.ArrayLike) -> Drift:
    """Return how positive values change over time; `times_ns` in nanoseconds of one clock, shape (n,)."""
    logs, times = np.log(np.asarray(values, dtype=np.float64)), np.asarray(times_ns, dtype=np.float64)
    if len(logs) < MINIMUM_VALUES:
        needed = MINIMUM_VALUES - len(logs)
        reason = f"{len(logs)} of at least {MINIMUM_VALUES} values"
        return Drift(factor_per_hour=None, p=None, n=len(logs), reason=reason, needed=needed)
    if np.ptp(times) == 0:
        return Drift(factor_per_hour=None, p=None, n=len(logs), reason="all values have the same time")
    if np.ptp(logs) == 0:
        return Drift(factor_per_hour=1.0, p=1.0, n=len(logs))
    hours = (times - times.min()) / 3.6e12
    slope = float(scipy.stats.theilslopes(logs, hours).slope)
    return Drift(
        factor_per_hour=float(np.exp(slope)), p=float(scipy.stats.kendalltau(hours, logs).pvalue), n=len(logs)
    )


def _tabulate(values: Floats, positions: npt.ArrayLike, blocks: npt.ArrayLike) -> Floats:
    rows, columns = index_labels(blocks), index_labels(positions)
    shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    totals, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (rows, columns), values)
    np.add.at(counts, (rows, columns), 1.0)
    full = (counts > 0).all(axis=1)
    return totals[full] / counts[full]


def _place_p(table: Floats) -> float:
    if np.ptp(table, axis=1).max() == 0:
        return 1.0
    if table.shape[1] == 2:
        # Friedman needs three places; for two it is the sign test.
        differences = table[:, 0] - table[:, 1]
        higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
        return float(scipy.stats.binomtest(higher, higher + lower).pvalue)
    return float(scipy.stats.friedmanchisquare(*table.T).pvalue)
