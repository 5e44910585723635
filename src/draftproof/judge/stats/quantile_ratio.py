"""The ratio of one quantile in two arms on paired requests, with an interval found by inverting a test.

A ratio r is rejected by McNemar's mid-p test (Lancaster 1961) of how many values each arm has in the common
top 1 − q once the other arm is scaled by r. Repeats of a prompt enter as effective counts (Rao & Scott 1992,
Biometrics 48, 577-585); where the arms' tails differ in shape each count is weighted by the other's share of
the values around the common quantile. docs/statistics.md has the coverage, and that of the alternatives.

What a period does to its requests is seen by the delete-d jackknife over blocks (Shao & Wu 1989, Annals of
Statistics 17, 1176-1197); the variance by which it exceeds that of the interval is added. It sees nothing
where two periods each fill the tail, so the lower limit, by which a tail is called worse, is no higher than
the ratio without as many blocks as chance may have spared.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.judge.stats.bootstrap import MINIMUM_CLUSTERS, RatioEstimate, error_of_interval, no_ratio
from draftproof.judge.stats.periods import MINIMUM_BLOCKS, scale_to_median, stretch_for_periods
from draftproof.judge.stats.quantiles import RANK_DIGITS
from draftproof.judge.stats.resampling import Floats, Ints, index_labels

STEPS = 40  # halvings of the range of the log ratio: finer than a clock's tick
MOST_GROUPS = 24  # of blocks left out in turn: more tell hardly more of a variance


def paired_quantile_ratio(
    numerator: npt.ArrayLike,
    denominator: npt.ArrayLike,
    clusters: npt.ArrayLike,
    blocks: npt.ArrayLike | None = None,
    *,
    q: float,
    level: float = 0.95,
    minimum_clusters: int = MINIMUM_CLUSTERS,
) -> RatioEstimate:
    """Return quantile(numerator) / quantile(denominator), nearest rank, with a distribution-free interval.

    Row i of the arrays, shape (n,), is the same prompt in the same block; values are positive, +∞ for a
    failed request. `blocks` None: periods share nothing. The value is None with a reason if a quantile falls
    on a failed request or too few prompts reach the tail (`needed` more); only the upper limit is None where
    failed requests leave the interval open above. No draws and no standard error: ask for each level.

    Raises:
        ValueError: shapes differ, a value is not positive, or q or level is outside (0, 1).
    """
    above, below = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    labels = np.asarray(clusters)
    _check(above, below, labels, q=q, level=level)
    count = len(np.unique(labels))
    missing = max(minimum_clusters, 1) - count
    if missing > 0:
        reason = f"{count} of at least {minimum_clusters} prompts"
        return no_ratio(level, len(above), count, reason, missing)
    ends = _nearest_rank(above, q), _nearest_rank(below, q)
    if not np.isfinite(ends).all():
        reason = f"at least {100 * (1 - q):.3g} % of the requests failed, so the quantile is infinite"
        return no_ratio(level, len(above), count, reason, None)
    value = float(ends[0] / ends[1])
    logs = np.log(above), np.log(below)
    estimate = _with_interval(value, *logs, index_labels(labels), q=q, level=level)
    if blocks is None:
        return estimate
    rows = index_labels(blocks)
    return _lower_without_blocks(_widen_by_blocks(estimate, *logs, rows, q), *logs, rows, q)


def tail_floor(q: float, level: float = 0.95) -> int:
    """Return the fewest pairs of distinct prompts for which the interval can exist on both sides.

    All of the 2n(1 − q) exceedances then lie in one arm with mid-p (1/2)^(k+1), at most alpha/2. At 95 %: 25
    for p90, 50 for p95, 250 for p99.

    Raises:
        ValueError: q or level is outside (0, 1).
    """
    if not (0.0 < q < 1.0 and 0.0 < level < 1.0):
        raise ValueError(f"q and level are shares between 0 and 1, got {q} and {level}")
    return math.ceil(round(_exceedances_needed(level) / (2.0 * (1.0 - q)), RANK_DIGITS))


class _Tail(NamedTuple):
    """The largest logs of each arm with their clusters, the size of the top and the arms' weights in it.

    `clusters` is how many there are. However one arm is moved, the common top holds no other values.
    `ranked`: the logs of each arm, largest first. `counted`: what `_count_top` found, by how many of the top
    are the arm's: however one arm is moved, the search for a limit meets few different tops.
    """

    above: Floats
    below: Floats
    above_clusters: Ints
    below_clusters: Ints
    clusters: int
    top: int
    ranked: tuple[list[float], list[float]]
    counted: dict[int, tuple[float, float]]
    weights: tuple[float, float] = (1.0, 1.0)


def _with_interval(
    value: float, above: Floats, below: Floats, index: Ints, *, q: float, level: float
) -> RatioEstimate:
    tail, pairs = (1.0 - level) / 2.0, len(above)
    top = _cut_tail(above, below, index, max(1, 2 * pairs - math.ceil(round(q * 2 * pairs, RANK_DIGITS))))
    top = top._replace(weights=_shape_weights(top, math.log(value)))
    span = _span(above) + _span(below) + abs(math.log(value)) + 1.0
    refusal = _refuse(top, span, tail)
    if refusal is not None:
        return no_ratio(level, pairs, int(index.max()) + 1, *refusal)
    low = _first_believed(lambda shift: _p_more(top, shift), -span, span, tail)
    high = None
    if _p_fewer(top, span) <= tail:
        high = -_first_believed(lambda shift: _p_fewer(top, -shift), -span, span, tail)
    return RatioEstimate(
        value=value,
        low=min(value, math.exp(low)),
        high=None if high is None else max(value, math.exp(high)),
        level=level,
        draws=np.empty(0),
        n_pairs=pairs,
        n_clusters=int(index.max()) + 1,
        reason="failed requests leave the interval open above" if high is None else None,
    )


def _widen_by_blocks(
    estimate: RatioEstimate, above: Floats, below: Floats, blocks: Ints, q: float
) -> RatioEstimate:
    """Return the estimate with the variance between blocks that its interval lacks; itself of few blocks."""
    own, count = error_of_interval(estimate), int(blocks.max()) + 1
    groups = min(count, math.isqrt(len(blocks)), MOST_GROUPS)
    if own is None or groups < MINIMUM_BLOCKS:
        return estimate
    variance = _jackknife(above, below, blocks * groups // count, q)
    if not math.isfinite(variance):
        reason = "without the requests of some blocks the quantile falls on a failed request"
        return no_ratio(estimate.level, estimate.n_pairs, estimate.n_clusters, reason, None)
    excess = max(0.0, scale_to_median(variance, groups - 1) - own**2)
    return stretch_for_periods(estimate, excess, own, groups - 1)


def _lower_without_blocks(
    estimate: RatioEstimate, above: Floats, below: Floats, blocks: Ints, q: float
) -> RatioEstimate:
    """Return the estimate, its lower limit no higher than the ratio without the blocks that it is based on.

    They are those with most of the arm's values beyond the other's quantile, so many that a resample of the
    blocks holds none of them with more than the chance beyond a limit.
    """
    count, tail = int(blocks.max()) + 1, (1.0 - estimate.level) / 2.0
    if estimate.value is None or estimate.low is None or count < MINIMUM_BLOCKS:
        return estimate
    edge = _nearest_rank(below, q)
    beyond = np.bincount(blocks, weights=(above > edge) * 1.0 - (below > edge))
    missable = sum((1.0 - number / count) ** count > tail for number in range(1, count))
    kept = ~np.isin(blocks, np.argsort(-beyond, kind="stable")[:missable])
    ends = _nearest_rank(above[kept], q), _nearest_rank(below[kept], q)
    if not np.isfinite(ends).all():
        return estimate
    return replace(estimate, low=min(estimate.low, math.exp(ends[0] - ends[1])))


def _jackknife(above: Floats, below: Floats, groups: Ints, q: float) -> float:
    """Return the variance of the log ratio, each group of pairs left out in turn; NaN if one has none."""
    count = int(groups.max()) + 1
    ends = [_leave_out(values, groups, count, q) for values in (above, below)]
    left = ends[0] - ends[1] if np.isfinite(ends).all() else np.full(count, np.nan)
    return (count - 1) / count * float(((left - left.mean()) ** 2).sum())


def _leave_out(values: Floats, groups: Ints, count: int, q: float) -> Floats:
    """Return the quantile without each group in turn, shape (count,)."""
    order = np.argsort(values)
    ordered, owners = values[order], groups[order]
    kept = (ordered[owners != group] for group in range(count))
    return np.array([one[_rank(len(one), q)] for one in kept])


def _cut_tail(above: Floats, below: Floats, index: Ints, top: int) -> _Tail:
    """Return the 2 · top largest values of each arm and all that tie with the least of them."""
    wanted = min(2 * top, len(above))
    mine, theirs = (values >= np.partition(values, -wanted)[-wanted] for values in (above, below))
    kept = above[mine], below[theirs]
    ranked = sorted(kept[0].tolist(), reverse=True), sorted(kept[1].tolist(), reverse=True)
    return _Tail(*kept, index[mine], index[theirs], int(index.max()) + 1, top, ranked, {})


def _refuse(top: _Tail, span: float, tail: float) -> tuple[str, int] | None:
    """Return why even the farthest ratios cannot be rejected, and how many more prompts that takes."""
    is_closed_above = _p_fewer(top, span) <= tail or not np.isfinite(top.above).all()
    if _p_more(top, -span) <= tail and is_closed_above:
        return None
    count, wanted = top.clusters, _exceedances_needed(1.0 - 2.0 * tail)
    reached = min(_count_top(top, end)[1] for end in (-span, span))
    reason = f"{reached:.0f} independent prompts in the tail, where this quantile needs {wanted}"
    return reason, max(1, math.ceil(count * (wanted / max(reached, 1.0) - 1.0)))


def _p_more(top: _Tail, shift: float) -> float:
    """Return the mid-p value of the arm having so many of the top, the other arm moved by `shift`."""
    return _mid_p(*_count_top(top, shift))


def _p_fewer(top: _Tail, shift: float) -> float:
    share, trials = _count_top(top, shift)
    return _mid_p(-share, trials)


def _first_believed(p: Callable[[float], float], start: float, stop: float, tail: float) -> float:
    """Return where p(shift), which grows with the shift, passes `tail`."""
    rejected, believed = start, stop
    for _ in range(STEPS):
        middle = (rejected + believed) / 2.0
        if p(middle) <= tail:
            rejected = middle
        else:
            believed = middle
    return rejected


def _count_top(top: _Tail, shift: float) -> tuple[float, float]:
    """Return (arm − other) / (arm + other) over the clusters that differ, and their effective number."""
    held = _count_held(top, shift)
    if held is None:
        return _weigh_top(top, shift)
    if held not in top.counted:
        top.counted[held] = _weigh_top(top, shift)
    return top.counted[held]


def _count_held(top: _Tail, shift: float) -> int | None:
    """Return how many of the top are the arm's, which says all of it; None where the arms tie at its edge."""
    above, below = top.ranked
    least, most = max(0, top.top - len(below)), min(top.top, len(above))

    def is_other(count: int) -> bool:
        return below[top.top - 1 - count] + shift >= above[count]

    held = least + bisect_left(range(least, most), True, key=is_other)
    is_tied = held < most and below[top.top - 1 - held] + shift == above[held]
    return None if is_tied else held


def _weigh_top(top: _Tail, shift: float) -> tuple[float, float]:
    mine, theirs = _split_top(top, shift)
    differing = float(np.abs(mine - theirs).sum())
    first, second = top.weights
    variance = (first**2 + second**2) / 2.0 * float((mine**2 + theirs**2).sum())
    variance -= 2.0 * first * second * float((mine * theirs).sum())
    if differing == 0.0 or variance <= 0.0:
        return 0.0, 0.0
    return float((mine - theirs).sum()) / differing, differing**2 / variance


def _split_top(top: _Tail, shift: float) -> tuple[Floats, Floats]:
    """Return how many of the largest values of both arms each cluster has in the one and in the other.

    Values that tie at the edge share what is left of the top, so no order of rows decides.
    """
    moved = top.below + shift
    edge = float(np.partition(np.concatenate([top.above, moved]), -top.top)[-top.top])
    beyond = int((top.above > edge).sum() + (moved > edge).sum())
    tied = int((top.above == edge).sum() + (moved == edge).sum())
    part = (top.top - beyond) / tied
    mine = (top.above > edge) + part * (top.above == edge)
    theirs = (moved > edge) + part * (moved == edge)
    counted: tuple[Floats, Floats] = (
        np.bincount(top.above_clusters, weights=mine, minlength=top.clusters).astype(np.float64),
        np.bincount(top.below_clusters, weights=theirs, minlength=top.clusters).astype(np.float64),
    )
    return counted


def _shape_weights(top: _Tail, shift: float) -> tuple[float, float]:
    """Return the weight of each arm's count, 1 and 1 if both are as dense around the common quantile.

    Density is counted between half the top and twice the top, with half a value added to each arm.
    """
    moved = top.below + shift
    ordered = np.sort(np.concatenate([top.above, moved]))[::-1]
    upper, lower = ordered[top.top // 2], ordered[min(2 * top.top, len(ordered)) - 1]
    mine = 0.5 + float(((top.above >= lower) & (top.above <= upper)).sum())
    theirs = 0.5 + float(((moved >= lower) & (moved <= upper)).sum())
    return 2.0 * theirs / (mine + theirs), 2.0 * mine / (mine + theirs)


@lru_cache(maxsize=4096)
def _mid_p(share: float, trials: float) -> float:
    """Return P(more hits) + P(as many) / 2 of `trials` fair ones of which (1 + share) / 2 are hits."""
    hits = trials * (1.0 + share) / 2.0
    misses = trials - hits
    at_least = float(scipy.special.betainc(hits, misses + 1.0, 0.5)) if hits > 0.0 else 1.0
    more = float(scipy.special.betainc(hits + 1.0, misses, 0.5)) if misses > 0.0 else 0.0
    return (at_least + more) / 2.0


def _exceedances_needed(level: float) -> int:
    return math.ceil(round(-math.log2(1.0 - level), RANK_DIGITS))


def _nearest_rank(values: Floats, q: float) -> float:
    return float(np.sort(values)[_rank(len(values), q)])


def _rank(count: int, q: float) -> int:
    return math.ceil(round(q * count, RANK_DIGITS)) - 1


def _span(logs: Floats) -> float:
    return float(np.ptp(logs[np.isfinite(logs)]))


def _check(above: Floats, below: Floats, labels: npt.NDArray[np.generic], *, q: float, level: float) -> None:
    if above.ndim != 1 or not above.shape == below.shape == labels.shape:
        raise ValueError(
            f"paired arrays of one length are needed, got {above.shape}, {below.shape}, {labels.shape}"
        )
    if not (0.0 < q < 1.0 and 0.0 < level < 1.0):
        raise ValueError(f"q and level are shares between 0 and 1, got {q} and {level}")
    if not ((above > 0).all() and (below > 0).all()):
        raise ValueError("a value is not a positive number, so there is no ratio")
