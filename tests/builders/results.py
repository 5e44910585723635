"""A builder of made-up but consistent results, in any size, for tests of the report and of the command line.

Deterministic: the figures come from a fixed formula of segment, load and arm, never from a random source.
"""

from typing import NamedTuple

from tests.builders.equivalence import build_rows
from tests.builders.manifest import DIGEST

from draftproof.judge.metrics.acceptance import AcceptanceSummary, ProgressSummary
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.inform import ArmTotal, Compared, Headline, HeadlineRow
from draftproof.judge.results.run import (
    Agreement,
    ArmCell,
    Cell,
    CellStatus,
    CheckSummary,
    Diagnosis,
    Difference,
    Effect,
    EnvelopeEntry,
    EstimatorRow,
    Figure,
    Percentiles,
    Reason,
    Results,
    Verdict,
)

ARMS = ("baseline", "candidate", "alternative", "baseline_null")
POOLED = -1
_FAMILIES = ("rewriting", "grounded_answer", "code_edit", "open_chat", "translation")
_LEVELS = (("alone", 1), ("full", 8))
_MS = 1e6
_NO_REQUESTS = "no request of this arm succeeded"
_METRIC_WEIGHTS = {"tpot_ns": 1.0, "ttft_from_schedule_ns": 0.12, "e2e_from_schedule_ns": 0.8}
_THRESHOLDS: dict[str, float | int] = {
    "minimum_gain": 0.05,
    "harm_margin": 0.05,
    "ttft_margin": 0.25,
    "e2e_margin": 0.10,
    "failure_margin": 0.02,
    "quality_margin": 0.10,
    "output_length_margin": 0.10,
    "dominated_margin": 0.05,
    "critical_errors": 0,
}
_ESTIMATORS = (
    ("chunk_gap", "vllm bench serve ITL", 1.48, 1.42, 1.31),
    ("gap_spread_over_tokens", "SGLang bench_serving ITL", 0.54, 0.47, 1.29),
    ("zeros_and_full_gap", "inference-perf ITL", 0.54, None, 1.31),
    ("latency_over_all_tokens", "GuideLLM TPOT", 0.63, 0.61, 0.78),
    ("tpot_ns", "draftproof", 0.55, 0.53, 0.70),
)
_REASONS: dict[CellStatus, str] = {
    "gain": "the whole interval lies beyond the minimum gain, and every guardrail holds.",
    "harm": "the whole interval lies beyond the harm margin.",
    "neutral": "the interval is inside the margins.",
    "inconclusive": "the interval reaches from one verdict into another.",
    "invalid": "no request of the candidate succeeded.",
}


class Place(NamedTuple):
    """One segment (or `POOLED`) at one load, in a run of so many requests per segment."""

    segment_index: int
    load_index: int
    segment: str
    load: str
    concurrency: int
    requests: int
    failing: bool


class Shape(NamedTuple):
    """The truth of one arm in one place: ratio to the baseline, half width, tokens per step, baseline ms."""

    ratio: float
    half_width: float
    tokens_per_step: float
    base_ms: float


def build_results(
    *, segments: int = 5, loads: int = 2, requests: int = 48, failing: bool = False, name: str = "demo"
) -> Results:
    """Results with so many segments and loads; `failing` lets every request of every arm fail."""
    names = tuple(_segment_name(index) for index in range(segments))
    levels: tuple[tuple[str, int], ...] = tuple(
        _LEVELS[i] if i < 2 else (f"level-{i}", 2 ** (i % 12 + 1)) for i in range(loads)
    )
    own = [
        Place(s, i, names[s], *levels[i], requests, failing) for s in range(segments) for i in range(loads)
    ]
    pooled = [Place(POOLED, i, "all", *levels[i], requests * segments, failing) for i in range(loads)]
    cells = tuple(_cell(place) for place in own)
    agreements = tuple(_agreement(place, arm) for place in pooled for arm in ("candidate", "baseline_null"))
    return Results(
        schema_version=1,
        draftproof_version="0.1.0",
        run_name=name,
        question="Does n-gram lookup pay for our rewriting and grounded-answer traffic?",
        evidence="synthetic",
        plan_sha256=DIGEST,
        thresholds_sha256=DIGEST[::-1],
        workload_sha256=DIGEST[8:] + DIGEST[:8],
        thresholds=dict(_THRESHOLDS),
        confidence=0.95,
        metric="tpot_ns",
        statistic="mean",
        segments=names,
        loads=levels,
        arms=ARMS,
        arm_cells=tuple(_arm_cell(place, arm) for place in (*pooled, *own) for arm in ARMS),
        effects=tuple(
            _effect(place, metric, arm)
            for metric in _METRIC_WEIGHTS
            for place in (*pooled, *own)
            for arm in ARMS[1:]
        ),
        differences=tuple(
            _difference(place, quantity, arm)
            for place in pooled
            for quantity in ("failed_share", "passed_share")
            for arm in ("candidate", "alternative")
        ),
        agreements=agreements,
        equivalence=build_rows(agreements),
        estimators=tuple(
            _estimator(place, row) for place in pooled if not failing for row in range(len(_ESTIMATORS))
        ),
        cells=cells,
        diagnosis=tuple(_diagnosis(place) for place in pooled),
        verdict=_verdict(cells, failing=failing),
        not_measured=("Open-loop arrivals: only closed loops were run.", "Power and energy per token."),
        warnings=("Load full: the client's event loop lagged by up to 31 ms (limit 50 ms).",),
        headline=_headline(pooled, loads=loads, requests=requests),
        counts={
            "requests": requests * segments * loads * len(ARMS),
            "failures": requests * segments * loads * len(ARMS) if failing else 1,
            "prompts": requests // 2 * segments,
        },
    )


def _headline(pooled: list[Place], *, loads: int, requests: int) -> Headline:
    count = pooled[0].requests * loads if pooled else 0
    return Headline(
        compared=Compared(
            model="smollm2-135m-instruct",
            engine="reference 0.1.0",
            methods={"baseline": "speculation off", "candidate": "ngram, 5 draft tokens"},
            prompts=requests // 2,
            requests=count * len(ARMS),
            blocks=4 * loads,
            measured_s=600.0,
        ),
        rows=tuple(row for place in pooled for row in _headline_rows(place)),
        exploratory=(),
        totals=tuple(_arm_total(pooled, arm, count) for arm in ARMS),
    )


def _headline_rows(place: Place) -> list[HeadlineRow]:
    baseline = _shape(place, "baseline").base_ms * _MS
    rows = []
    for metric, weight in _METRIC_WEIGHTS.items():
        change, null, other = (
            _measured(place, 1 + (_shape(place, arm).ratio - 1) * weight, _shape(place, arm).half_width)
            for arm in ("candidate", "baseline_null", "alternative")
        )
        off = None if place.failing else baseline
        rows.append(
            HeadlineRow(
                quantity=metric,
                load=place.load,
                baseline=off,
                candidate=None if off is None else off * (change.value or 1),
                change=change,
                null_change=null,
                alternative_change=other,
            )
        )
    return rows


def _arm_total(pooled: list[Place], arm: str, count: int) -> ArmTotal:
    cells = [_arm_cell(place, arm) for place in pooled]
    answers = [_agreement(place, arm) for place in pooled] if arm != "baseline" else []
    return ArmTotal(
        arm=arm,
        requests=count,
        failed=sum(cell.attempted - cell.outcomes.get("ok", 0) for cell in cells),
        checks_judged=sum(cell.checks.judged for cell in cells),
        checks_passed=sum(cell.checks.passed for cell in cells),
        critical_failed=sum(cell.checks.critical_failed for cell in cells),
        answers_compared=sum(one.compared for one in answers),
        answers_changed=sum(one.compared - one.identical for one in answers),
    )


def _segment_name(index: int) -> str:
    variant, family = divmod(index, len(_FAMILIES))
    return f"task={_FAMILIES[family]}" + (f"_{variant}" if variant else "")


def _shape(place: Place, arm: str) -> Shape:
    index, load = max(place.segment_index, 0), place.load_index
    base_ms = 22.0 + 17.0 * load + 0.9 * index
    if arm == "candidate":
        hardness = index % 5
        ratio = min(0.56 + 0.13 * hardness + 0.24 * load, 1.6)
        return Shape(ratio, 0.015 + 0.008 * (index % 4), max(2.9 - 0.45 * hardness, 1.05), base_ms)
    if arm == "alternative":
        return Shape(max(0.98 - 0.05 * load, 0.6), 0.03, 1.0, base_ms)
    drift = 0.004 * (index % 3 - 1) if arm == "baseline_null" else 0.0
    return Shape(1.0 + drift, 0.025, 1.0, base_ms)


def _figure(value: float, half_width: float, n: int = 48) -> Figure:
    return Figure(value=value, low=value - half_width, high=value + half_width, level=0.95, n=n)


def _absent(reason: str, needed: int | None = None) -> Figure:
    return Figure(value=None, reason=reason, needed=needed)


def _measured(place: Place, value: float, half_width: float) -> Figure:
    return _absent(_NO_REQUESTS, 6) if place.failing else _figure(value, half_width, place.requests)


def _status(place: Place) -> CellStatus:
    shape = _shape(place, "candidate")
    low, high = shape.ratio - shape.half_width * 1.3, shape.ratio + shape.half_width * 1.3
    if place.failing:
        return "invalid"
    if high < 0.95:
        return "gain"
    if low > 1.05:
        return "harm"
    return "neutral" if low > 0.95 and high < 1.05 else "inconclusive"


def _cell(place: Place) -> Cell:
    shape, status = _shape(place, "candidate"), _status(place)
    evidence = Reference("effects", "candidate", "baseline", name="tpot_ns", at=(place.segment, place.load))
    return Cell(
        segment=place.segment,
        load=place.load,
        concurrency=place.concurrency,
        status=status,
        effect=_measured(place, shape.ratio, shape.half_width * 1.3),
        alternative_effect=None if place.failing else _figure(_shape(place, "alternative").ratio, 0.04),
        reasons=(Reason(code=status, text=_REASONS[status], evidence=evidence),),
    )


def _effect(place: Place, metric: str, arm: str) -> Effect:
    shape = _shape(place, arm)
    ratio = 1 + (shape.ratio - 1) * _METRIC_WEIGHTS[metric]
    return Effect(
        metric=metric,
        statistic="mean",
        arm=arm,
        versus="baseline",
        segment=place.segment,
        load=place.load,
        ratio=_measured(place, ratio, shape.half_width),
        simultaneous=_measured(place, ratio, shape.half_width * 1.3),
        pairs=0 if place.failing else place.requests,
        prompts=0 if place.failing else place.requests // 2,
    )


def _percentiles(place: Place, middle_ms: float) -> Percentiles:
    n, middle = place.requests, middle_ms * _MS
    if place.failing:
        infinite, absent = _absent("falls on a failed request: infinite"), _absent(_NO_REQUESTS, 6)
        return Percentiles(
            **dict.fromkeys(("p50", "p95", "p99"), infinite),
            **dict.fromkeys(("ok_p50", "ok_p95", "ok_p99", "mean_ok"), absent),
        )
    p50, p95 = _figure(middle, middle * 0.04, n), _figure(middle * 1.5, middle * 0.12, n)
    p99 = _figure(middle * 1.9, middle * 0.3, n)
    if n < 100:
        p99 = _absent(f"{n} independent requests of at least 100 for this percentile", 100 - n)
    return Percentiles(
        **dict(zip(("p50", "p95", "p99"), (p50, p95, p99), strict=True)),
        **dict(zip(("ok_p50", "ok_p95", "ok_p99"), (p50, p95, p99), strict=True)),
        mean_ok=_figure(middle * 1.06, middle * 0.03, n),
    )


def _arm_cell(place: Place, arm: str) -> ArmCell:
    shape, count, failing = _shape(place, arm), place.requests, place.failing
    tpot_ms, first_ms = shape.base_ms * shape.ratio, 95.0 + 60 * place.load_index
    is_cut = arm == "candidate" and place.segment_index in {POOLED, 0} and place.load_index == 0
    failed = count if failing else int(is_cut)
    drafted = arm == "candidate" and not failing
    on_time = 0.0 if failing else 0.979
    return ArmCell(
        arm=arm,
        segment=place.segment,
        load=place.load,
        attempted=count,
        prompts=count // 2,
        outcomes={"ok": count - failed, "timeout": failed} if failed else {"ok": count},
        ttft=_percentiles(place, first_ms),
        tpot=_percentiles(place, tpot_ms),
        e2e=_percentiles(place, first_ms + 58 * tpot_ms),
        output_tokens_mean=_measured(place, 58.4, 2.1),
        icl_p50_ns=None if failing else tpot_ms * shape.tokens_per_step * _MS,
        icl_p99_ns=None if failing else 2.3 * tpot_ms * shape.tokens_per_step * _MS,
        stall_count=0 if failing else place.load_index * 2,
        longest_stall_ns=None if failing or not place.load_index else 231_000_000,
        on_time_share=Figure(value=on_time, low=max(on_time - 0.03, 0.0), high=on_time + 0.015, n=count),
        queue_share=None,
        prefill_share=None if failing else 0.08,
        decode_share=None if failing else 0.9,
        acceptance=_acceptance(shape, count) if drafted else None,
        progress=None if failing else _progress(shape, tpot_ms, count, drafted=drafted),
        checks=CheckSummary(
            judged=0 if failing else count - 2,
            passed=0 if failing else round((count - 2) * 0.8),
            critical_failed=int(drafted and place.segment_index in {POOLED, 3}),
            unjudged=count if failing else 2,
        ),
        fallbacks=0 if arm == "candidate" else None,
    )


def _acceptance(shape: Shape, count: int) -> AcceptanceSummary:
    steps = count * 9
    share = min(0.25 + 0.2 * shape.tokens_per_step, 0.95)
    accepted = round(steps * (shape.tokens_per_step + 0.35 - 1))
    return AcceptanceSummary(
        num_spec_steps=steps,
        num_draft_tokens=steps * 5,
        num_accepted_draft_tokens=accepted,
        decode_steps=count * 21,
        draft_acceptance_rate=accepted / (steps * 5),
        mean_acceptance_length=1 + accepted / steps,
        tokens_per_decode_step=shape.tokens_per_step,
        acceptance_histogram=(steps - accepted // 5, 0, 0, 0, 0, accepted // 5),
        position_acceptance=(*(round(share - 0.07 * i, 3) for i in range(5)), None),
    )


def _progress(shape: Shape, tpot_ms: float, count: int, *, drafted: bool) -> ProgressSummary:
    total = tpot_ms * 0.96
    draft = 0.03 * total if drafted else 0.0
    return ProgressSummary(
        time_per_committed_token_ns=total * _MS,
        draft_ns=draft * _MS if drafted else None,
        verify_ns=(total * 0.9 - draft) * _MS,
        sample_ns=total * 0.06 * _MS,
        schedule_ns=total * 0.04 * _MS,
        committed_tokens=count * 58,
        rounds=round(count * 58 / shape.tokens_per_step),
    )


def _difference(place: Place, quantity: str, arm: str) -> Difference:
    return Difference(
        quantity=quantity,
        arm=arm,
        versus="baseline",
        segment=place.segment,
        load=place.load,
        difference=_measured(place, 0.0 if quantity == "failed_share" else -0.021, 0.018),
    )


def _agreement(place: Place, arm: str) -> Agreement:
    compared = 0 if place.failing else place.requests
    differing = 0 if place.failing else (2 if arm == "candidate" else 1) * place.load_index
    share = None if place.failing else 1 - differing / compared
    return Agreement(
        arm=arm,
        versus="baseline",
        load=place.load,
        compared=compared,
        identical=compared - differing,
        identical_share=_absent(_NO_REQUESTS, 6)
        if share is None
        else Figure(value=share, low=share - 0.03, high=min(share + 0.01, 1.0), level=0.95, n=compared),
        first_divergence_tokens=tuple(17 + 9 * i for i in range(differing)),
        statement=None if place.failing else "It differs no more often than two equal arms do.",
    )


def _estimator(place: Place, row: int) -> EstimatorRow:
    name, used_by, mean, p50, p99 = _ESTIMATORS[row]
    shift = 1 + 0.4 * min(place.load_index, 2)
    return EstimatorRow(
        load=place.load,
        estimator=name,
        used_by=used_by,
        baseline_mean_ns=23.4 * _MS * shift,
        candidate_mean_ns=23.4 * _MS * mean * shift * shift,
        ratio_mean=mean * shift,
        ratio_p50=None if p50 is None else p50 * shift,
        ratio_p99=p99 * shift,
    )


def _diagnosis(place: Place) -> Diagnosis:
    speedup, failing = (1.72, 1.22)[min(place.load_index, 1)], place.failing
    predicted = 1 / (0.1 + 0.9 / speedup)
    return Diagnosis(
        load=place.load,
        bound="unknown" if failing else "decode-bound",
        queue_share=None if failing else 0.004,
        prefill_share=None if failing else 0.08,
        decode_share=None if failing else 0.90,
        other_share=None if failing else 0.016,
        decode_speedup=None if failing else speedup,
        ceiling_gain=None if failing else 10.0,
        predicted_gain=None if failing else predicted,
        measured_gain=None if failing else predicted - 0.04,
        text="No request of the baseline succeeded, so its time cannot be split."
        if failing
        else "Decoding takes nine tenths of the time, so a faster decode shows end to end.",
    )


def _verdict(cells: tuple[Cell, ...], *, failing: bool) -> Verdict:
    gains = [cell for cell in cells if cell.status == "gain"]
    sentence = f"Adopt inside the envelope: {len(gains)} of {len(cells)} cells gain, the others do not."
    return Verdict(
        decision="invalid" if failing else "adopt_limited" if gains else "defer",
        sentence="Nothing may be concluded: every request failed." if failing else sentence,
        evidence_level="none" if failing else "pilot hypothesis",
        reasons=(
            Reason(
                code="cells",
                text="no request of any arm succeeded."
                if failing
                else f"{len(gains)} cells gain beyond the margin.",
                evidence=Reference("outcomes" if failing else "cells"),
            ),
        ),
        envelope=tuple(
            EnvelopeEntry(segment=segment, max_concurrency=most, max_context_tokens=1024)
            for segment, most in {cell.segment: cell.concurrency for cell in gains}.items()
        ),
    )
