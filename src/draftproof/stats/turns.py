"""What all requests of a turn share: an error of an effect that its prompts cannot show.

An arm answers a block of prompts in one turn, and whatever the machine does in that turn (a neighbour's load,
a clock step, drift between the turns of a block) moves all of them together. Prompts resampled within a run
know nothing of it. It shows between blocks: their mean log ratios then differ by more than their prompts
explain. The excess is a variance component, estimated by one-way analysis of variance (Searle, Casella &
McCulloch 1992, section 3.5) and added to the interval with Satterthwaite's (1946) degrees of freedom.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from draftproof.stats.bootstrap import RatioEstimate, interval_at
from draftproof.stats.resampling import Floats, Ints, index_labels

MINIMUM_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class TurnSpread:
    """Variance between blocks of the log ratio of two arms beyond what prompts explain; never negative."""

    variance: float
    blocks: int


def turn_spread(log_ratios: npt.ArrayLike, blocks: npt.ArrayLike, groups: npt.ArrayLike) -> TurnSpread | None:
    """Return how far blocks lie apart beyond chance, None below three blocks or without spare pairs.

    Args:
        log_ratios: shape (n,), log of arm / other of each pair.
        blocks: shape (n,), label of the block in which both arms took their turn.
        groups: shape (n,), labels whose own means are taken out first (segments, whose effects may differ).

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
    between = float((sizes * means**2).sum()) / (len(sizes) - 1)
    within = float(((residuals - means[rows]) ** 2).sum()) / spare
    size = (len(values) - float((sizes**2).sum()) / len(values)) / (len(sizes) - 1)
    return TurnSpread(variance=max(0.0, (between - within) / size), blocks=len(sizes))


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
