"""Effects of order: positions in a block, drift over a run, and what precedes the measurement periods.

Interleaving keeps such effects from favouring an arm; these figures tell how large they are. Where the
periods of one arm more often follow a pause, or one particular arm, values are fitted as block + arm +
circumstances (analysis of covariance, Cochran 1957) and the bias of the arms' difference is the difference of
shares times the fitted effect. What no period tells is bounded by an assumption, `MOST`.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftproof.judge.stats.periods import centre_periods
from draftproof.judge.stats.quantiles import student_quantile
from draftproof.judge.stats.rank_tests import friedman_p, kendall_p, kruskal_p, sign_test, theil_sen_slope
from draftproof.judge.stats.resampling import Floats, Ints, index_labels

MINIMUM_BLOCKS = 3
MINIMUM_VALUES = 8


@dataclass(frozen=True, kw_only=True)
class PositionEffect:
    """How much positions in a block differ: one factor per position, and the test that all are alike.

    The factors are geometric means over `n` blocks, or over `n` periods of one arm. None with a `reason`
    where it is not known; `needed` more blocks, or periods at the position that has fewest.
    """

    ratios: tuple[float, ...] | None
    p: float | None
    n: int
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
    """Return the effect of the position in a block on positive values.

    Friedman's test, of two positions the sign test. Shape (n,) each: one mean latency per block and position,
    divided by its arm's mean so that arms do not pass for positions, with its position and block. Blocks that
    lack a position are left out.
    """
    table = _tabulate(np.log(np.asarray(values, dtype=np.float64)), positions, blocks)
    complete, count = table.shape
    if count < 2:
        return PositionEffect(ratios=None, p=None, n=complete, reason="there is one position only")
    if complete < MINIMUM_BLOCKS:
        return PositionEffect(
            ratios=None,
            p=None,
            n=complete,
            reason=f"{complete} of at least {MINIMUM_BLOCKS} complete blocks",
            needed=MINIMUM_BLOCKS - complete,
        )
    centred = table - table.mean(axis=1, keepdims=True)
    ratios = tuple(float(ratio) for ratio in np.exp(centred.mean(axis=0)))
    return PositionEffect(ratios=ratios, p=_position_p(table), n=complete)


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
    slope = theil_sen_slope(logs, hours)
    return Drift(factor_per_hour=float(np.exp(slope)), p=kendall_p(hours, logs), n=len(logs))


def _tabulate(values: Floats, positions: npt.ArrayLike, blocks: npt.ArrayLike) -> Floats:
    rows, columns = index_labels(blocks), index_labels(positions)
    shape = (int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1)
    totals, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(totals, (rows, columns), values)
    np.add.at(counts, (rows, columns), 1.0)
    full = (counts > 0).all(axis=1)
    return totals[full] / counts[full]


def _position_p(table: Floats) -> float:
    if np.ptp(table, axis=1).max() == 0:
        return 1.0
    if table.shape[1] == 2:
        # Friedman needs three positions; for two it is the sign test.
        differences = table[:, 0] - table[:, 1]
        higher, lower = int((differences > 0).sum()), int((differences < 0).sum())
        return sign_test(higher, lower)
    return friedman_p(table)


MINIMUM_TURNS = 3  # of one position: with fewer the chi-square of Kruskal & Wallis is no approximation


def compare_positions(values: npt.ArrayLike, positions: npt.ArrayLike) -> PositionEffect:
    """Return how values of independent periods of one arm differ by position: Kruskal & Wallis (1952).

    Values, positive, shape (n,), are freed of what the block does to every arm.

    Raises:
        ValueError: shapes differ.
    """
    logs, where = np.log(np.asarray(values, dtype=np.float64)), np.asarray(positions)
    if logs.shape != where.shape:
        raise ValueError(f"one position per value is needed, got {where.shape} for {logs.shape}")
    labels, index, sizes = np.unique(where, return_inverse=True, return_counts=True)
    if len(labels) < 2:
        return PositionEffect(ratios=None, p=None, n=len(logs), reason="there is one position only")
    fewest = int(sizes.min())
    if fewest < MINIMUM_TURNS:
        return PositionEffect(
            ratios=None,
            p=None,
            n=len(logs),
            reason=f"{fewest} of at least {MINIMUM_TURNS} periods in a position",
            needed=MINIMUM_TURNS - fewest,
        )
    means = np.bincount(index, weights=logs) / sizes
    ratios = tuple(float(ratio) for ratio in np.exp(means - logs.mean()))
    p = 1.0 if np.ptp(logs) == 0 else kruskal_p(logs, index)
    return PositionEffect(ratios=ratios, p=p, n=len(logs))


TOLERANCE = 1e-9
# What precedes a period leaves heat, clocks, caches and queues behind. Between the clock that a server's
# processor or accelerator holds under load and its boost lies a factor of 1.2 to 1.5.
MOST = 1.5


@dataclass(frozen=True, kw_only=True)
class Bias:
    """What circumstances add to the log ratio of two arms, with its interval.

    `assumed`: how far the interval reaches to either side for what no period tells; 0 where periods tell all.
    """

    value: float
    low: float
    high: float
    assumed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """What periods tell of a bias, its standard error and degrees of freedom, and the shares of the rest."""

    value: float
    error: float
    degrees: int
    undetermined: float


def estimate_bias(
    values: Floats, circumstances: Floats, kinds: Ints, arm: int, versus: int, *, level: float = 0.95
) -> Bias:
    """Return what circumstances add to the mean of arm column `arm` less that of column `versus`.

    `values`, shape (blocks, arms): log value of each period. `circumstances`, shape (circumstances, blocks,
    arms), such as 1 after a pause and 0 else. `kinds`, shape (arms,): what each arm is, the same for equal
    arms, whose difference tells of a circumstance where no arm does by its own periods.
    """
    differences = circumstances[:, :, arm].mean(axis=1) - circumstances[:, :, versus].mean(axis=1)
    fit = _fit(values, circumstances, np.arange(len(kinds)), differences)
    if fit.undetermined:
        fit = _fit(values, circumstances, kinds, differences)
    reach = student_quantile(0.5 + level / 2.0, max(1, fit.degrees)) * fit.error
    # All that precedes a period together makes it no more than MOST times as slow or as fast.
    assumed, most = (math.log(MOST) * min(1.0, share) for share in (fit.undetermined, _add_up(differences)))
    if abs(fit.value) > most:  # this run shows otherwise
        most = math.inf
    return Bias(
        value=fit.value,
        low=max(fit.value - reach - assumed, -most),
        high=min(fit.value + reach + assumed, most),
        assumed=assumed,
    )


def _fit(values: Floats, circumstances: Floats, kinds: Ints, differences: Floats) -> _Fit:
    blocks, arms = values.shape
    design = centre_periods(np.moveaxis(circumstances, 0, -1), kinds).reshape(blocks * arms, -1)
    roots, vectors = np.linalg.eigh(design.T @ design)
    vectors, roots = vectors[:, roots > TOLERANCE], roots[roots > TOLERANCE]
    degrees = blocks * (arms - 1) - int(kinds.max()) - len(roots)
    if degrees < 1:
        return _Fit(value=0.0, error=0.0, degrees=0, undetermined=_add_up(differences))
    # What lies in the range of the design can be separated from arms and blocks, and the rest cannot.
    shown = vectors.T @ differences
    free = centre_periods(values[:, :, None], kinds).reshape(-1)
    effects = vectors.T @ design.T @ free / roots
    rest = float(((free - design @ vectors @ effects) ** 2).sum()) / degrees
    return _Fit(
        value=float(shown @ effects),
        error=math.sqrt(float((shown**2 / roots).sum()) * rest),
        degrees=degrees,
        undetermined=_add_up(differences - vectors @ shown),
    )


def _add_up(shares: Floats) -> float:
    total = float(np.abs(shares).sum())
    return total if total > math.sqrt(TOLERANCE) else 0.0
