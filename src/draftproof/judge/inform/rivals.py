"""The verdict that a run would get if time per token were computed as other tools compute it.

Pure. Only the deciding quantity of a request changes: the pairs, the resampling with its seeds, the margins,
the guardrails and the rules are those of the run. An estimator is judged where it gives one number per
request; `gap_spread_over_tokens`, `zeros_and_full_gap` and `request_rate_token_weighted` have the same mean
per request as `tpot_ns` or `tokens_minus_one` and part from them in their percentiles alone.

How far the ways in which other tools compute 'inter-token latency' disagree on this very run. Pure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draftproof.judge.decide.effects import compare_arms
from draftproof.judge.metrics.acceptance import pool_acceptance
from draftproof.judge.metrics.estimators import ESTIMATORS, EstimatorValue, rival_estimators
from draftproof.judge.observe.columns import Bools, Columns
from draftproof.judge.observe.pairs import PairTable
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.rivals import RivalCell, RivalVerdict
from draftproof.judge.results.run import Cell, Decision, Effect, EstimatorRow
from draftproof.judge.stats.resampling import Floats, Ints


def compute_estimator_rows(prepared: PreparedRun) -> tuple[EstimatorRow, ...]:
    """Return one row per load and estimator, in the order in which the estimators are listed."""
    return tuple(row for load in prepared.loads for row in _compute_rows(prepared, load))


def _compute_rows(prepared: PreparedRun, load: str) -> list[EstimatorRow]:
    baseline, candidate, null = (
        _estimate(prepared, arm, load) for arm in ("baseline", "candidate", "baseline_null")
    )
    return [_to_row(load, name, baseline[name], candidate.get(name), null.get(name)) for name in baseline]


def _estimate(prepared: PreparedRun, arm: str, load: str) -> dict[str, EstimatorValue]:
    records = [one.record for one in prepared.of_arm(arm, load) if one.is_ok and one.timed]
    return {value.estimator: value for value in rival_estimators(records)}


def _to_row(
    load: str,
    name: str,
    baseline: EstimatorValue,
    candidate: EstimatorValue | None,
    null: EstimatorValue | None,
) -> EstimatorRow:
    return EstimatorRow(
        load=load,
        estimator=name,
        used_by=baseline.used_by,
        baseline_mean_ns=baseline.mean_ns,
        candidate_mean_ns=candidate.mean_ns if candidate else None,
        ratio_mean=_divide(candidate.mean_ns if candidate else None, baseline.mean_ns),
        ratio_p50=_divide(candidate.p50_ns if candidate else None, baseline.p50_ns),
        ratio_p99=_divide(candidate.p99_ns if candidate else None, baseline.p99_ns),
        null_ratio_mean=_divide(null.mean_ns if null else None, baseline.mean_ns),
    )


def _divide(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator is not None and denominator else None


METRIC = "tpot_ns"
RIVAL_WORDS = {
    "chunk_gap": "raw chunk gaps",
    "gap_over_run_acceptance": "chunk gaps over the run's acceptance length",
    "latency_over_all_tokens": "the whole latency over all tokens",
    "waits_over_chunks": "waits over the number of chunks",
    "tokens_minus_one": "first to last chunk over all tokens but one",
}
DECISION_WORDS = {
    "adopt": "adopt",
    "adopt_limited": "adopt in a limited envelope",
    "defer": "defer",
    "inconclusive": "inconclusive",
    "invalid": "invalid",
}
USED_BY = {name: used_by for name, used_by, _ in ESTIMATORS}

Judge = Callable[[Sequence[Effect]], Sequence[Cell]]
Settle = Callable[[Sequence[Cell]], Decision]


def judge_by_rivals(
    prepared: PreparedRun,
    pairs: PairTable,
    *,
    effects: Sequence[Effect],
    cells: Sequence[Cell],
    judge: Judge,
    settle: Settle,
) -> tuple[RivalVerdict, ...]:
    """Return one verdict per rival estimator; none where another metric than time per token decides.

    Args:
        prepared: the run.
        pairs: its pairs, the same for every estimator.
        effects: the run's own effects; those of time per token are replaced.
        cells: the run's own cells.
        judge: the rules of the run, from effects to cells.
        settle: the rules of the run, from cells to the decision.
    """
    if prepared.plan.comparison.metric != METRIC:
        return ()
    own = (cells, settle(cells))
    others = [effect for effect in effects if effect.metric != METRIC]
    found = []
    for name in RIVAL_WORDS:
        values = read_rival(prepared, name)
        replaced = [
            one for pair in pairs for one in compare_arms(prepared, pairs[pair], pair, METRIC, values)
        ]
        rival = judge([*replaced, *others])
        found.append(_to_verdict(name, (rival, settle(rival)), own))
    return tuple(found)


def read_rival(prepared: PreparedRun, name: str) -> Floats:
    """Return a rival estimator's number of every request, ns, shape (observations,); NaN where it has none.

    Each is the closed form of one request in judge/metrics/estimators.py.
    """
    columns = prepared.columns
    tokens = columns.metric("output_tokens")  # NaN of failed requests, which have no number then
    answered = columns.is_ok & (columns.chunks > 0)
    if name == "latency_over_all_tokens":
        return _divide_gaps(columns.waited_ns, tokens, answered & (tokens >= 1))
    if name == "waits_over_chunks":
        return _divide_gaps(columns.waited_ns, columns.chunks, answered)
    if name == "tokens_minus_one":
        return _divide_gaps(columns.span_ns, tokens - 1, answered & (tokens > 1) & (columns.chunks > 1))
    gaps = _divide_gaps(columns.span_ns, columns.chunks - 1, answered & (columns.chunks > 1))
    return gaps / _acceptance_lengths(prepared) if name == "gap_over_run_acceptance" else gaps


def _divide_gaps(amounts: Floats, counts: npt.NDArray[Any], known: Bools) -> Floats:
    found: Floats = np.where(known, amounts / np.where(known, counts, 1), np.nan)
    return found


def count_statuses(cells: Iterable[Cell | RivalCell]) -> str:
    """Return "3 gain, 1 harm of 4 cells", statuses without a cell left out."""
    listed = [cell.status for cell in cells]
    counts = Counter(listed)
    named = [
        f"{counts[status]} {status}"
        for status in ("gain", "neutral", "harm", "inconclusive", "invalid")
        if counts[status]
    ]
    return f"{', '.join(named)} of {len(listed)} cells" if listed else "no cell"


def _acceptance_lengths(prepared: PreparedRun) -> Floats:
    """Return the acceptance length of each request's arm at its load, shape (observations,)."""
    columns, lengths = prepared.columns, np.ones(len(prepared.observations))
    told = columns.is_ok & columns.timed & columns.discloses
    for arm in prepared.arms:
        for load in prepared.loads:
            places = prepared.places_of(arm, load)
            lengths[places] = _acceptance_length(columns, places[told[places]])
    return lengths


def _acceptance_length(columns: Columns, places: Ints) -> float:
    """Return the mean acceptance length of one arm at one load, 1 where none is told: as that tool does."""
    pooled = pool_acceptance(columns.records[place] for place in places.tolist())
    return (pooled.mean_acceptance_length if pooled else None) or 1.0


def _to_verdict(
    name: str, judged: tuple[Sequence[Cell], Decision], own: tuple[Sequence[Cell], Decision]
) -> RivalVerdict:
    cells, decision = judged
    return RivalVerdict(
        estimator=name,
        used_by=USED_BY[name],
        decision=decision,
        agrees=decision == own[1] and [one.status for one in cells] == [one.status for one in own[0]],
        cells=tuple(_to_cell(cell) for cell in cells),
        sentence=_describe(name, judged, own),
    )


def _describe(
    name: str, judged: tuple[Sequence[Cell], Decision], own: tuple[Sequence[Cell], Decision]
) -> str:
    cells, decision = judged
    return (
        f"Judged by {RIVAL_WORDS[name]} this run would have been: {DECISION_WORDS[decision]} "
        f"({count_statuses(cells)}); by time per token it is: {DECISION_WORDS[own[1]]} "
        f"({count_statuses(own[0])})."
    )


def _to_cell(cell: Cell) -> RivalCell:
    return RivalCell(
        segment=cell.segment,
        load=cell.load,
        status=cell.status,
        ratio=cell.effect.value,
        low=cell.effect.low,
        high=cell.effect.high,
        pairs=cell.effect.n,
    )
