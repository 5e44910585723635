"""The tail guardrail: time per token and first token at a far quantile, every failed request in the tail.

A failed request counts as infinitely slow, so that no arm gets a shorter tail by failing its slow ones. A
tail is shown to be non-inferior over the load. A cell violates it if its own whole interval is beyond the
margin, or if that of the load is and the cell's own quantile, too.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from draftproof.judge.decide.bounds import note_basis, read_bounds, span_bounds
from draftproof.judge.decide.effects import (
    CellKey,
    EffectIndex,
    index_effects,
    null_difference_at,
    to_effect,
)
from draftproof.judge.decide.guardrails import GuardrailFinding, GuardrailOutcome, beside_null, find
from draftproof.judge.decide.processes import spread_processes
from draftproof.judge.decide.spreads import DEFAULT_POWER, spread_values
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.pairs import DECISIVE, NULL, Comparison, Pairs, PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.results.decide import refer
from draftproof.judge.results.run import Cell, Decision, Effect, Figure
from draftproof.judge.stats.bootstrap import RatioEstimate, error_of_interval
from draftproof.judge.stats.periods import stretch_for_periods, weigh_processes
from draftproof.judge.stats.planning import tail_prompts_needed
from draftproof.judge.stats.quantile_ratio import paired_quantile_ratio
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.plan.schema import Thresholds

TAIL_METRICS = ("tpot_ns", "ttft_from_schedule_ns")
TAIL_CODES = {"tpot_ns": "guardrail_tail_tpot", "ttft_from_schedule_ns": "guardrail_tail_ttft"}
TAIL_COMPARISONS = (DECISIVE, NULL)
NOT_SHOWN = "tail_not_shown"
ONE_COMPARISON = "a guardrail: judged by the interval of one comparison"
MOST_TIMES_THE_PROMPTS = 100_000  # times as many prompts are no advice


class Tails(msgspec.Struct, frozen=True, kw_only=True):
    """The tail effects, and each cell's own ratio of the quantile however few pairs it has.

    `points`, by metric, segment and load, serves only to say which cells share the blame for a load: by
    itself a quantile of few requests shows nothing. Infinite where it falls on a failed request of the
    candidate alone, None where it does in the baseline or there is no pair.
    """

    effects: tuple[Effect, ...]
    index: EffectIndex
    points: Mapping[tuple[str, str, str], float | None]


def tail_share(thresholds: Thresholds) -> float:
    """Return the tail's quantile as a share: 0.95 for "p95"."""
    return int(thresholds.tail_quantile.removeprefix("p")) / 100


def compute_tails(prepared: PreparedRun, pairs: PairTable) -> Tails:
    """Return the ratio of the plan's tail quantile: comparison × metric × cell, segment "all" first."""
    effects = tuple(
        _compute_effect(prepared, pairs[comparison], comparison, metric, (segment, load))
        for comparison in TAIL_COMPARISONS
        if comparison in pairs
        for metric in TAIL_METRICS
        for load in prepared.loads
        for segment in (ALL_SEGMENTS, *prepared.segments)
    )
    decisive, q = pairs[DECISIVE], tail_share(prepared.plan.thresholds)
    points = {
        (metric, segment, load): _point(prepared, decisive.cell(segment, load), metric, q)
        for metric in TAIL_METRICS
        for load in prepared.loads
        for segment in prepared.segments
    }
    return Tails(effects=effects, index=index_effects(effects), points=points)


def evaluate_tails(
    cell: CellKey, tails: Tails, thresholds: Thresholds, *, withholds: bool
) -> tuple[GuardrailFinding, ...]:
    """Return the state of the tail of each metric in a cell, noted if not shown and not `withholds`."""
    return tuple(_evaluate(metric, cell, tails, thresholds, withholds=withholds) for metric in TAIL_METRICS)


def list_open_tails(prepared: PreparedRun, tails: Tails, loads: Sequence[str]) -> Iterator[str]:
    """Yield, by metric, at which of some loads the tail is not shown to hold, and what it would take."""
    thresholds = prepared.plan.thresholds
    for metric in TAIL_METRICS:
        pooled = [_row_of(tails, metric, (ALL_SEGMENTS, load)) for load in loads]
        unseen = [one for one in pooled if _standing(one.ratio, 1 + thresholds.tail_margin) == "open"]
        if unseen:
            counts = [one.ratio.needed for one in unseen if one.ratio.needed]
            advice = _ask_for(max(counts, default=None), "at a load ")
            yield (
                f"The tail: whether {thresholds.tail_quantile} of {METRIC_WORDS[metric]} stays within "
                f"{100 * thresholds.tail_margin:g} % at load {', '.join(one.load for one in unseen)}{advice}."
            )


def qualify_sentence(sentence: str, decision: Decision, cells: Iterable[Cell], thresholds: Thresholds) -> str:
    """Return the sentence; one that adopts says so where the tail of a gain is not shown."""
    unseen = any(
        reason.code == NOT_SHOWN for cell in cells if cell.status == "gain" for reason in cell.reasons
    )
    if decision not in ("adopt", "adopt_limited") or not unseen:
        return sentence
    quantile, margin = thresholds.tail_quantile, 100 * thresholds.tail_margin
    return f"{sentence.removesuffix('.')}; not shown: that {quantile} stays within {margin:g} %."


def compare_tail(prepared: PreparedRun, pairs: Pairs, metric: str, cell: CellKey) -> Effect:
    """Return the ratio of the plan's tail quantile of candidate and baseline in one cell."""
    return _compute_effect(prepared, pairs, DECISIVE, metric, cell)


def explain_tail(effect: Effect | None, thresholds: Thresholds) -> str | None:
    """Return why no number of prompts would show a tail to be within its margin; None where one would."""
    if effect is None:
        return None
    ratio = effect.ratio
    if ratio.needed or _standing(ratio, 1 + thresholds.tail_margin) == "held":
        return None
    if ratio.value is None or ratio.high is None:
        return ratio.remedy or ratio.reason
    return f"the run's own tail is {ratio.value:.2f} of the baseline's, at the margin or beyond it"


def count_more(prepared: PreparedRun, pairs: Pairs, effect: Effect) -> int | None:
    """Estimate how many more prompts would show a tail to be within its margin; None where none would.

    The upper half of an interval shrinks as the root of the number of prompts, the present value taken for
    the true one. Below the floor of the quantile it is what a tail that is no longer takes.
    """
    ratio, thresholds = effect.ratio, prepared.plan.thresholds
    limit = math.log(1 + thresholds.tail_margin)
    if ratio.remedy or (ratio.value is None and ratio.needed is None):
        return None
    if ratio.value is None:
        wanted = tail_prompts_needed(
            q=tail_share(thresholds),
            ratio=1.0,
            margin=thresholds.tail_margin,
            level=prepared.plan.comparison.confidence,
            power=DEFAULT_POWER,
            log_spread=spread_values(prepared, pairs, effect.metric)[0][-1],
        )
        return wanted - effect.prompts if wanted > effect.prompts else ratio.needed
    if ratio.high is None or math.log(ratio.value) >= limit:
        return None
    room = limit - math.log(ratio.value)
    reach = math.log(ratio.high) - math.log(ratio.value)
    if not room < reach <= room * math.sqrt(MOST_TIMES_THE_PROMPTS):
        return None
    return math.ceil(effect.prompts * ((reach / room) ** 2 - 1))


def _compute_effect(
    prepared: PreparedRun, pairs: Pairs, comparison: Comparison, metric: str, cell: CellKey
) -> Effect:
    """Return the ratio of a tail; of a metric that is known within bounds, over all of them."""

    def estimate(values: Floats) -> Effect:
        return _estimate(prepared, pairs.cell(*cell), comparison, metric, cell, values=values)

    found = note_basis(estimate(prepared.columns.metric(metric)), pairs.cell(*cell))
    bounds = None if comparison == NULL else read_bounds(pairs.cell(*cell), metric)
    if bounds is not None:
        least, most = map(estimate, bounds)
        found = span_bounds(found, least, most, (1 + prepared.plan.thresholds.tail_margin,))
    needed = count_more(prepared, pairs.cell(*cell), found)
    return msgspec.structs.replace(found, ratio=msgspec.structs.replace(found.ratio, needed=needed))


def _estimate(
    prepared: PreparedRun,
    pairs: Pairs,
    comparison: Comparison,
    metric: str,
    cell: CellKey,
    *,
    values: Floats,
) -> Effect:
    choice, thresholds = prepared.plan.comparison, prepared.plan.thresholds
    mine, theirs = _select(prepared, pairs, metric)
    estimate = paired_quantile_ratio(
        _or_infinite(values)[mine],
        _or_infinite(values)[theirs],
        prepared.columns.clusters(choice.cluster_by)[mine],
        prepared.columns.blocks[mine],
        q=tail_share(thresholds),
        level=prepared.level_at(cell[1]),
        minimum_clusters=choice.minimum_prompts,
    )
    estimate = _widen_by_luck(prepared, estimate, (mine, theirs), values)
    joint = Figure(value=estimate.value, n=estimate.n_pairs, reason=estimate.reason or ONE_COMPARISON)
    found = to_effect(
        prepared,
        comparison,
        metric,
        cell,
        estimate=estimate,
        joint=joint,
        statistic=thresholds.tail_quantile,
    )
    return msgspec.structs.replace(found, standard_error=error_of_interval(estimate))


def _widen_by_luck(
    prepared: PreparedRun, estimate: RatioEstimate, indices: tuple[Ints, Ints], values: Floats
) -> RatioEstimate:
    """Return an estimate whose interval takes in what the luck of processes moves, the tail as the mean.

    What it does to blocks is in the interval already.
    """
    luck, own = spread_processes(prepared, values), error_of_interval(estimate)
    if luck is None or own is None:
        return estimate
    mine, theirs = (prepared.process_numbers[of_arm] for of_arm in indices)
    weight = weigh_processes(mine, theirs, prepared.columns.blocks[indices[0]])
    return stretch_for_periods(estimate, luck.variance * weight, own, luck.degrees)


def _or_infinite(values: Floats) -> Floats:
    """Return the values, infinite where a request has none."""
    return np.where(np.isnan(values), math.inf, values)


def _select(prepared: PreparedRun, pairs: Pairs, metric: str) -> tuple[Ints, Ints]:
    """Return the indices of the requests of timed pairs of which each failed or has the metric."""
    columns = prepared.columns
    mine, theirs = pairs.mine, pairs.theirs
    counts = columns.timed & (~columns.is_ok | (columns.in_order & (columns.metric(metric) > 0)))
    kept = counts[mine] & counts[theirs]
    return mine[kept], theirs[kept]


def _point(prepared: PreparedRun, pairs: Pairs, metric: str, q: float) -> float | None:
    values = _or_infinite(prepared.columns.metric(metric))
    above, below = (percentile(values[chosen], q) for chosen in _select(prepared, pairs, metric))
    if above is None or below is None or math.isinf(below):
        return None
    return above / below


def _evaluate(
    metric: str, cell: CellKey, tails: Tails, thresholds: Thresholds, *, withholds: bool
) -> GuardrailFinding:
    limit, load = 1 + thresholds.tail_margin, cell[1]
    cells = (cell, (ALL_SEGMENTS, load))
    own, whole = (refer("tails", one, metric) for one in cells)
    here, pooled = (_row_of(tails, metric, one) for one in cells)
    code, null = TAIL_CODES[metric], null_difference_at(tails.index, metric, load)
    if _standing(here.ratio, limit, null) == "violated":
        return find("violated", code, _describe(here, thresholds), own)
    standing, text = _standing(pooled.ratio, limit, null), _describe(pooled, thresholds)
    point = tails.points[(metric, *cell)]
    if standing == "violated" and point is not None and point > limit * null:
        text = f"{text}; in this cell alone the same quantiles are {point:.2f}"
        return find("violated", code, text, whole)
    if standing == "held":
        return find("held", code, text, whole)
    text += beside_null(null)
    if pooled.ratio.remedy:
        text += f"; no number of prompts changes that: {pooled.ratio.remedy}"
    else:
        text += _ask_for(pooled.ratio.needed)
    return find(*(("open", code) if withholds else ("noted", NOT_SHOWN)), text, whole)


def _standing(ratio: Figure, limit: float, null: float = 1.0) -> GuardrailOutcome:
    """Return the state of a ratio: violated only beyond what two equal arms differ by as well."""
    if ratio.low is not None and ratio.low > limit * null:
        return "violated"
    return "held" if ratio.high is not None and ratio.high <= limit else "open"


def _describe(effect: Effect, thresholds: Thresholds) -> str:
    ratio, words = effect.ratio, f"{thresholds.tail_quantile} of {METRIC_WORDS[effect.metric]}"
    where = "over all tasks" if effect.segment == ALL_SEGMENTS else f"in {effect.segment}"
    if ratio.value is None or ratio.low is None:
        return f"{words} could not be compared {where}: {ratio.reason}"
    high = "no upper limit" if ratio.high is None else f"{ratio.high:.2f}"
    return (
        f"{words} is {ratio.value:.2f} ({ratio.low:.2f} to {high}) times the baseline's {where}, at most "
        f"{1 + thresholds.tail_margin:.2f} allowed"
    )


def _ask_for(more: int | None, where: str = "") -> str:
    return f"; to show it takes about {more:,} more prompts {where}(an estimate)" if more else ""


def _row_of(tails: Tails, metric: str, cell: CellKey) -> Effect:
    return tails.index[(metric, "candidate", "baseline", *cell)]
