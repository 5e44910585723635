"""What all answers of one process share: an error of an effect that neither prompts nor blocks show.

Where a process is placed and how its memory lies moves all of its times by some factor, drawn anew at each
start. An arm that was started m times has m draws of it, however many prompts it answered. The variance
between processes is estimated over all arms and loads together, since a comparison of two arms alone has as
few degrees of freedom as it has processes: the model is block + arm + process + rest, fitted by Henderson's
method 3 (Searle, Casella & McCulloch 1992, section 5.5). It enters an interval with Satterthwaite's (1946)
degrees of freedom. Processes that answer one block each are told from blocks by nothing, and need not be:
what they share is in the variance between blocks (`turns.py`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from draftproof.stats.bootstrap import RatioEstimate, interval_at
from draftproof.stats.resampling import Floats, Ints, index_labels

TOLERANCE = 1e-9  # of an eigenvalue: below it a combination of processes cannot be told from blocks and arms


@dataclass(frozen=True, kw_only=True)
class ProcessTable:
    """The measurement periods of one load, shape (blocks, arms) each.

    `values`: mean log value of each period, over what every arm answered in its block. `processes`: number of
    the process that answered, the same number at every load and for arms that share a process. `kinds`, shape
    (arms,): number of what the arm is, the same for equal arms, whose processes are all of one kind.
    """

    values: Floats
    processes: Ints
    kinds: Ints


@dataclass(frozen=True, kw_only=True)
class ProcessSpread:
    """Variance of the log value between processes of an arm, never negative; of how many it is."""

    variance: float
    degrees: float
    processes: int


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Sums of squares of one load: of processes beside blocks and arms, and of the rest; `trace` of E[of]."""

    of_processes: float
    of_rest: float
    degrees: int
    spare: int
    trace: float


def process_spread(tables: Sequence[ProcessTable]) -> ProcessSpread | None:
    """Return how far processes of an arm lie apart, pooled; None where blocks cannot be told from processes.

    The degrees of freedom count every process once, though it may have answered at several loads: its luck
    may be the same at all of them.
    """
    fits = [_fit(table) for table in tables]
    degrees, spare = sum(fit.degrees for fit in fits), sum(fit.spare for fit in fits)
    if not degrees or not spare:
        return None
    between = sum(fit.of_processes for fit in fits) / degrees
    within = sum(fit.of_rest for fit in fits) / spare
    scale = degrees / sum(fit.trace for fit in fits)
    seen = [np.unique(table.processes) for table in tables]
    distinct = len(np.unique(np.concatenate(seen)))
    own = degrees * distinct / sum(map(len, seen))
    excess = max(0.0, between - within)
    known = excess**2 / (between**2 / own + within**2 / spare) if excess else own
    return ProcessSpread(variance=excess * scale, degrees=known, processes=distinct)


def widen_by_processes(
    estimate: RatioEstimate,
    spread: ProcessSpread | None,
    mine: npt.ArrayLike,
    theirs: npt.ArrayLike,
    blocks: npt.ArrayLike | None = None,
) -> RatioEstimate:
    """Return an estimate whose error takes in that of its processes; itself where nothing is known of them.

    Args:
        estimate: a ratio with a standard error.
        spread: from `process_spread`.
        mine: shape (pairs,), the process that answered for the arm.
        theirs: the same for the other arm; a process that answered for both moves both, and no ratio.
        blocks: shape (pairs,), the block of each pair, where the error has what processes do to blocks in its
            variance between blocks; None: it has not.
    """
    if spread is None or spread.variance == 0.0 or estimate.standard_error is None:
        return estimate
    added, own = spread.variance * weigh_processes(mine, theirs, blocks), estimate.standard_error**2
    if not added:
        return estimate
    degrees = (added + own) ** 2 / (
        added**2 / spread.degrees + own**2 / max(1.0, estimate.degrees_of_freedom)
    )
    wider = replace(
        estimate,
        standard_error=math.sqrt(added + own),
        degrees_of_freedom=degrees,
        # As for turns: the luck of processes is taken to be symmetric.
        skewness=estimate.skewness * (own / (added + own)) ** 1.5,
    )
    low, high = interval_at(wider, estimate.level)
    return replace(wider, low=low, high=high)


def weigh_processes(mine: npt.ArrayLike, theirs: npt.ArrayLike, blocks: npt.ArrayLike | None = None) -> float:
    """Return by what the variance between processes enters that of a mean log ratio.

    It is the sum of squares of each process's share in the ratio. The variance between blocks, where it has
    what processes do, makes up for a part: all of it where every block has processes of its own.
    """
    answered, against = np.asarray(mine), np.asarray(theirs)
    rows = index_labels(np.zeros(len(answered)) if blocks is None else blocks)
    labels = index_labels(np.concatenate([answered, against]))
    count, width = int(rows.max(initial=-1)) + 1, int(labels.max(initial=-1)) + 1
    answers = np.zeros((count, width))
    np.add.at(answers, (np.tile(rows, 2), labels), np.repeat([1.0, -1.0], len(answered)))
    shares = answers / max(1, len(answered))
    whole = float((shares.sum(axis=0) ** 2).sum())
    if blocks is None or count < 2:
        return whole
    sizes = np.bincount(rows) / len(rows)
    inside = shares / sizes[:, None]
    between = float(((inside - inside.mean(axis=0)) ** 2).sum()) / (count - 1)
    return max(0.0, whole - between * float((sizes**2).sum()))


def centre_periods(values: Floats, kinds: Ints) -> Floats:
    """Return values, shape (blocks, arms, any), free of the means of blocks and of kinds of arms."""
    blocks: Floats = values - values.mean(axis=1, keepdims=True)
    free = blocks.copy()
    for kind in range(int(kinds.max()) + 1):
        own = kinds == kind
        free[:, own] -= blocks[:, own].mean(axis=(0, 1), keepdims=True)
    return free


def _fit(table: ProcessTable) -> _Fit:
    blocks, arms = table.values.shape
    index = index_labels(table.processes.reshape(-1)).reshape(blocks, arms)
    members = np.zeros((blocks, arms, int(index.max(initial=-1)) + 1))
    np.put_along_axis(members, index[:, :, None], 1.0, axis=2)
    kinds = index_labels(table.kinds)
    free, residuals = centre_periods(members, kinds), centre_periods(table.values[:, :, None], kinds)[:, :, 0]
    products = np.tensordot(members, free, axes=([0, 1], [0, 1]))
    roots, vectors = np.linalg.eigh(products)
    kept = roots > TOLERANCE * max(1.0, float(roots.max(initial=0.0)))
    along = vectors[:, kept].T @ np.tensordot(free, residuals, axes=([0, 1], [0, 1]))
    explained, degrees = float((along**2 / roots[kept]).sum()), int(kept.sum())
    return _Fit(
        of_processes=explained,
        of_rest=max(0.0, float((residuals**2).sum()) - explained),
        degrees=degrees,
        spare=blocks * (arms - 1) - int(kinds.max()) - degrees,
        trace=float(np.trace(products)),
    )
