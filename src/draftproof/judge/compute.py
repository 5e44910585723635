"""Results of a run: the one entry to everything a report shows.

Pure and deterministic: the same records in any order give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

import draftproof
from draftproof.core.rounding import round_figures
from draftproof.judge.decide.behaviour import Behaviour, describe_behaviour
from draftproof.judge.decide.cells import is_null_at_odds
from draftproof.judge.decide.decision import DecidedRun, RunEvidence, decide_run
from draftproof.judge.decide.effects import EffectIndex, index_effects, null_difference_at
from draftproof.judge.decide.envelope import explain_contexts, list_unresolved
from draftproof.judge.decide.equivalence.assess import warn_about_equivalence
from draftproof.judge.decide.equivalence.greedy import compute_agreements
from draftproof.judge.decide.faults import summarise_incomplete
from draftproof.judge.decide.near_copies import warn_about_near_copies
from draftproof.judge.decide.order import compute_order, warn_about_order
from draftproof.judge.decide.preceding import qualify_by_processes, warn_about_preceding
from draftproof.judge.decide.spreads import add_needed, ask_nothing, list_largest
from draftproof.judge.decide.tails import list_open_tails, qualify_sentence, tail_share
from draftproof.judge.decide.wording import (
    EVIDENCE_WORDS,
    LATENCY_ONLY,
    list_reasons,
    render_sentence,
    weakest_evidence,
)
from draftproof.judge.inform.arm_cells import (
    compute_arm_cells,
    compute_deliveries,
    compute_estimator_rows,
    compute_label_acceptance,
    summarise_periods,
)
from draftproof.judge.inform.clients import summarise_clients, summarise_phases, warn_about_warmups
from draftproof.judge.inform.diagnosis.remedies import compute_diagnoses
from draftproof.judge.inform.diagnosis.steps import (
    ArmCellIndex,
    MarginIndex,
    collect_rounds,
    compute_break_evens,
    explain_step_cost,
    index_arm_cells,
    index_margins,
)
from draftproof.judge.inform.diagnosis.time_parts import diagnose
from draftproof.judge.inform.economics import compute_economics
from draftproof.judge.inform.filling import warn_about_filling, warn_about_known_prompts, warn_about_overload
from draftproof.judge.inform.headline import compute_headline
from draftproof.judge.inform.questions import answer_questions
from draftproof.judge.inform.service_agreement import compare_sources, list_disagreements
from draftproof.judge.inform.unmeasured import (
    list_disturbances,
    list_unmeasured,
    list_unreported,
    without_searched,
)
from draftproof.judge.knee.compute import compute_knee
from draftproof.judge.observe.attempts import explain_busy_host
from draftproof.judge.observe.observed import explain_ending, warn_about_notices
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun, RunData
from draftproof.judge.observe.services import (
    draw_lines,
    list_restarts,
    list_silent,
    list_starts,
    summarise_services,
)
from draftproof.judge.observe.windows import measure_windows
from draftproof.judge.results.decide import OrderSummary, describe
from draftproof.judge.results.inform import ServiceAgreement, ServiceUse
from draftproof.judge.results.knee import KneeSearch
from draftproof.judge.results.run import RESULTS_SCHEMA_VERSION, ArmCell, Cell, Reason, Results, Verdict


def compute_results(run: RunData) -> Results:
    """Return everything a report shows, computed from a run's records alone, to twelve significant digits.

    Seeds come from the plan; nothing depends on the order of records, on a clock or on the machine.
    """
    decided = decide_run(run)
    prepared = decided.evidence.prepared
    results = round_figures(_gather(decided, run))
    questions = answer_questions(results, prepared.plan, prepared.run.manifest)
    return msgspec.structs.replace(results, questions=questions)


def _gather(decided: DecidedRun, run: RunData) -> Results:
    """Compute what is shown beside the decision and put all of it together."""
    evidence = decided.evidence
    prepared, pairs, faults, readings = evidence.prepared, evidence.pairs, evidence.faults, evidence.readings
    by_effect, arm_cells = index_effects(evidence.effects), compute_arm_cells(prepared)
    nulls = {load: null_difference_at(by_effect, "tpot_ns", load) for load in prepared.loads}
    rounds = collect_rounds(prepared)
    break_evens = compute_break_evens(prepared, rounds)
    margins = index_margins(break_evens, nulls)
    cells = _explain_cells(decided.cells, index_arm_cells(arm_cells), margins, faults.paused)
    cells = add_needed(cells, evidence.samples, is_complete=not faults.incomplete)
    invalid = {cell.load for cell in cells if cell.status == "invalid"}
    effects, services = ask_nothing(evidence.effects, invalid), summarise_services(prepared, readings)
    differences, windows = ask_nothing(evidence.differences, invalid), measure_windows(prepared)
    economics = compute_economics(prepared, services, differences, windows, faults)
    diagnoses = compute_diagnoses(
        prepared,
        faults=faults,
        effects=index_effects(effects),
        arm_cells=arm_cells,
        services=services,
        starts=list_starts(prepared),
        rounds=rounds,
        break_evens=break_evens,
    )
    return _assemble(
        decided,
        run,
        order=compute_order(prepared, pairs, by_effect),
        behaviour=describe_behaviour(prepared),
        services=services,
        agreements=compare_sources(prepared, readings),
        verdict=_word_verdict(decided, cells, arm_cells, margins),
        cells=ask_nothing(cells, invalid),
        rows={
            "arm_cells": arm_cells,
            "effects": effects,
            "differences": differences,
            "tail_effects": ask_nothing(evidence.tails.effects, invalid),
            "context_bands": ask_nothing(evidence.bands, invalid),
            "diagnosis": diagnose(prepared, diagnoses.parts, by_effect, faults),
            "diagnoses": diagnoses,
            "economics": economics,
            "clients": summarise_clients(prepared, windows, economics.uses),
        },
    )


def _assemble(
    decided: DecidedRun,
    run: RunData,
    *,
    order: OrderSummary,
    behaviour: Behaviour,
    services: tuple[ServiceUse, ...],
    agreements: tuple[ServiceAgreement, ...],
    verdict: Verdict,
    cells: tuple[Cell, ...],
    rows: Mapping[str, Any],
) -> Results:
    evidence = decided.evidence
    prepared, pairs = evidence.prepared, evidence.pairs
    plan, manifest, knee = prepared.plan, prepared.run.manifest, compute_knee(run)
    not_measured = _list_not_measured(evidence, cells, behaviour, services, knee)
    answers = compute_agreements(prepared, pairs)
    by_effect, arm_cells = index_effects(rows["effects"]), rows["arm_cells"]
    headline = compute_headline(
        prepared, pairs, by_effect, cells=cells, arm_cells=arm_cells, agreements=answers
    )
    return Results(
        schema_version=RESULTS_SCHEMA_VERSION,
        draftproof_version=draftproof.__version__,
        run_name=manifest.run_name,
        question=plan.question,
        evidence=weakest_evidence(plan.evidence, manifest.evidence),
        plan_sha256=manifest.plan_sha256,
        thresholds_sha256=manifest.thresholds_sha256,
        workload_sha256=manifest.workload_sha256,
        thresholds=plan.thresholds.model_dump() | {"tail_quantile": tail_share(plan.thresholds)},
        confidence=plan.comparison.confidence,
        metric=plan.comparison.metric,
        statistic=plan.comparison.statistic,
        segments=prepared.segments,
        loads=tuple((load, prepared.sizes[load].concurrency) for load in prepared.loads),
        arms=prepared.arms,
        cells=cells,
        verdict=verdict,
        agreements=answers,
        estimators=compute_estimator_rows(prepared),
        equivalence=evidence.equivalence,
        order=order,
        behaviour=behaviour.probes,
        check_kinds=behaviour.check_kinds,
        judges=behaviour.judges,
        conversations=behaviour.conversations,
        services=services,
        service_starts=list_starts(prepared),
        service_agreements=agreements,
        service_lines=draw_lines(prepared, evidence.readings),
        not_measured=not_measured,
        warnings=tuple(_warn(evidence, order, behaviour, agreements)),
        counts=_count(evidence),
        deliveries=compute_deliveries(prepared),
        periods=summarise_periods(prepared),
        phases=summarise_phases(prepared),
        label_acceptance=compute_label_acceptance(prepared),
        load_sizes=prepared.sizes,
        knee=knee,
        analyses=prepared.run.analyses,
        earlier=manifest.earlier,
        headline=headline,
        **rows,
    )


def _list_not_measured(
    evidence: RunEvidence,
    cells: tuple[Cell, ...],
    behaviour: Behaviour,
    services: tuple[ServiceUse, ...],
    knee: KneeSearch | None,
) -> tuple[str, ...]:
    prepared = evidence.prepared
    found = (
        *list_unmeasured(prepared),
        *list_unresolved(prepared, evidence.bands),
        *list_open_tails(prepared, evidence.tails, _valid_loads(cells)),
        *behaviour.not_measured,
        *list_unreported(services),
    )
    if knee is not None and knee.points:  # the search answers what the run's own loads leave open
        return without_searched(found, is_open=knee.axis == "rps")
    return found


def _valid_loads(cells: Sequence[Cell]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.load for one in cells if one.status != "invalid"))


def _explain_cells(
    cells: Sequence[Cell], arm_cells: ArmCellIndex, margins: MarginIndex, paused: Mapping[str, Reason]
) -> tuple[Cell, ...]:
    """Add to every valid cell what a step commits and costs there, and whether drafting was paused."""
    explained = []
    for cell in cells:
        why = (paused.get(cell.load), explain_step_cost(arm_cells, margins, cell.segment, cell.load))
        known = () if cell.status == "invalid" else tuple(one for one in why if one is not None)
        explained.append(msgspec.structs.replace(cell, reasons=(*cell.reasons, *known)))
    return tuple(explained)


def _word_verdict(
    decided: DecidedRun, cells: tuple[Cell, ...], arm_cells: Sequence[ArmCell], margins: MarginIndex
) -> Verdict:
    run, decision, envelope = decided.evidence, decided.decision, decided.envelope
    prepared, faults = run.prepared, run.faults
    index = index_arm_cells(arm_cells)
    pooled = [
        explain_step_cost(index, margins, ALL_SEGMENTS, load)
        for load in prepared.loads
        if not faults.is_invalid(load)
    ]
    is_open = decision == "inconclusive" and not faults.incomplete
    obstacles = list_largest(cells, run.samples) if is_open else []
    why = [
        *(
            Reason(code="obstacle", text=one.text, evidence=one.evidence, remedy=one.remedy)
            for one in obstacles
        ),
        *explain_contexts(envelope, run.bands),
        *(reason for reason in pooled if reason is not None),
    ]
    notices, missing = prepared.run.notices, summarise_incomplete(faults.incomplete, len(cells))
    if missing:
        missing += explain_busy_host(prepared.attempts, len(prepared.periods), notices)
    reasons: tuple[Reason, ...] = (
        *(explain_ending(notices) if missing else ()),
        *list_reasons(decision, cells, missing, why),
    )
    evidence = weakest_evidence(prepared.plan.evidence, prepared.run.manifest.evidence)
    unseen = sum(one.status != "invalid" and not run.shows_no_gain(one) for one in cells)
    sentence = render_sentence(
        decision,
        evidence,
        cells=cells,
        envelope=envelope,
        metric=prepared.plan.comparison.metric,
        reasons=reasons,
        missing=obstacles[0].text if obstacles else None,
        unseen=unseen if decision == "defer" else 0,
    )
    sentence = qualify_by_processes(sentence, decision, prepared)
    sentence = qualify_sentence(sentence, decision, cells, prepared.plan.thresholds)
    level = EVIDENCE_WORDS[evidence]
    if prepared.plan.comparison.quality == "latency_only":
        sentence, level = f"{LATENCY_ONLY}, quality was not compared. {sentence}", f"{LATENCY_ONLY}, {level}"
    return Verdict(
        decision=decision,
        sentence=sentence,
        evidence_level=level,
        reasons=reasons,
        envelope=envelope,
    )


def _warn(
    run: RunEvidence, order: OrderSummary, behaviour: Behaviour, agreements: Sequence[ServiceAgreement]
) -> Iterator[str]:
    """Yield every warning: of the run, its faults, its order, its outputs, its behaviour and its services."""
    prepared, faults, choice = run.prepared, run.faults, run.prepared.plan.comparison
    manifest, thresholds = prepared.run.manifest, prepared.plan.thresholds
    yield from (*manifest.findings, *prepared.warnings, *warn_about_notices(prepared.run.notices))
    yield from (*list_disturbances(prepared.run.blocks), *faults.warnings)
    if prepared.plan.evidence != manifest.evidence:
        yield (
            f"The plan calls its traffic {prepared.plan.evidence}, the run's record says "
            f"{manifest.evidence}; the weaker one counts."
        )
    cells = len(prepared.segments) * len(prepared.loads)
    yield from (reason.text for reason in summarise_incomplete(faults.incomplete, cells))
    yield from (reason.text for reasons in faults.by_load.values() for reason in reasons)
    yield from (reason.text for reason in faults.paused.values())
    yield from _warn_about_null(prepared, index_effects(run.effects))
    yield from (*warn_about_overload(prepared), *warn_about_filling(prepared))
    yield from warn_about_known_prompts(prepared)
    yield from warn_about_near_copies(prepared, run.pairs[DECISIVE])
    yield from warn_about_warmups(one for one in prepared.run.warmups if one.load in prepared.loads)
    yield from warn_about_order(order, thresholds, choice.confidence, choice.metric)
    yield from (*warn_about_preceding(run.doubts), *warn_about_equivalence(run.equivalence))
    yield from behaviour.warnings
    yield from (*list_silent(prepared, run.readings), *list_restarts(prepared, run.readings))
    yield from list_disagreements(agreements)


def _warn_about_null(prepared: PreparedRun, effects: EffectIndex) -> Iterator[str]:
    plan = prepared.plan
    for (name, arm, _, segment, load), effect in effects.items():
        deciding = name == plan.comparison.metric and arm == "baseline_null" and segment != ALL_SEGMENTS
        if deciding and is_null_at_odds(effect.simultaneous, plan.thresholds):
            yield (
                f"This machine shows a difference between equal services: baseline_null / baseline is "
                f"{describe(effect.simultaneous)} in {segment} at load {load}."
            )


def _count(run: RunEvidence) -> dict[str, int]:
    prepared, pairs = run.prepared, run.pairs[DECISIVE]
    return prepared.counts | {
        "failures": int((~prepared.columns.is_ok).sum()),
        "prompts": len(prepared.columns.prompt_names),
        "pairs": len(pairs),
        "pairs_ok": int(pairs.is_ok.sum()),
    }
