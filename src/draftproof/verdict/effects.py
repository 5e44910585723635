"""Effects: ratios of two arms by cell, with the interval of one comparison and the simultaneous one.

Pure. Pairs enter only if both requests are ok, both turns were on time and both have the metric. What is left
out here is counted by the failure guardrail, so a failure never makes an arm look faster.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from draftproof.metrics.identities import timeline_faults
from draftproof.stats.bootstrap import RatioEstimate, Statistic, paired_ratio
from draftproof.stats.multiplicity import simultaneous_intervals
from draftproof.verdict.pairs import Comparison, Pair, PairTable, in_cell
from draftproof.verdict.results import Effect, Figure
from draftproof.verdict.run_data import ALL_SEGMENTS, Observation, PreparedRun

METRICS = ("tpot_ns", "ttft_from_schedule_ns", "e2e_from_schedule_ns", "output_tokens")
POOLED_REASON = "pooled over segments: shown beside them, no part of the family that decides"

CellKey = tuple[str, str]  # segment, load
EffectIndex = Mapping[tuple[str, str, str, str, str], Effect]


def compute_effects(prepared: PreparedRun, pairs: PairTable) -> tuple[Effect, ...]:
    """Return every effect: comparison × metric × cell, segment "all" first at each load."""
    return tuple(
        effect
        for comparison in pairs
        for metric in METRICS
        for effect in _compare(prepared, pairs[comparison], comparison, metric)
    )


def index_effects(effects: Iterable[Effect]) -> EffectIndex:
    """Return the effects by (metric, arm, versus, segment, load)."""
    return {(one.metric, one.arm, one.versus, one.segment, one.load): one for one in effects}


def derive_seed(seed: int, *parts: str) -> int:
    """Return a 32-bit seed that depends on the plan's seed and on what is resampled, on nothing else."""
    text = "\x1f".join((str(seed), *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def value_of(seen: Observation, metric: str) -> float | None:
    """Return a metric of an answered request as a float, None where it is not known."""
    value = getattr(seen.metrics, metric) if seen.is_ok else None
    return None if value is None else float(value)


def statistic_of(metric: str, planned: Statistic) -> Statistic:
    """Return the statistic of a metric: the plan's for times; the length of answers is always a mean."""
    return "mean" if metric == "output_tokens" else planned


def _compare(
    prepared: PreparedRun, pairs: Sequence[Pair], comparison: Comparison, metric: str
) -> list[Effect]:
    cells = [(name, load) for load in prepared.loads for name in (ALL_SEGMENTS, *prepared.segments)]
    estimates = {
        cell: _estimate(prepared, _usable(in_cell(pairs, *cell), metric), comparison, metric, cell)
        for cell in cells
    }
    family = {cell: one for cell, one in estimates.items() if cell[0] != ALL_SEGMENTS}
    joint = widen(family, prepared.plan.comparison.confidence)
    return [
        _to_effect(prepared, comparison, metric, cell, estimate=estimates[cell], joint=joint.get(cell))
        for cell in cells
    ]


def _usable(pairs: Iterable[Pair], metric: str) -> list[Pair]:
    return [
        pair
        for pair in pairs
        if pair.timed and is_usable(pair.versus, metric) and is_usable(pair.arm, metric)
    ]


def is_usable(seen: Observation, metric: str) -> bool:
    """Return whether a request has a metric as a positive number and times that do not run backwards."""
    value = value_of(seen, metric)
    return value is not None and value > 0 and not timeline_faults(seen.record)


def _estimate(
    prepared: PreparedRun, pairs: Sequence[Pair], comparison: Comparison, metric: str, cell: CellKey
) -> RatioEstimate:
    """Return the ratio with clusters = prompts; "all" is drawn within segments, so their mix stays fixed."""
    choice = prepared.plan.comparison
    segments = np.array([pair.segment for pair in pairs], dtype=str)
    return paired_ratio(
        np.array([value_of(pair.arm, metric) for pair in pairs], dtype=float),
        np.array([value_of(pair.versus, metric) for pair in pairs], dtype=float),
        np.array([pair.item_id for pair in pairs], dtype=str),
        segments if cell[0] == ALL_SEGMENTS else None,
        statistic=statistic_of(metric, choice.statistic),
        resamples=choice.resamples,
        seed=derive_seed(prepared.plan.seed, *comparison, metric, *cell),
        level=choice.confidence,
        minimum_clusters=choice.minimum_prompts,
    )


def widen(family: Mapping[CellKey, RatioEstimate], confidence: float) -> dict[CellKey, Figure]:
    """Return, for every cell of a family, the interval that holds jointly over all cells with an estimate."""
    joint = simultaneous_intervals(list(family.values()), 1 - confidence)
    return {
        cell: _to_figure(estimate, low=held.low, high=held.high, level=held.level)
        for (cell, estimate), held in zip(family.items(), joint, strict=True)
    }


def _to_effect(
    prepared: PreparedRun,
    comparison: Comparison,
    metric: str,
    cell: CellKey,
    *,
    estimate: RatioEstimate,
    joint: Figure | None,
) -> Effect:
    ratio = _to_figure(estimate, low=estimate.low, high=estimate.high, level=estimate.level)
    return Effect(
        metric=metric,
        statistic=statistic_of(metric, prepared.plan.comparison.statistic),
        arm=comparison[0],
        versus=comparison[1],
        segment=cell[0],
        load=cell[1],
        ratio=ratio,
        simultaneous=joint or Figure(value=ratio.value, n=ratio.n, reason=ratio.reason or POOLED_REASON),
        pairs=estimate.n_pairs,
        prompts=estimate.n_clusters,
    )


def _to_figure(
    estimate: RatioEstimate, *, low: float | None, high: float | None, level: float | None
) -> Figure:
    return Figure(
        value=estimate.value,
        low=low,
        high=high,
        level=level,
        n=estimate.n_pairs,
        needed=estimate.needed,
        reason=estimate.reason,
    )
