"""What all requests of a period or all answers of a process share: errors that no prompt shows.

Whatever the machine does in a period moves all its prompts. It shows between blocks: their mean log ratios
differ by more than their prompts explain. The excess is a variance component (one-way analysis of variance;
Searle, Casella & McCulloch 1992, section 3.5), scaled to be right in the median, by (B − 1) / median of χ²
with B − 1 degrees of freedom: 1.27, 1.15 and 1.06 of 4, 6 and 12 blocks. Counts are treated alike.

A process moves all of its times by a factor that is drawn anew at each start. Its variance is estimated over
all arms and loads together: block + arm + process + rest, Henderson's method 3 (ibid., section 5.5). Both
enter an interval with Satterthwaite's (1946) degrees of freedom; docs/statistics.md has the coverage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from draftproof.judge.stats.bootstrap import RatioEstimate, interval_at
from draftproof.judge.stats.quantiles import chi_square_quantile, normal_quantile, student_quantile
from draftproof.judge.stats.resampling import Floats, Ints, index_labels

MINIMUM_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class PeriodSpread:
    """Variance between blocks of the log ratio of two arms beyond what prompts explain; never negative.

    `blocks` is one more than its degrees of freedom. `is_within`: what processes do to blocks is taken out.
    """

    variance: float
    blocks: int
    is_within: bool = False


def period_spread(
    log_ratios: npt.ArrayLike,
    blocks: npt.ArrayLike,
    groups: npt.ArrayLike,
    processes: npt.ArrayLike | None = None,
) -> PeriodSpread | None:
    """Return how far apart blocks are beyond chance, None below three blocks or without spare pairs.

    Shape (n,) each: log of arm / other of each pair; its block; `groups` whose means are taken out first
    (segments); `processes`, the pair of processes that answered, whose effect on their blocks is taken out
    where enough blocks are left to tell (None: every block has its own).

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


def count_spread(counts: Floats, blocks: Ints, sizes: Floats) -> PeriodSpread | None:
    """Return how far apart the means of a count are between blocks beyond chance; None as `period_spread`.

    `counts`, shape (n,), are those that are not 0, such as +1 where one arm alone failed, and `blocks`
    theirs, from 0. `sizes`, shape (blocks,): how many there are in each block, those of count 0 included.
    """
    total, spare = float(sizes.sum()), float(sizes.sum()) - len(sizes)
    if len(sizes) < MINIMUM_BLOCKS or spare <= 0.0:
        return None
    sums = np.bincount(blocks, weights=counts, minlength=len(sizes))
    between = float((sizes * (sums / sizes - sums.sum() / total) ** 2).sum()) / (len(sizes) - 1)
    within = float((counts**2).sum() - (sums**2 / sizes).sum()) / spare
    return _to_spread(between, max(0.0, within), sizes, np.zeros(len(sizes), dtype=np.intp))


def widen_count(variance: float, spread: PeriodSpread | None, sizes: Floats, tail: float) -> float:
    """Return the variance of a summed count with that of its periods, for a normal quantile at `tail`.

    `variance` is over prompts alone; `spread` and `sizes`, shape (blocks,), are as in `count_spread`.
    """
    if spread is None or spread.variance == 0.0:
        return variance
    periods = spread.variance * float((sizes**2).sum())
    reach = _reach_beyond(periods, variance, spread.blocks - 1, float(sizes.sum()) - 1.0, tail)
    return (periods + variance) * reach**2


def stretch_for_periods(
    estimate: RatioEstimate, excess: float, error: float, degrees: float
) -> RatioEstimate:
    """Return an interval that was not made from a standard error, each half stretched by what periods add.

    `excess`: variance of the log ratio by periods beyond that of the prompts, with its `degrees` of freedom;
    `error`: standard error of the log ratio by the prompts alone. The upper limit may be open.
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


def _reach_beyond(periods: float, prompts: float, blocks: float, clusters: float, tail: float) -> float:
    """Return t / z beyond `tail` at the degrees of freedom of two added variances."""
    return student_quantile(tail, _join_degrees(periods, prompts, blocks, clusters)) / normal_quantile(tail)


def scale_to_median(square: float, degrees: int) -> float:
    """Return a mean square scaled so that its median is the variance that it estimates."""
    return square * degrees / chi_square_quantile(0.5, degrees)


def _to_spread(
    between: float, within: float, sizes: Floats, strata: Ints, *, is_within: bool = False
) -> PeriodSpread:
    """Return the variance component of two mean squares, that between blocks right in the median."""
    totals = np.bincount(strata, weights=sizes)
    degrees = len(sizes) - len(totals)
    size = float((totals - np.bincount(strata, weights=sizes**2) / totals).sum()) / degrees
    excess = scale_to_median(between, degrees) - within
    return PeriodSpread(variance=max(0.0, excess / size), blocks=degrees + 1, is_within=is_within)


def _choose_strata(rows: Ints, processes: npt.ArrayLike | None) -> tuple[Ints, bool]:
    """Return the stratum of each block, and whether strata are processes: not if too few blocks are left."""
    first = np.unique(rows, return_index=True)[1]
    if processes is not None:
        strata = index_labels(np.asarray(processes)[first])
        if len(first) - int(strata.max()) >= MINIMUM_BLOCKS:
            return strata, True
    return np.zeros(len(first), dtype=np.intp), False


def widen_by_periods(
    estimate: RatioEstimate, spread: PeriodSpread | None, blocks: npt.ArrayLike
) -> RatioEstimate:
    """Return an estimate whose error takes in that of its periods; itself where nothing is known of them.

    `spread` is of all pairs that shared the periods; `blocks`, shape (n,), the block of each pair of the
    estimate.
    """
    if spread is None or spread.variance == 0.0 or estimate.standard_error is None:
        return estimate
    shares = np.bincount(index_labels(blocks)) / estimate.n_pairs
    return _add_variance(estimate, spread.variance * float((shares**2).sum()), spread.blocks - 1)


def _add_variance(estimate: RatioEstimate, added: float, degrees: float) -> RatioEstimate:
    """Return an estimate with a variance from elsewhere, of so many degrees of freedom, in its error."""
    own = (estimate.standard_error or 0.0) ** 2
    wider = replace(
        estimate,
        standard_error=math.sqrt(added + own),
        degrees_of_freedom=_join_degrees(added, own, degrees, estimate.degrees_of_freedom),
        # The third moment is that of the prompts alone; what is added is taken to be symmetric.
        skewness=estimate.skewness * (own / (added + own)) ** 1.5,
    )
    low, high = interval_at(wider, estimate.level)
    return replace(wider, low=low, high=high)


def _join_degrees(one: float, other: float, degrees: float, other_degrees: float) -> float:
    """Return Satterthwaite's degrees of freedom of two added variances."""
    return (one + other) ** 2 / (one**2 / degrees + other**2 / max(1.0, other_degrees))


def _without_means(values: Floats, kinds: Ints) -> Floats:
    means = np.bincount(kinds, weights=values) / np.bincount(kinds)
    return values - means[kinds]


TOLERANCE = (
    1e-9  # of an eigenvalue: below it a combination of processes cannot be separated from blocks and arms
)


@dataclass(frozen=True, kw_only=True)
class ProcessTable:
    """The measurement periods of one load, shape (blocks, arms) each.

    `values`: mean log value of each period over what every arm answered in its block. `processes`: number of
    the process that answered, the same at every load. `kinds`, shape (arms,): the same number for equal arms.
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
    """Return how far apart processes of an arm are, pooled; None where blocks cannot be separated from them.

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
    *,
    twins: npt.ArrayLike | None = None,
) -> RatioEstimate:
    """Return an estimate whose error takes in that of its processes; itself where nothing is known of them.

    `mine`, `theirs`, shape (pairs,): the process that answered in each arm; one that answered for both moves
    no ratio. `twins`: the process of the second answer of which, with `theirs`, each denominator is the mean;
    None: there is no second. `blocks`, shape (pairs,), where the variance between blocks has what processes
    do to them; None: it has not.
    """
    if spread is None or spread.variance == 0.0 or estimate.standard_error is None:
        return estimate
    added = spread.variance * weigh_processes(mine, theirs, blocks, twins=twins)
    return _add_variance(estimate, added, spread.degrees) if added else estimate


def weigh_processes(
    mine: npt.ArrayLike,
    theirs: npt.ArrayLike,
    blocks: npt.ArrayLike | None = None,
    *,
    twins: npt.ArrayLike | None = None,
) -> float:
    """Return by what the variance between processes enters that of a mean log ratio.

    It is the sum of squares of each process's share in the ratio. The variance between blocks, where it has
    what processes do, makes up for a part: all of it where every block has processes of its own.
    """
    answered, against = np.asarray(mine), np.asarray(theirs)
    second = against if twins is None else np.asarray(twins)
    rows = index_labels(np.zeros(len(answered)) if blocks is None else blocks)
    labels = index_labels(np.concatenate([answered, against, second]))
    count, width = int(rows.max(initial=-1)) + 1, int(labels.max(initial=-1)) + 1
    answers = np.zeros((count, width))
    np.add.at(answers, (np.tile(rows, 3), labels), np.repeat([1.0, -0.5, -0.5], len(answered)))
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
