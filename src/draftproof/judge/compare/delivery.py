"""What changed in delivery: ratios over the prompts of both runs, read against what equal arms show.

Clusters of the bootstrap are prompts, strata are segments. All ratios and all differences of failed shares
form one family, so that a change anywhere is called one by chance with at most 1 − confidence.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from draftproof.judge.compare.comparison import DeliveryChange, FailureChange, NoiseSource, Reading
from draftproof.judge.compare.outcomes import (
    QUANTITIES,
    BoundIndex,
    Overlap,
    Quantity,
    find_bounds,
    is_trusted,
    measure,
    pair_runs,
)
from draftproof.judge.decide.effects import derive_seed, to_figure
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.pairs import NO_PAIRS, NULL, Pair, PairTable, pair_observations
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import Figure
from draftproof.judge.stats.bootstrap import (
    RatioEstimate,
    Statistic,
    interval_at,
    null_difference,
    paired_ratio,
)
from draftproof.judge.stats.periods import period_spread, widen_by_periods
from draftproof.judge.stats.permutation import bonferroni_level
from draftproof.judge.stats.resampling import Ints, index_labels
from draftproof.judge.stats.shares import paired_share_difference

NullDifference = tuple[float | None, NoiseSource]

# Equal means may differ in their last bits; no change of a measured quantity is this small.
LAST_BITS = 1e-9
_CHUNK_SIZES = ("tokens_per_chunk", "characters_per_chunk")
UNCOUNTED = "chunks changed, and nobody counts the tokens of the first one"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run with what its comparison needs: burst bounds by arm and load, and its own pairs."""

    prepared: PreparedRun
    bounds: BoundIndex
    pairs: PairTable


class _ArmAtLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load: its answers in both runs to the same prompts, and the burst bounds of A and B."""

    arm: str
    load: str
    pairs: tuple[Pair, ...]
    bounds: tuple[float | None, float | None]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one arm at one load, before the intervals are widened to hold jointly."""

    at: _ArmAtLoad
    quantity: Quantity
    statistic: Statistic
    values: tuple[tuple[float, float], ...]  # after, before
    known: tuple[int, int]  # before, after
    answered: tuple[int, int]
    estimate: RatioEstimate
    noise: float | None
    noise_from: NoiseSource


class _Failures(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs of one arm and load by who failed: both, after alone, before alone, neither."""

    at: _ArmAtLoad
    counts: tuple[int, int, int, int]
    noise: float | None
    noise_from: NoiseSource


def build_side(prepared: PreparedRun) -> Side:
    """Return a run ready to be compared."""
    return Side(prepared=prepared, bounds=find_bounds(prepared), pairs=pair_observations(prepared))


def compare_delivery(
    before: Side, after: Side, overlap: Overlap, arms: Sequence[str]
) -> tuple[tuple[DeliveryChange, ...], tuple[FailureChange, ...]]:
    """Return what changed for these arms at every common load; A's plan sets statistic and confidence."""
    rows, failures = [], []
    for load in overlap.loads:
        floors = {one.name: _find_null_difference(before, after, one, load) for one in _list_quantities()}
        for arm in arms:
            at = _ArmAtLoad(
                arm=arm,
                load=load,
                pairs=pair_runs(before.prepared, after.prepared, overlap, arm, load),
                bounds=(before.bounds.get((arm, load)), after.bounds.get((arm, load))),
            )
            rows += _build_rows(before, at, floors)
            failures.append(_count_failures(before, after, at))
    confidence = before.prepared.plan.comparison.confidence
    claims = sum(row.estimate.value is not None for row in rows) + sum(any(f.counts) for f in failures)
    level = bonferroni_level(claims, 1 - confidence)
    changes = tuple(_to_change(row, level) for row in rows)
    uncounted = {(row.at.arm, row.at.load) for row in rows if _has_bounds(row.at.pairs)}
    return (
        _without_guessed_rates(changes, uncounted),
        tuple(_to_failure_change(one, level) for one in failures),
    )


def _has_bounds(pairs: Iterable[Pair]) -> bool:
    """Return whether a time per token is known within bounds only: nobody counts first chunks."""
    seen = (one.metrics for pair in pairs for one in (pair.arm, pair.versus))
    return any((one.tpot_most_ns or 0.0) > (one.tpot_ns or 0.0) for one in seen)


def _without_guessed_rates(
    changes: Sequence[DeliveryChange], uncounted: Collection[tuple[str, str]]
) -> tuple[DeliveryChange, ...]:
    """Return the changes; a time per token is not compared where other chunks may hold another first one.

    Of one service that sends its chunks as before the first chunks are alike, whatever they hold.
    """
    rechunked = {
        (one.arm, one.load)
        for one in changes
        if one.quantity in _CHUNK_SIZES and one.reading != "within_noise"
    }
    return tuple(
        msgspec.structs.replace(
            one, reading="not_compared", ratio=msgspec.structs.replace(one.ratio, reason=UNCOUNTED)
        )
        if one.quantity == "tpot_ns" and (one.arm, one.load) in rechunked.intersection(uncounted)
        else one
        for one in changes
    )


def read_interval(
    low: float | None, high: float | None, ends: tuple[float, float], noise: float | None
) -> Reading:
    """Return what an interval says: beyond both ends of the null difference with its whole length, or not.

    Without a known null difference, one that leaves the ends out is a change whose size may be that of it.
    """
    if low is None or high is None:
        return "not_compared"
    if low <= ends[1] and high >= ends[0]:
        return "within_noise"
    return "changed_noise_unknown" if noise is None else "changed"


def read_ratio(low: float | None, high: float | None, noise: float | None) -> Reading:
    """Return what an interval of a ratio says against a null difference, a factor of 1 or more."""
    reach = (noise or 1.0) * (1 + LAST_BITS)
    return read_interval(low, high, (1 / reach, reach), noise)


def _list_quantities() -> list[Quantity]:
    return [one for each in QUANTITIES for one in (each, each.instead) if one is not None]


def _build_rows(before: Side, at: _ArmAtLoad, floors: Mapping[str, NullDifference]) -> list[_Row]:
    """Return a row for every quantity; its stand-in too, or alone, where it is not known in both runs."""
    rows = []
    for quantity in QUANTITIES:
        row = _build_row(before, at, quantity, floors)
        if quantity.instead is None or row.values:
            rows.append(row)
            continue
        if (row.known[0] == 0) != (row.known[1] == 0):
            rows.append(row)
        rows.append(_build_row(before, at, quantity.instead, floors))
    return rows


def _build_row(
    before: Side, at: _ArmAtLoad, quantity: Quantity, floors: Mapping[str, NullDifference]
) -> _Row:
    pairs = at.pairs
    old = [measure(quantity, pair.versus, at.bounds[0]) for pair in pairs]
    new = [measure(quantity, pair.arm, at.bounds[1]) for pair in pairs]
    both = [
        (pair, b, a) for pair, a, b in zip(pairs, old, new, strict=True) if a is not None and b is not None
    ]
    statistic = _choose_statistic(before, quantity)
    noise, noise_from = floors[quantity.name]
    return _Row(
        at=at,
        quantity=quantity,
        statistic=statistic,
        values=tuple((b, a) for _, b, a in both),
        known=(len(old) - old.count(None), len(new) - new.count(None)),
        answered=(
            sum(is_trusted(pair.versus) for pair in pairs),
            sum(is_trusted(pair.arm) for pair in pairs),
        ),
        estimate=_estimate(before.prepared, both, statistic, (quantity.name, at.arm, at.load)),
        noise=noise,
        noise_from=noise_from,
    )


def _choose_statistic(before: Side, quantity: Quantity) -> Statistic:
    return before.prepared.plan.comparison.statistic if quantity.kind == "time" else "mean"


def _estimate(
    prepared: PreparedRun,
    both: Sequence[tuple[Pair, float, float]],
    statistic: Statistic,
    parts: Sequence[str],
) -> RatioEstimate:
    choice, names = prepared.plan.comparison, prepared.columns.cluster_names(None)
    above = np.array([value for _, value, _ in both], dtype=float)
    below = np.array([value for _, _, value in both], dtype=float)
    segments = np.array([pair.segment for pair, _, _ in both], dtype=str)
    estimate = paired_ratio(
        above,
        below,
        np.array([names[pair.item_id] for pair, _, _ in both], dtype=str),
        segments,
        statistic=statistic,
        resamples=choice.resamples,
        seed=derive_seed(prepared.plan.seed, "compare", *parts),
        level=choice.confidence,
        minimum_clusters=choice.minimum_prompts,
    )
    for blocks in _list_periods([pair for pair, _, _ in both]):
        spread = period_spread(np.log(above / below), blocks, segments)
        estimate = widen_by_periods(estimate, spread, blocks)
    return estimate


def _list_periods(pairs: Sequence[Pair]) -> list[Ints]:
    """Return the blocks of each side; once where both cut the prompts alike, or a block counts twice."""
    sides = [
        index_labels(np.array([seen.record.block for seen in side], dtype=np.intp))
        for side in ([pair.arm for pair in pairs], [pair.versus for pair in pairs])
    ]
    together = set(zip(*(side.tolist() for side in sides), strict=True))
    is_same = all(len(together) == len(np.unique(side)) for side in sides)
    return sides[:1] if is_same else sides


def _find_null_difference(before: Side, after: Side, quantity: Quantity, load: str) -> NullDifference:
    """Return the larger null difference of either run, as a factor, and who says so."""
    statistic = _choose_statistic(before, quantity)
    floors = [_find_floor(side, quantity, statistic, load) for side in (before, after)]
    return max((floor for floor in floors if floor is not None), default=None), _name_source(*floors)


def _find_floor(side: Side, quantity: Quantity, statistic: Statistic, load: str) -> float | None:
    both = []
    for pair in side.pairs.get(NULL, NO_PAIRS).cell(ALL_SEGMENTS, load):
        above = measure(quantity, pair.arm, side.bounds.get((NULL[0], load)))
        below = measure(quantity, pair.versus, side.bounds.get((NULL[1], load)))
        if above is not None and below is not None:
            both.append((pair, above, below))
    null = _estimate(side.prepared, both, statistic, (quantity.name, *NULL, load))
    return None if null.value is None else null_difference(null.value, null.standard_error)


def _name_source(before: float | None, after: float | None) -> NoiseSource:
    if before is not None and after is not None:
        return "both"
    if before is None and after is None:
        return "none"
    return "after" if before is None else "before"


def _to_change(row: _Row, level: float) -> DeliveryChange:
    low, high = interval_at(row.estimate, level)
    one_sided = not row.values and all(row.answered) and (row.known[0] == 0) != (row.known[1] == 0)
    reading: Reading = "known_in_one_run" if one_sided else read_ratio(low, high, row.noise)
    return DeliveryChange(
        arm=row.at.arm,
        load=row.at.load,
        quantity=row.quantity.name,
        statistic=row.statistic,
        before=_summarise([old for _, old in row.values], row.statistic),
        after=_summarise([new for new, _ in row.values], row.statistic),
        ratio=to_figure(row.estimate, low=row.estimate.low, high=row.estimate.high, level=row.estimate.level),
        simultaneous=to_figure(row.estimate, low=low, high=high, level=level),
        prompts=row.estimate.n_clusters,
        noise=row.noise,
        noise_from=row.noise_from,
        known_before=row.known[0],
        known_after=row.known[1],
        answered_before=row.answered[0],
        answered_after=row.answered[1],
        reading=reading,
    )


def _summarise(values: Sequence[float], statistic: Statistic) -> float | None:
    if not values:
        return None
    return percentile(values, 0.50) if statistic == "p50" else float(np.mean(values))


def _count_failures(before: Side, after: Side, at: _ArmAtLoad) -> _Failures:
    differences = [_find_null_failures(side, at.load) for side in (before, after)]
    return _Failures(
        at=at,
        counts=_count_by_failure(at.pairs),
        noise=max((one for one in differences if one is not None), default=None),
        noise_from=_name_source(*differences),
    )


def _find_null_failures(side: Side, load: str) -> float | None:
    """Return how far apart the failed shares of two equal arms are.

    Its value, not the end of its interval: that has a width even where nothing ever failed.
    """
    null = side.pairs.get(NULL, NO_PAIRS).cell(ALL_SEGMENTS, load)
    found = paired_share_difference(*_count_by_failure(null))
    return None if found.value is None else abs(found.value)


def _count_by_failure(pairs: Iterable[Pair]) -> tuple[int, int, int, int]:
    failed = [(not pair.arm.is_ok, not pair.versus.is_ok) for pair in pairs]
    order = ((True, True), (True, False), (False, True), (False, False))
    both, only_after, only_before, neither = (failed.count(kind) for kind in order)
    return both, only_after, only_before, neither


def _to_failure_change(found: _Failures, level: float) -> FailureChange:
    both, only_after, only_before, _ = found.counts
    total = sum(found.counts)
    interval, reach = paired_share_difference(*found.counts, level), (found.noise or 0.0) + LAST_BITS
    return FailureChange(
        arm=found.at.arm,
        load=found.at.load,
        before=(both + only_before) / total if total else None,
        after=(both + only_after) / total if total else None,
        difference=Figure(
            value=interval.value,
            low=interval.low,
            high=interval.high,
            level=level,
            n=total,
            reason=None if total else "no prompt of this load was asked in both runs",
        ),
        noise=found.noise,
        noise_from=found.noise_from,
        reading=read_interval(interval.low, interval.high, (-reach, reach), found.noise),
    )
