"""Order and drift in a run: positions in a block, change over the blocks, the null as a null difference.

The value of a period is the geometric mean of the deciding metric over its usable requests, because requests
of a period share what happened to the machine in it. Nothing here decides a cell.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import msgspec
import numpy as np

from draftproof.judge.decide.effects import (
    METRICS,
    EffectIndex,
    estimate_null,
    find_usable,
    read_direction,
    statistic_of,
    to_figure,
)
from draftproof.judge.decide.preceding import summarise_preceding
from draftproof.judge.decide.processes import summarise_processes
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.observed import sort_by_time
from draftproof.judge.observe.pairs import NULL, Comparison, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import BlockPoint, DriftRow, NoiseRow, OrderSummary, PlaceRow
from draftproof.judge.stats.bootstrap import compare_with_null, null_difference
from draftproof.judge.stats.order import compare_positions, drift, position_effect
from draftproof.judge.stats.permutation import holm_adjusted, simultaneous_intervals
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.plan.schema import Thresholds


def state_null_differences(
    prepared: PreparedRun, pairs: PairTable, effects: EffectIndex
) -> tuple[NoiseRow, ...]:
    """Return one row per load and metric; none without a null arm."""
    if NULL not in pairs:
        return ()
    keys = [(load, metric) for load in prepared.loads for metric in METRICS]
    estimates = [estimate_null(prepared, pairs, metric, load) for load, metric in keys]
    joint = simultaneous_intervals(estimates, 1 - prepared.plan.comparison.confidence)
    rows = []
    for (load, metric), estimate, held in zip(keys, estimates, joint, strict=True):
        effect = effects[(metric, "candidate", "baseline", ALL_SEGMENTS, load)].ratio
        limits = (estimate.low, estimate.high)
        floor, is_beyond = compare_with_null((effect.low, effect.high), limits)
        rows.append(
            NoiseRow(
                load=load,
                metric=metric,
                statistic=statistic_of(metric, prepared.plan.comparison.statistic),
                null=to_figure(estimate, low=estimate.low, high=estimate.high, level=estimate.level),
                joint=to_figure(estimate, low=held.low, high=held.high, level=held.level),
                covers_one=None if held.low is None or held.high is None else held.low <= 1 <= held.high,
                noise_floor=floor,
                null_difference=null_difference(estimate.value, estimate.standard_error),
                effect_beyond=is_beyond,
            )
        )
    return tuple(rows)


ALL_ARMS = "all"
NS_PER_HOUR = 3.6e12


class Start(msgspec.Struct, frozen=True):
    """When a period began, ns, and at which position of its block, 0 first."""

    started_ns: int
    position: int


Starts = Mapping[tuple[str, int, str], Start]
Periods = Mapping[tuple[int, str], float]  # (block, arm) -> mean of the logarithms


def compute_order(prepared: PreparedRun, pairs: PairTable, effects: EffectIndex) -> OrderSummary:
    """Return what the order of periods and the hours of the run did to the deciding metric."""
    starts = find_starts(prepared)
    periods = {load: _average_periods(prepared, load) for load in prepared.loads}
    compared = [one for one in pairs if one[1] == "baseline"]
    points = tuple(
        point
        for comparison in compared
        for load in prepared.loads
        for point in _list_points(prepared, pairs[comparison], (comparison, load), starts)
    )
    by_position = [
        row for load in prepared.loads for row in _compare_positions(prepared, load, periods[load], starts)
    ]
    of_arms = [
        row for load in prepared.loads for row in _drift_of_arms(prepared, load, periods[load], starts)
    ]
    of_effects = [
        _drift_of_effect(prepared, one, load, points) for one in compared for load in prepared.loads
    ]
    corrected, drifted = _correct(by_position, [*of_arms, *of_effects])
    return OrderSummary(
        places=corrected,
        drifts=drifted,
        noise=state_null_differences(prepared, pairs, effects),
        points=points,
        preceding=summarise_preceding(prepared),
        processes=summarise_processes(prepared),
    )


def _correct(
    positions: Sequence[PlaceRow], drifts: Sequence[DriftRow]
) -> tuple[tuple[PlaceRow, ...], tuple[DriftRow, ...]]:
    """Add Holm's p-values over all tests of position and drift together."""
    adjusted = holm_adjusted([*(row.p for row in positions), *(row.p for row in drifts)])
    of_positions, of_drifts = adjusted[: len(positions)], adjusted[len(positions) :]
    return (
        tuple(
            msgspec.structs.replace(row, adjusted_p=p) for row, p in zip(positions, of_positions, strict=True)
        ),
        tuple(msgspec.structs.replace(row, adjusted_p=p) for row, p in zip(drifts, of_drifts, strict=True)),
    )


def find_starts(prepared: PreparedRun) -> Starts:
    """Return when each period began first: a resumed period keeps its first start and position."""
    manifest = prepared.run.manifest
    anchor_offset_ns = manifest.anchor_wall_ns - manifest.anchor_monotonic_ns
    starts: dict[tuple[str, int, str], Start] = {}
    for started_ns, period in sort_by_time(prepared.run.blocks, anchor_offset_ns=anchor_offset_ns):
        starts.setdefault((period.load, period.block, period.arm), Start(started_ns, period.order))
    return starts


def _average_periods(prepared: PreparedRun, load: str) -> Periods:
    """Return the mean logarithm of the deciding metric in every period that has a usable request."""
    columns, found = prepared.columns, {}
    values = columns.metric(prepared.plan.comparison.metric)
    usable = columns.timed & columns.in_order & (values > 0)
    for arm in prepared.arms:
        indices = prepared.indices_of(arm, load)
        kept = indices[usable[indices]]
        for block, own in _split_by_block(columns.blocks[kept], values[kept]):
            found[block, arm] = fmean(map(math.log, own.tolist()))
    return found


def _split_by_block(blocks: Ints, values: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield each block, in order, with its values."""
    order = np.argsort(blocks, kind="stable")
    names, starts = np.unique(blocks[order], return_index=True)
    yield from zip(names.tolist(), np.split(values[order], starts[1:]), strict=True) if len(names) else ()


def _compare_positions(
    prepared: PreparedRun, load: str, periods: Periods, starts: Starts
) -> Iterator[PlaceRow]:
    """Yield the comparison of positions over all arms, then that of each arm."""
    free = _free_of_blocks_and_arms(periods)
    # A period that was measured once more came after its block, at no position of it.
    known = [
        key
        for key in sorted(free)
        if (load, *key) in starts and starts[load, *key].position < len(prepared.arms)
    ]
    positions = [starts[load, block, arm].position for block, arm in known]
    values = [math.exp(free[key]) for key in known]
    found = {ALL_ARMS: position_effect(values, positions, [block for block, _ in known])}
    for arm in prepared.arms:
        own = [at for at, (_, who) in enumerate(known) if who == arm]
        found[arm] = compare_positions([values[at] for at in own], [positions[at] for at in own])
    for arm, one in found.items():
        yield PlaceRow(
            arm=arm,
            load=load,
            metric=prepared.plan.comparison.metric,
            ratios=one.ratios,
            p=one.p,
            adjusted_p=None,
            blocks=one.n,
            reason=one.reason,
            needed=one.needed,
        )


def _free_of_blocks_and_arms(periods: Periods) -> dict[tuple[int, str], float]:
    """Take off each block's mean, then each arm's, over the blocks in which every arm has a value."""
    arms = {arm for _, arm in periods}
    by_block: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for (block, arm), value in periods.items():
        by_block[block][arm] = value
    whole = {block: values for block, values in by_block.items() if set(values) == arms}
    centred = {
        (block, arm): value - fmean(values.values())
        for block, values in whole.items()
        for arm, value in values.items()
    }
    means = {arm: fmean(centred[block, arm] for block in whole) for arm in arms} if whole else {}
    return {(block, arm): value - means[arm] for (block, arm), value in centred.items()}


def _list_points(
    prepared: PreparedRun, pairs: Pairs, compared: tuple[Comparison, str], starts: Starts
) -> Iterator[BlockPoint]:
    """Yield the ratio of each block in which both periods have a start, of two arms at a load."""
    (arm, versus), load = compared
    values = prepared.columns.metric(prepared.plan.comparison.metric)
    usable = find_usable(prepared, pairs.cell(ALL_SEGMENTS, load), values)
    ratios = values[usable.mine] / values[usable.theirs]
    origin = min((start.started_ns for start in starts.values()), default=0)
    for block, found in _split_by_block(prepared.columns.blocks[usable.mine], ratios):
        begun = [
            starts[key].started_ns for key in ((load, block, arm), (load, block, versus)) if key in starts
        ]
        if len(begun) == 2:
            yield BlockPoint(
                arm=arm,
                load=load,
                block=block,
                hours=(fmean(begun) - origin) / NS_PER_HOUR,
                ratio=math.exp(fmean(map(math.log, found.tolist()))),
                pairs=len(found),
            )


def _drift_of_arms(prepared: PreparedRun, load: str, periods: Periods, starts: Starts) -> Iterator[DriftRow]:
    for arm in prepared.arms:
        known = sorted(block for block, who in periods if who == arm and (load, block, arm) in starts)
        yield _to_drift(
            prepared,
            (arm, None),
            load,
            values=[math.exp(periods[block, arm]) for block in known],
            times_ns=[float(starts[load, block, arm].started_ns) for block in known],
        )


def _drift_of_effect(
    prepared: PreparedRun, comparison: Comparison, load: str, points: Iterable[BlockPoint]
) -> DriftRow:
    own = [point for point in points if (point.arm, point.load) == (comparison[0], load)]
    return _to_drift(
        prepared,
        comparison,
        load,
        values=[point.ratio for point in own],
        times_ns=[point.hours * NS_PER_HOUR for point in own],
    )


def _to_drift(
    prepared: PreparedRun,
    compared: tuple[str, str | None],
    load: str,
    *,
    values: Sequence[float],
    times_ns: Sequence[float],
) -> DriftRow:
    found = drift(values, times_ns)
    hours = (max(times_ns) - min(times_ns)) / NS_PER_HOUR if times_ns else None
    backwards = any(after < before for before, after in pairwise(times_ns))
    factor = None if backwards or hours is None else found.factor_per_hour
    return DriftRow(
        arm=compared[0],
        versus=compared[1],
        load=load,
        metric=prepared.plan.comparison.metric,
        factor_per_hour=factor,
        change=None if factor is None or hours is None else factor**hours,
        hours=None if backwards else hours,
        p=None if factor is None else found.p,
        adjusted_p=None,
        blocks=found.n,
        reason="the blocks' times run backwards: the clock began anew" if backwards else found.reason,
        needed=None if backwards else found.needed,
    )


def warn_about_order(
    order: OrderSummary, thresholds: Thresholds, confidence: float, metric: str
) -> Iterator[str]:
    """Yield what is significant after correction and larger than the smallest gain that counts.

    Of the deciding metric two equal arms that differ are named by the interval of that comparison alone.
    """
    alpha, least = 1 - confidence, 1 + thresholds.minimum_gain
    for one in order.places:
        if one.ratios and _is_found(one.adjusted_p, alpha) and max(one.ratios) / min(one.ratios) > least:
            yield _describe_position(one)
    for row in order.drifts:
        if row.change and _is_found(row.adjusted_p, alpha) and max(row.change, 1 / row.change) > least:
            yield _describe_drift(row)
    for noise in order.noise:
        shown = noise.null if noise.metric == metric else noise.joint
        if read_direction(shown, 1.0) is not None:
            yield (
                f"Two equal services differ at load {noise.load}: {METRIC_WORDS[noise.metric]}, null / "
                f"baseline, is {shown.value:.2f} ({shown.low:.2f} to {shown.high:.2f}); a gain or harm must "
                f"exceed {100 * ((noise.null_difference or 1) - 1):.0f} %."
            )


def _describe_position(row: PlaceRow) -> str:
    whose = "every arm" if row.arm == ALL_ARMS else row.arm
    factors = ", ".join(f"{ratio:.2f}" for ratio in row.ratios or ())
    return (
        f"At load {row.load} the position in a block matters to {whose}: {METRIC_WORDS[row.metric]} "
        f"by position is "
        f"{factors} of the mean (corrected p = {row.adjusted_p:.2g})."
    )


def _describe_drift(row: DriftRow) -> str:
    if row.versus is None:
        what = f"{METRIC_WORDS[row.metric]} of {row.arm} drifts"
        so = "the arms take turns, so the effect is not moved by what moves all of them"
    else:
        what = f"the effect itself drifts: {row.arm} / {row.versus} in {METRIC_WORDS[row.metric]} changes"
        so = "the effect stated is an average over the run and may not be what comes next"
    change, hours = 100 * ((row.change or 1) - 1), row.hours or 0.0
    return (
        f"At load {row.load} {what} by {change:+.0f} % over {_span(hours)} "
        f"(corrected p = {row.adjusted_p:.2g}); {so}."
    )


def _span(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"


def _is_found(adjusted_p: float | None, alpha: float) -> bool:
    return adjusted_p is not None and adjusted_p <= alpha
