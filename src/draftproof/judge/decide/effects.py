"""Effects: ratios of two arms by cell, with the interval of one comparison and the simultaneous one.

Pure. Pairs enter only if both requests are ok, both periods were on time and both have the metric. What is
left out here is counted by the failure guardrail, so a failure never makes an arm look faster.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from draftproof.judge.decide.bounds import Missing, explain_missing, note_basis, read_bounds, span_bounds
from draftproof.judge.decide.processes import spread_processes
from draftproof.judge.observe.columns import number_rows
from draftproof.judge.observe.pairs import DECISIVE, NULL, Comparison, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.run import Effect, Figure
from draftproof.judge.stats.bootstrap import (
    RatioEstimate,
    Statistic,
    interval_at,
    noise_margin,
    null_difference,
    paired_ratio,
)
from draftproof.judge.stats.periods import (
    PeriodSpread,
    ProcessSpread,
    period_spread,
    widen_by_periods,
    widen_by_processes,
)
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.plan.schema import Thresholds

METRICS = ("tpot_ns", "ttft_from_schedule_ns", "e2e_from_schedule_ns", "output_tokens")
POOLED_REASON = "pooled over segments: shown beside them, no part of the family that decides"

CellKey = tuple[str, str]  # segment, load
EffectIndex = Mapping[tuple[str, str, str, str, str], Effect]


class LoadSpread(NamedTuple):
    """How far apart the blocks of a load are in a log ratio, and the processes of an arm; None: not known."""

    blocks: PeriodSpread | None
    processes: ProcessSpread | None


class _Sample(NamedTuple):
    """The pairs that an effect is based on, shape (pairs,) each: both values, and numbers for their labels.

    `mine`, `theirs`, `twins`: the processes that answered.
    """

    above: Floats
    below: Floats
    clusters: Ints
    segments: Ints
    blocks: Ints
    mine: Ints
    theirs: Ints
    twins: Ints


def compute_effects(prepared: PreparedRun, pairs: PairTable) -> tuple[Effect, ...]:
    """Return every effect: comparison × metric × cell, segment "all" first at each load."""
    return tuple(
        effect
        for comparison in pairs
        for metric in METRICS
        for effect in compare_metric(prepared, pairs[comparison], comparison, metric)
    )


def index_effects(effects: Iterable[Effect]) -> EffectIndex:
    """Return the effects by (metric, arm, versus, segment, load)."""
    return {(one.metric, one.arm, one.versus, one.segment, one.load): one for one in effects}


def null_difference_at(effects: EffectIndex, metric: str, load: str) -> float:
    """Return the null difference of a metric over a load, 1 or more; 1 where there is no null arm."""
    null = effects.get((metric, "baseline_null", "baseline", ALL_SEGMENTS, load))
    return null_difference(null.ratio.value, null.standard_error) if null else 1.0


def margin_at(effects: EffectIndex, metric: str, load: str) -> float:
    """Return by which factor the null difference of a metric over a load widens margins, 1 or more."""
    null = effects.get((metric, *NULL, ALL_SEGMENTS, load))
    return noise_margin(null_difference_at(effects, metric, load), null.statistic) if null else 1.0


def read_direction(ratio: Figure | None, null: float) -> Literal["below", "above"] | None:
    """Return on which side of 1 a whole interval is, beyond what two equal arms differ by; None: neither."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return None
    if ratio.high * null < 1:
        return "below"
    return "above" if ratio.low > null else None


def derive_seed(seed: int, *parts: str) -> int:
    """Return a 32-bit seed that depends on the plan's seed and on what is resampled, on nothing else."""
    text = "\x1f".join((str(seed), *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def statistic_of(metric: str, planned: Statistic) -> Statistic:
    """Return the statistic of a metric: the plan's for times; the length of answers is always a mean."""
    return "mean" if metric == "output_tokens" else planned


def compare_metric(prepared: PreparedRun, pairs: Pairs, comparison: Comparison, metric: str) -> list[Effect]:
    """Return the effects on a metric of the records; on one that is known within bounds, over all of them."""
    found = []
    for one in compare_arms(prepared, pairs, comparison, metric, prepared.columns.metric(metric)):
        inside = pairs.cell(one.segment, one.load)
        found.append(note_basis(_explain(one, explain_missing(inside, metric)), inside))
    # Two equal services send their first chunks alike: what is not known of them is in neither's ratio.
    bounds = None if comparison == NULL else read_bounds(pairs, metric)
    if bounds is None:
        return found
    least, most = (compare_arms(prepared, pairs, comparison, metric, values) for values in bounds)
    thresholds = prepared.plan.thresholds
    margins = (1 - thresholds.minimum_gain, 1 + thresholds.harm_margin)
    return [span_bounds(*one, margins) for one in zip(found, least, most, strict=True)]


def _explain(effect: Effect, missing: Missing | None) -> Effect:
    """Return an effect that no number of prompts would make known, with the reason and what helps."""
    if missing is None:
        return effect
    figure = replace(effect.ratio, needed=None, reason=missing.reason, remedy=missing.remedy)
    return replace(effect, ratio=figure, simultaneous=figure)


def compare_arms(
    prepared: PreparedRun, pairs: Pairs, comparison: Comparison, metric: str, values: Floats
) -> list[Effect]:
    """Return the effects of two arms on one value of each request, named `metric`, in every cell.

    `values`, shape (observations,), NaN where a request has none.
    """
    cells = [(name, load) for load in prepared.loads for name in (ALL_SEGMENTS, *prepared.segments)]
    samples = {cell: _sample(prepared, pairs.cell(*cell), values) for cell in cells}
    luck = spread_processes(prepared, values)
    spreads = {load: _spread_at_load(samples[ALL_SEGMENTS, load], luck) for load in prepared.loads}
    estimates = {}
    for cell in cells:
        estimate = _estimate(prepared, samples[cell], comparison, metric, cell)
        estimates[cell] = _widen(estimate, spreads[cell[1]], samples[cell])
    family = {cell: one for cell, one in estimates.items() if cell[0] != ALL_SEGMENTS}
    joint = widen(prepared, family)
    sequence = _widen_in_sequence(prepared, family) if comparison == DECISIVE else {}
    return [
        replace(
            to_effect(prepared, comparison, metric, cell, estimate=estimates[cell], joint=joint.get(cell)),
            sequence=sequence.get(cell),
        )
        for cell in cells
    ]


def _widen_in_sequence(
    prepared: PreparedRun, family: Mapping[CellKey, RatioEstimate]
) -> dict[CellKey, Figure]:
    """Return the intervals of a family in which each segment makes one claim on each axis of load.

    The loads of a segment are tested from the lowest on, and none counts above one that is not admissible. So
    an envelope is wrong only if its lowest wrong load is, one chance for each segment (Maurer et al. 1995).
    """
    claims = {
        (cell[0], prepared.sizes[cell[1]].axis) for cell, one in family.items() if one.value is not None
    }
    return widen(prepared, family, len(claims))


def choose_interval(effect: Effect, thresholds: Thresholds, null: float) -> Figure:
    """Return the interval that decides a cell above admissible loads: the joint one, or that of the sequence.

    The latter where it alone shows a gain; what harms, and what is no gain, is shown over all cells at once.
    """
    joint, own = effect.simultaneous, effect.sequence
    shows = own is not None and is_gain(own, thresholds, null) and not is_gain(joint, thresholds, null)
    return own if own is not None and shows else joint


def is_gain(ratio: Figure, thresholds: Thresholds, null: float) -> bool:
    """Return whether a whole interval is below 1 − minimum gain by more than two equal services differ."""
    return ratio.high is not None and ratio.high * null < 1 - thresholds.minimum_gain


def estimate_ratio(
    prepared: PreparedRun,
    pairs: Pairs,
    comparison: Comparison,
    metric: str,
    cell: CellKey,
    *,
    values: Floats,
    spread: LoadSpread | None = None,
) -> RatioEstimate:
    """Return the ratio of a metric over some pairs, periods counted in; by `spread`, else by their own.

    Resampled by prompt or by what the plan says groups prompts, "all" within segments, so their mix stays
    fixed. `values`, shape (observations,).
    """
    sample = _sample(prepared, pairs, values)
    spread = spread or _spread_at_load(sample, spread_processes(prepared, values))
    return _widen(_estimate(prepared, sample, comparison, metric, cell), spread, sample)


def _widen(estimate: RatioEstimate, spread: LoadSpread, sample: _Sample) -> RatioEstimate:
    """Return an estimate whose error takes in that of its blocks and that of its processes."""
    wider = widen_by_periods(estimate, spread.blocks, sample.blocks)
    is_in_blocks = spread.blocks is not None and not spread.blocks.is_within
    blocks = sample.blocks if is_in_blocks else None
    return widen_by_processes(wider, spread.processes, sample.mine, sample.theirs, blocks, twins=sample.twins)


def find_usable(prepared: PreparedRun, pairs: Pairs, values: Floats) -> Pairs:
    """Return the timed pairs of which both requests have a positive value and times that run forwards."""
    columns = prepared.columns
    usable = columns.timed & columns.in_order & (values > 0)
    kept = pairs.where(usable[pairs.mine] & usable[pairs.theirs])
    if prepared.plan.comparison.statistic != "mean":
        return kept.with_twins(None)
    return kept.with_twins(np.where(usable[kept.twins], kept.twins, kept.theirs))


def read_sides(pairs: Pairs, values: Floats) -> tuple[Floats, Floats]:
    """Return the values of usable pairs, shape (pairs,) each: the arm's, and what they are divided by.

    That is the baseline's, or the mean of the baseline's and of its equal's to the same prompt in the block.
    """
    return values[pairs.mine], (values[pairs.theirs] + values[pairs.twins]) / 2


def _sample(prepared: PreparedRun, pairs: Pairs, values: Floats) -> _Sample:
    """Return what is read off the usable ones of some pairs."""
    columns, usable = prepared.columns, find_usable(prepared, pairs, values)
    mine, theirs = usable.mine, usable.theirs
    above, below = read_sides(usable, values)
    return _Sample(
        above=above,
        below=below,
        clusters=columns.clusters(prepared.plan.comparison.cluster_by)[mine],
        segments=columns.segments[mine],
        blocks=columns.blocks[mine],
        mine=prepared.process_numbers[mine],
        theirs=prepared.process_numbers[theirs],
        twins=prepared.process_numbers[usable.twins],
    )


def estimate_null(prepared: PreparedRun, pairs: PairTable, metric: str, load: str) -> RatioEstimate:
    """Return baseline_null / baseline of a metric over a load, periods counted in."""
    cell, values = (ALL_SEGMENTS, load), prepared.columns.metric(metric)
    return estimate_ratio(prepared, pairs[NULL].cell(*cell), NULL, metric, cell, values=values)


def spread_at(prepared: PreparedRun, pairs: Pairs, values: Floats) -> LoadSpread:
    """Return how far apart the blocks and the processes of some pairs are in the log ratio of a value."""
    return _spread_at_load(_sample(prepared, pairs, values), spread_processes(prepared, values))


def _estimate(
    prepared: PreparedRun, sample: _Sample, comparison: Comparison, metric: str, cell: CellKey
) -> RatioEstimate:
    choice = prepared.plan.comparison
    return paired_ratio(
        sample.above,
        sample.below,
        sample.clusters,
        sample.segments if cell[0] == ALL_SEGMENTS else None,
        statistic=statistic_of(metric, choice.statistic),
        resamples=choice.resamples,
        seed=derive_seed(prepared.plan.seed, *comparison, metric, *cell),
        level=prepared.level_at(cell[1]),
        minimum_clusters=choice.minimum_prompts,
    )


def _spread_at_load(sample: _Sample, luck: ProcessSpread | None) -> LoadSpread:
    """Return how far apart blocks are beyond what their prompts explain, segments pooled, and processes."""
    known = luck and len(sample.mine)
    processes = number_rows(sample.mine, sample.theirs, sample.twins) if known else None
    logs = np.log(sample.above / sample.below)
    return LoadSpread(period_spread(logs, sample.blocks, sample.segments, processes), luck)


def widen(
    prepared: PreparedRun, family: Mapping[CellKey, RatioEstimate], claims: int | None = None
) -> dict[CellKey, Figure]:
    """Return, for every cell of a family, the interval that holds jointly over so many claims.

    None: over all cells with an estimate. At every analysis of the cell's load too.
    """
    known = [cell for cell, one in family.items() if one.value is not None and one.standard_error is not None]
    found = {}
    for cell, estimate in family.items():
        level = prepared.level_at(cell[1], claims or len(known)) if cell in known else None
        low, high = interval_at(estimate, level) if level else (None, None)
        found[cell] = to_figure(estimate, low=low, high=high, level=level)
    return found


def to_effect(
    prepared: PreparedRun,
    comparison: Comparison,
    metric: str,
    cell: CellKey,
    *,
    estimate: RatioEstimate,
    joint: Figure | None,
    statistic: str | None = None,
) -> Effect:
    """Return an estimate of a cell as a row; `joint` is its simultaneous interval where there is one."""
    ratio = to_figure(estimate, low=estimate.low, high=estimate.high, level=estimate.level)
    return Effect(
        metric=metric,
        statistic=statistic or statistic_of(metric, prepared.plan.comparison.statistic),
        arm=comparison[0],
        versus=comparison[1],
        segment=cell[0],
        load=cell[1],
        ratio=ratio,
        simultaneous=joint or Figure(value=ratio.value, n=ratio.n, reason=ratio.reason or POOLED_REASON),
        pairs=estimate.n_pairs,
        prompts=estimate.n_clusters,
        standard_error=estimate.standard_error,
    )


def to_figure(
    estimate: RatioEstimate, *, low: float | None, high: float | None, level: float | None
) -> Figure:
    """Return an estimate with the limits given."""
    return Figure(
        value=estimate.value,
        low=low,
        high=high,
        level=level,
        n=estimate.n_pairs,
        needed=estimate.needed,
        reason=estimate.reason,
    )
