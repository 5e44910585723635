"""What all requests of a turn share: an error of an effect that its prompts cannot show.

An arm answers a block of prompts in one turn, and whatever the machine does in that turn (a neighbour's load,
a clock step, drift between the turns of a block) moves all of them together. Prompts resampled within a run
know nothing of it. It shows between blocks: their mean log ratios then differ by more than their prompts
explain. The excess is a variance component, estimated by one-way analysis of variance (Searle, Casella &
McCulloch 1992, section 3.5) and added to the interval with Satterthwaite's (1946) degrees of freedom. Counts
(a failure, a value in the tail) are treated alike: their variance grows by the excess between blocks.

The mean square between few blocks is too small more often than not: its median lies below its expectation. It
is scaled to be right in the median, by (B − 1) / median of χ² with B − 1 degrees of freedom; of 4, 6 and 12
blocks that is 1.27, 1.15 and 1.06 (docs/statistics.md has the coverage).
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from draftproof.stats.bootstrap import RatioEstimate, interval_at
from draftproof.stats.laws import chi_square_quantile, normal_quantile, student_quantile
from draftproof.stats.resampling import Floats, Ints, index_labels

MINIMUM_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class TurnSpread:
    """Variance between blocks of the log ratio of two arms beyond what prompts explain; never negative.

    `blocks` is one more than its degrees of freedom. `is_within`: what processes do to blocks is taken out.
    """

    variance: float
    blocks: int
    is_within: bool = False


def turn_spread(
    log_ratios: npt.ArrayLike,
    blocks: npt.ArrayLike,
    groups: npt.ArrayLike,
    processes: npt.ArrayLike | None = None,
) -> TurnSpread | None:
    """Return how far blocks lie apart beyond chance, None below three blocks or without spare pairs.

    Args:
        log_ratios: shape (n,), log of arm / other of each pair.
        blocks: shape (n,), label of the block in which both arms took their turn.
        groups: shape (n,), labels whose own means are taken out first (segments, whose effects may differ).
        processes: shape (n,), labels of the pair of processes that answered; what they do to their blocks is
            taken out where enough blocks are left to tell. None: every block has its own.

    Raises:
        ValueError: shapes differ.
    """
    values, rows, kinds = np.asarray(log_ratios, dtype=np.float64), index_labels(blocks), index_labels(groups)
    if not len(values) == len(rows) == len(kinds):
        raise ValueError(f"one label per pair is needed, got {len(rows)} and {len(kinds)} for {len(values)}")
    sizes = np.bincount(rows).astype(np.float64)
    spare = len(values) - len(sizes) - (int(kinds.max(initial=0)))
    if len(sizes) < MINIMUM_BLOCKS or spare < 1:
        return None
    residuals = _without_means(values, kinds)
    means = np.bincount(rows, weights=residuals) / sizes
    strata, is_within = _choose_strata(rows, processes)
    degrees, weights = len(sizes) - int(strata.max()) - 1, np.bincount(strata, weights=sizes)
    shared = np.bincount(strata, weights=sizes * means) / weights
    between = float((sizes * (means - shared[strata]) ** 2).sum()) / degrees
    within = float(((residuals - means[rows]) ** 2).sum()) / spare
    return _to_spread(between, within, sizes, strata, is_within=is_within)


def count_spread(counts: Floats, blocks: Ints, sizes: Floats) -> TurnSpread | None:
    """Return how far the means of a count lie apart between blocks beyond chance; None as `turn_spread`.

    Args:
        counts: shape (n,), the counts that are not 0, such as +1 where one arm alone failed.
        blocks: shape (n,), the block of each, from 0.
        sizes: shape (blocks,), how many there are in each block, those of count 0 included; none is empty.
    """
    total, spare = float(sizes.sum()), float(sizes.sum()) - len(sizes)
    if len(sizes) < MINIMUM_BLOCKS or spare <= 0.0:
        return None
    sums = np.bincount(blocks, weights=counts, minlength=len(sizes))
    between = float((sizes * (sums / sizes - sums.sum() / total) ** 2).sum()) / (len(sizes) - 1)
    within = float((counts**2).sum() - (sums**2 / sizes).sum()) / spare
    return _to_spread(between, max(0.0, within), sizes, np.zeros(len(sizes), dtype=np.intp))


def widen_count(variance: float, spread: TurnSpread | None, sizes: Floats, tail: float) -> float:
    """Return the variance of a summed count with that of its periods, as a normal quantile is to read it.

    Args:
        variance: of the sum over prompts alone.
        spread: from `count_spread`.
        sizes: shape (blocks,), as there.
        tail: chance beyond the limit that the variance is for, e.g. 0.025.
    """
    if spread is None or spread.variance == 0.0:
        return variance
    turns = spread.variance * float((sizes**2).sum())
    reach = _reach_beyond(turns, variance, spread.blocks - 1, float(sizes.sum()) - 1.0, tail)
    return (turns + variance) * reach**2


def stretch_for_periods(
    estimate: RatioEstimate, excess: float, error: float, degrees: float
) -> RatioEstimate:
    """Return an interval that was not made from a standard error, each half stretched by periods.

    Args:
        estimate: with a value and a lower limit; the upper one may be open.
        excess: variance of the log ratio by periods, beyond that of the prompts.
        error: standard error of the log ratio by the prompts alone.
        degrees: of freedom of the excess.
    """
    value = estimate.value
    if excess == 0.0 or value is None or estimate.low is None:
        return estimate
    tail = (1.0 - estimate.level) / 2.0
    reach = _reach_beyond(excess, error**2, degrees, estimate.n_clusters - 1.0, tail)
    beyond = excess * normal_quantile(tail) ** 2

    def stretch(limit: float) -> float:
        half = math.log(limit / value)
        return value * math.exp(math.copysign(reach * math.sqrt(half**2 + beyond), half))

    high = None if estimate.high is None else stretch(estimate.high)
    return replace(estimate, low=stretch(estimate.low), high=high)


def _reach_beyond(turns: float, prompts: float, blocks: float, clusters: float, tail: float) -> float:
    """Return t / z beyond `tail` at Satterthwaite's degrees of freedom of two added variances."""
    degrees = (turns + prompts) ** 2 / (turns**2 / blocks + prompts**2 / max(1.0, clusters))
    return student_quantile(tail, degrees) / normal_quantile(tail)


def scale_to_median(square: float, degrees: int) -> float:
    """Return a mean square scaled so that its median is the variance that it estimates."""
    return square * degrees / chi_square_quantile(0.5, degrees)


def _to_spread(
    between: float, within: float, sizes: Floats, strata: Ints, *, is_within: bool = False
) -> TurnSpread:
    """Return the variance component of two mean squares, that between blocks right in the median."""
    totals = np.bincount(strata, weights=sizes)
    degrees = len(sizes) - len(totals)
    size = float((totals - np.bincount(strata, weights=sizes**2) / totals).sum()) / degrees
    excess = scale_to_median(between, degrees) - within
    return TurnSpread(variance=max(0.0, excess / size), blocks=degrees + 1, is_within=is_within)


def _choose_strata(rows: Ints, processes: npt.ArrayLike | None) -> tuple[Ints, bool]:
    """Return the stratum of each block, and whether strata are processes: not if too few blocks are left."""
    first = np.unique(rows, return_index=True)[1]
    if processes is not None:
        strata = index_labels(np.asarray(processes)[first])
        if len(first) - int(strata.max()) >= MINIMUM_BLOCKS:
            return strata, True
    return np.zeros(len(first), dtype=np.intp), False


def widen_by_turns(
    estimate: RatioEstimate, spread: TurnSpread | None, blocks: npt.ArrayLike
) -> RatioEstimate:
    """Return an estimate whose error takes in that of its turns; itself where nothing is known of them.

    Args:
        estimate: a ratio with a standard error.
        spread: from `turn_spread`, of all pairs that shared these turns.
        blocks: shape (n,), the block of each pair of the estimate.
    """
    if spread is None or spread.variance == 0.0 or estimate.standard_error is None:
        return estimate
    shares = np.bincount(index_labels(blocks)) / estimate.n_pairs
    turns, prompts = spread.variance * float((shares**2).sum()), estimate.standard_error**2
    degrees = (turns + prompts) ** 2 / (
        turns**2 / (spread.blocks - 1) + prompts**2 / max(1.0, estimate.degrees_of_freedom)
    )
    wider = replace(
        estimate,
        standard_error=math.sqrt(turns + prompts),
        degrees_of_freedom=degrees,
        # The third moment is that of the prompts alone; turns are taken to be symmetric.
        skewness=estimate.skewness * (prompts / (turns + prompts)) ** 1.5,
    )
    low, high = interval_at(wider, estimate.level)
    return replace(wider, low=low, high=high)


def _without_means(values: Floats, kinds: Ints) -> Floats:
    means = np.bincount(kinds, weights=values) / np.bincount(kinds)
    return values - means[kinds]
