"""One arm in one cell: outcomes, percentiles with failures counted, acceptance, checks, delivery, periods.

Times of periods in which the client was late are left out; outcomes and checks are not. Also how far the ways
in which other tools compute "inter-token latency" disagree on this very run.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from draftproof.core.records import RequestRecord
from draftproof.judge.decide.effects import derive_seed
from draftproof.judge.metrics.acceptance import committed_progress, pool_acceptance
from draftproof.judge.metrics.delivery import describe_hint, find_hint, summarise_delivery
from draftproof.judge.metrics.estimators import EstimatorValue, other_estimators
from draftproof.judge.metrics.request import name_outcome
from draftproof.judge.metrics.service import percentile
from draftproof.judge.observe.columns import ASSUMED, Columns
from draftproof.judge.observe.run_data import ALL_SEGMENTS, Observation, PreparedRun
from draftproof.judge.results.decide import LabelAcceptance, PeriodSummary, as_figure, share_figure
from draftproof.judge.results.run import (
    ArmCell,
    CheckSummary,
    Delivery,
    EstimatorRow,
    Figure,
    Percentiles,
)
from draftproof.judge.stats.bootstrap import mean_interval
from draftproof.judge.stats.quantiles import QuantileEstimate, quantile_intervals
from draftproof.judge.stats.resampling import Floats, Ints

FELL_ON_FAILURE = "falls on a failed request: infinite"
QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def compute_arm_cells(prepared: PreparedRun) -> tuple[ArmCell, ...]:
    """Return every arm in every cell, segment "all" first at each load."""
    return tuple(
        compute_arm_cell(prepared, arm, segment, load)
        for arm in prepared.arms
        for load in prepared.loads
        for segment in (ALL_SEGMENTS, *prepared.segments)
    )


def compute_arm_cell(prepared: PreparedRun, arm: str, segment: str, load: str) -> ArmCell:
    """Return one arm in one cell."""
    columns, indices = prepared.columns, prepared.indices_of(arm, load, segment)
    on_time = indices[columns.timed[indices]]
    answered = on_time[columns.is_ok[on_time]]
    gaps = columns.gaps_of(answered)
    shares = [_to_share(columns, answered, part) for part in ("queue_ns", "prefill_ns", "decode_ns")]
    sound = indices[columns.is_sound[indices] & columns.discloses[indices]]
    timed = sound[columns.timed[sound]]
    rounds = [one for index in timed.tolist() for one in columns.records[index].rounds or ()]
    judged, passed, critical_failed, unjudged = columns.checks[indices].sum(axis=0).tolist()
    return ArmCell(
        arm=arm,
        segment=segment,
        load=load,
        attempted=len(indices),
        prompts=len(np.unique(columns.prompts[indices])),
        outcomes=_count_outcomes(columns, indices),
        ttft=_to_percentiles(prepared, on_time, "ttft_from_schedule_ns", (arm, segment, load)),
        tpot=_to_percentiles(prepared, on_time, "tpot_ns", (arm, segment, load)),
        e2e=_to_percentiles(prepared, on_time, "e2e_from_schedule_ns", (arm, segment, load)),
        output_tokens_mean=_to_mean(prepared, indices, "output_tokens", (arm, segment, load)),
        icl_p50_ns=percentile(gaps, 0.50),
        icl_p99_ns=percentile(gaps, 0.99),
        stall_count=int(columns.stalls[answered].sum()),
        longest_stall_ns=round(float(gaps.max())) if len(gaps) else None,
        on_time_share=_to_on_time(prepared, on_time),
        queue_share=shares[0],
        prefill_share=shares[1],
        decode_share=shares[2],
        acceptance=pool_acceptance(columns.records[index] for index in sound.tolist()),
        progress=committed_progress(rounds),
        checks=CheckSummary(judged=judged, passed=passed, critical_failed=critical_failed, unjudged=unjudged),
        fallbacks=_count_fallbacks(columns.fallbacks[indices]),
        tpot_bases=_count_bases(columns, answered),
        tpot_most=_to_longest(prepared, answered, (arm, segment, load)),
    )


def _count_bases(columns: Columns, answered: Ints) -> dict[str, int]:
    bases = [columns.observations[index].metrics for index in answered.tolist()]
    return dict(sorted(Counter(one.tpot_basis for one in bases if one.tpot_ns and one.tpot_basis).items()))


def _to_longest(prepared: PreparedRun, answered: Ints, parts: Sequence[str]) -> Figure | None:
    """Return the mean time per token with as many tokens in first chunks as may be; None if counted."""
    if not (prepared.columns.tpot_basis[answered] == ASSUMED).any():
        return None
    return _to_mean(prepared, answered, "tpot_most_ns", parts)


def _count_outcomes(columns: Columns, indices: Ints) -> dict[str, int]:
    counts = Counter(
        name_outcome(columns.records[index]) for index in indices[~columns.is_ok[indices]].tolist()
    )
    answered = int(columns.is_ok[indices].sum())
    return dict(sorted((counts + Counter({"ok": answered})).items()))


def _to_share(columns: Columns, answered: Ints, part: str) -> float | None:
    """Return the share of a part of the server's timings in the time from send to end."""
    spent, whole = columns.server_ns(part)[answered], columns.sent_ns[answered]
    known = ~(np.isnan(spent) | np.isnan(whole))
    total = int(whole[known].astype(np.int64).sum())
    return int(spent[known].astype(np.int64).sum()) / total if total > 0 else None


def _to_percentiles(prepared: PreparedRun, indices: Ints, metric: str, parts: Sequence[str]) -> Percentiles:
    columns = prepared.columns
    values = columns.metric(metric)
    answered, failed = indices[~np.isnan(values[indices])], indices[~columns.is_ok[indices]]
    attempted = np.concatenate([answered, failed])
    with_failures = np.concatenate([values[answered], np.full(len(failed), math.inf)])
    level = prepared.plan.comparison.confidence
    figures = _to_quantiles(with_failures, columns.prompts[attempted], level)
    alone = _to_quantiles(values[answered], columns.prompts[answered], level)
    return Percentiles(
        **figures,
        **{f"ok_{name}": figure for name, figure in alone.items()},
        mean_ok=_to_mean(prepared, indices, metric, parts),
    )


def _to_quantiles(values: Floats, prompts: Ints, level: float) -> dict[str, Figure]:
    """Return the percentiles by name; failed requests come in as +∞."""
    found = quantile_intervals(values, tuple(QUANTILES.values()), level, prompts)
    return {name: _to_figure(one, level) for name, one in zip(QUANTILES, found, strict=True)}


def _to_figure(found: QuantileEstimate, level: float) -> Figure:
    on_failure = found.value is not None and math.isinf(found.value)
    return Figure(
        value=None if on_failure else found.value,
        low=_finite(found.low),
        high=_finite(found.high),
        level=level,
        n=found.n,
        needed=found.needed,
        reason=FELL_ON_FAILURE if on_failure else found.reason,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _to_mean(prepared: PreparedRun, indices: Ints, metric: str, parts: Sequence[str]) -> Figure:
    columns, choice = prepared.columns, prepared.plan.comparison
    values = columns.metric(metric)
    valued = indices[~np.isnan(values[indices])]
    found = mean_interval(
        values[valued],
        columns.prompts[valued],
        resamples=choice.resamples,
        seed=derive_seed(prepared.plan.seed, metric, *parts),
        level=choice.confidence,
        minimum_clusters=choice.minimum_prompts,
    )
    return as_figure(found)


def _to_on_time(prepared: PreparedRun, indices: Ints) -> Figure:
    level = prepared.plan.comparison.confidence
    states = prepared.columns.on_time(prepared.plan.objectives)[indices]
    judged = int((~np.isnan(states)).sum())
    on_time = int((states == 1).sum())
    return share_figure(on_time, judged, level, "no request could be judged against the objectives")


def _count_fallbacks(counts: Floats) -> int | None:
    known = counts[~np.isnan(counts)]
    return int(known.sum()) if len(known) else None


def compute_deliveries(prepared: PreparedRun) -> tuple[Delivery, ...]:
    """Return the delivery of each arm at each load, segments pooled."""
    mechanisms = {contract.arm: contract.algorithm for contract in prepared.run.manifest.contracts}
    return tuple(
        _to_delivery(arm, load, mechanisms.get(arm), list_delivered(prepared.of_arm(arm, load)))
        for arm in prepared.arms
        for load in prepared.loads
    )


def list_delivered(seen: Iterable[Observation]) -> list[RequestRecord]:
    """Return the records of answers whose arrival times can be trusted."""
    return [one.record for one in seen if one.is_ok and one.timed and one.in_order]


def _to_delivery(arm: str, load: str, mechanism: str | None, records: Iterable[RequestRecord]) -> Delivery:
    summary = summarise_delivery(records)
    named = {"arm": arm, "load": load, "mechanism": mechanism}
    hint = {"hint": find_hint(summary), "hint_text": describe_hint(summary)}
    return msgspec.convert(msgspec.structs.asdict(summary) | named | hint, Delivery)


def summarise_periods(prepared: PreparedRun) -> tuple[PeriodSummary, ...]:
    """Return one row per load and arm, those without a single period included."""
    return tuple(_summarise(prepared, arm, load) for load in prepared.loads for arm in prepared.arms)


def _summarise(prepared: PreparedRun, arm: str, load: str) -> PeriodSummary:
    periods = [period for period in prepared.periods.values() if (period.arm, period.load) == (arm, load)]
    lags = [period.lag_max_ns for period in periods if period.lag_max_ns is not None]
    return PeriodSummary(
        arm=arm,
        load=load,
        periods=len(periods),
        completed=sum(period.completed for period in periods),
        lagged=sum(period.lagged for period in periods),
        lag_unknown=len(periods) - len(lags),
        lag_max_ns=max(lags, default=None),
    )


# The dimensions that reviewers ask for; a run may lack any of them.
DIMENSIONS = ("task", "language", "prompt_length", "answer_length", "sampling")


def compute_label_acceptance(prepared: PreparedRun) -> tuple[LabelAcceptance, ...]:
    """Return the candidate's acceptance by load, dimension and label; no row where no counter tells."""
    columns, items = prepared.columns, {item.id: item for item in prepared.run.items}
    found = []
    for load in prepared.loads:
        indices = prepared.indices_of("candidate", load)
        asked = np.unique(columns.items[indices]).tolist()
        for dimension in DIMENSIONS:
            labels = [items[name].segments.get(dimension) for name in columns.item_ids]
            for label in sorted({label for item in asked if (label := labels[item]) is not None}):
                has_label = np.array([one == label for one in labels], dtype=np.bool_)
                own = indices[has_label[columns.items[indices]]]
                row = _summarise_label(columns, own, (load, dimension, label))
                found += [] if row is None else [row]
    return tuple(found)


def _summarise_label(columns: Columns, indices: Ints, key: tuple[str, str, str]) -> LabelAcceptance | None:
    sound = indices[columns.is_sound[indices] & columns.discloses[indices]]
    pooled = pool_acceptance(columns.records[index] for index in sound.tolist())
    if pooled is None:
        return None
    return LabelAcceptance(
        arm="candidate",
        load=key[0],
        dimension=key[1],
        label=key[2],
        prompts=len(np.unique(columns.prompts[indices[columns.is_ok[indices]]])),
        num_draft_tokens=pooled.num_draft_tokens,
        num_accepted_draft_tokens=pooled.num_accepted_draft_tokens,
        draft_acceptance_rate=pooled.draft_acceptance_rate,
        mean_acceptance_length=pooled.mean_acceptance_length,
    )


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
    return {value.estimator: value for value in other_estimators(records)}


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
