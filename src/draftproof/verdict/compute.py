"""Results of a run: the one entry to everything a report shows.

Pure and deterministic: the same records in any order give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

import draftproof
from draftproof.plan.schema import Thresholds
from draftproof.records import SCHEMA_VERSION
from draftproof.verdict.agreement import compute_agreements
from draftproof.verdict.arm_cells import compute_arm_cells
from draftproof.verdict.cells import decide_cell, describe, gather_evidence, is_null_at_odds
from draftproof.verdict.coverage import count_hidden, judge_coverage
from draftproof.verdict.decide import decide, list_envelope
from draftproof.verdict.delivery import compute_deliveries
from draftproof.verdict.diagnosis import diagnose
from draftproof.verdict.effects import EffectIndex, compute_effects, index_effects
from draftproof.verdict.estimators import compute_estimator_rows
from draftproof.verdict.faults import Faults, find_faults, summarise_incomplete
from draftproof.verdict.guardrails import (
    compute_differences,
    count_new_critical,
    index_differences,
    judge_guardrails,
)
from draftproof.verdict.pairs import PairTable, pair_observations
from draftproof.verdict.results import ArmCell, Cell, Difference, Effect, Reason, Results, Verdict
from draftproof.verdict.rounding import round_figures
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun, RunData, prepare_run
from draftproof.verdict.service_agreement import compare_sources, list_disagreements
from draftproof.verdict.services import (
    ServiceReadings,
    draw_lines,
    list_silent,
    list_starts,
    read_services,
    summarise_services,
)
from draftproof.verdict.step_cost import ArmCellIndex, explain_step_cost, index_arm_cells
from draftproof.verdict.unmeasured import list_unmeasured, list_untold
from draftproof.verdict.wording import EVIDENCE_WORDS, list_reasons, render_sentence, weakest_evidence


def compute_results(run: RunData) -> Results:
    """Return everything a report shows, computed from a run's records alone.

    Seeds come from the plan; nothing depends on the order of records, on a clock or on the machine.
    """
    prepared = prepare_run(run)
    pairs = pair_observations(prepared)
    readings = read_services(prepared)
    faults = find_faults(prepared, pairs, readings)
    arm_cells = compute_arm_cells(prepared)
    effects = compute_effects(prepared, pairs)
    differences = compute_differences(prepared, pairs)
    cells = decide_cells(
        prepared, pairs, effects=effects, differences=differences, faults=faults, arm_cells=arm_cells
    )
    results = _assemble(
        prepared,
        pairs,
        faults=faults,
        arm_cells=arm_cells,
        effects=effects,
        differences=differences,
        cells=cells,
    )
    return round_figures(_add_services(results, prepared, readings))


def _add_services(results: Results, prepared: PreparedRun, readings: ServiceReadings) -> Results:
    """Add what the services say of themselves, and the warnings that follow from it."""
    agreements = compare_sources(prepared, readings)
    services = summarise_services(prepared, readings)
    return msgspec.structs.replace(
        results,
        services=services,
        service_starts=list_starts(prepared),
        service_agreements=agreements,
        service_lines=draw_lines(prepared, readings),
        not_measured=(*results.not_measured, *list_untold(services)),
        warnings=(
            *results.warnings,
            *list_silent(prepared, readings),
            *list_disagreements(agreements),
        ),
    )


def decide_cells(
    prepared: PreparedRun,
    pairs: PairTable,
    *,
    effects: Sequence[Effect],
    differences: Sequence[Difference],
    faults: Faults,
    arm_cells: Sequence[ArmCell],
) -> tuple[Cell, ...]:
    """Return the status of every segment at every load."""
    by_effect, by_difference = index_effects(effects), index_differences(differences)
    decisive = pairs["candidate", "baseline"]
    critical, hidden = count_new_critical(decisive), count_hidden(decisive)
    thresholds, metric = prepared.plan.thresholds, prepared.plan.comparison.metric
    decided = []
    for load in prepared.loads:
        for segment in prepared.segments:
            cell = (segment, load)
            findings = (
                *judge_guardrails(cell, by_effect, by_difference, critical, thresholds),
                *judge_coverage(cell, hidden, thresholds.failure_margin),
            )
            evidence = gather_evidence(prepared, cell, by_effect, findings, faults)
            decided.append(decide_cell(evidence, thresholds, metric, prepared.concurrency(load)))
    return _explain_cells(decided, index_arm_cells(arm_cells), faults.paused)


def _explain_cells(
    cells: Sequence[Cell], arm_cells: ArmCellIndex, paused: Mapping[str, Reason]
) -> tuple[Cell, ...]:
    """Add to every valid cell what a step commits and costs there, and whether drafting was paused."""
    explained = []
    for cell in cells:
        why = (paused.get(cell.load), explain_step_cost(arm_cells, cell.segment, cell.load))
        known = tuple(one for one in why if one is not None)
        if cell.status == "invalid":
            explained.append(cell)
        else:
            explained.append(msgspec.structs.replace(cell, reasons=(*cell.reasons, *known)))
    return tuple(explained)


def _assemble(
    prepared: PreparedRun,
    pairs: PairTable,
    *,
    faults: Faults,
    arm_cells: tuple[ArmCell, ...],
    effects: tuple[Effect, ...],
    differences: tuple[Difference, ...],
    cells: tuple[Cell, ...],
) -> Results:
    plan, manifest = prepared.plan, prepared.run.manifest
    by_effect = index_effects(effects)
    return Results(
        schema_version=SCHEMA_VERSION,
        draftproof_version=draftproof.__version__,
        run_name=manifest.run_name,
        question=plan.question,
        evidence=weakest_evidence(plan.evidence, manifest.evidence),
        plan_sha256=manifest.plan_sha256,
        thresholds_sha256=manifest.thresholds_sha256,
        workload_sha256=manifest.workload_sha256,
        thresholds=plan.thresholds.model_dump(),
        confidence=plan.comparison.confidence,
        metric=plan.comparison.metric,
        statistic=plan.comparison.statistic,
        segments=prepared.segments,
        loads=tuple((load, prepared.concurrency(load)) for load in prepared.loads),
        arms=prepared.arms,
        arm_cells=arm_cells,
        effects=effects,
        differences=differences,
        agreements=compute_agreements(prepared, pairs),
        estimators=compute_estimator_rows(prepared),
        cells=cells,
        diagnosis=diagnose(prepared, by_effect, faults),
        verdict=_decide_verdict(prepared, cells, faults, arm_cells),
        not_measured=list_unmeasured(prepared),
        warnings=(
            *manifest.findings,
            *prepared.warnings,
            *faults.warnings,
            *_warn(prepared, by_effect, faults),
        ),
        counts=_count(prepared, pairs),
        deliveries=compute_deliveries(prepared),
    )


def _decide_verdict(
    prepared: PreparedRun, cells: tuple[Cell, ...], faults: Faults, arm_cells: Sequence[ArmCell]
) -> Verdict:
    decision = decide(cells, prepared.plan.thresholds, is_complete=not faults.incomplete)
    envelope = list_envelope(prepared, cells, decision)
    index = index_arm_cells(arm_cells)
    pooled = [explain_step_cost(index, ALL_SEGMENTS, load) for load in prepared.loads]
    why = [reason for reason in pooled if reason is not None]
    reasons: tuple[Reason, ...] = list_reasons(
        decision, cells, summarise_incomplete(faults.incomplete, len(cells)), why
    )
    evidence = weakest_evidence(prepared.plan.evidence, prepared.run.manifest.evidence)
    metric = prepared.plan.comparison.metric
    return Verdict(
        decision=decision,
        sentence=render_sentence(
            decision, evidence, cells=cells, envelope=envelope, metric=metric, reasons=reasons
        ),
        evidence_level=EVIDENCE_WORDS[evidence],
        reasons=reasons,
        envelope=envelope,
    )


def _warn(prepared: PreparedRun, effects: EffectIndex, faults: Faults) -> Iterator[str]:
    if prepared.plan.evidence != prepared.run.manifest.evidence:
        yield (
            f"The plan calls its traffic {prepared.plan.evidence}, the run's record says "
            f"{prepared.run.manifest.evidence}; the weaker one counts."
        )
    cells = len(prepared.segments) * len(prepared.loads)
    yield from (reason.text for reason in summarise_incomplete(faults.incomplete, cells))
    yield from (reason.text for reasons in faults.by_load.values() for reason in reasons)
    yield from (reason.text for reason in faults.paused.values())
    yield from _warn_about_null(effects, prepared.plan.thresholds, prepared.plan.comparison.metric)


def _warn_about_null(effects: EffectIndex, thresholds: Thresholds, metric: str) -> Iterator[str]:
    for (name, arm, _, segment, load), effect in effects.items():
        deciding = name == metric and arm == "baseline_null" and segment != ALL_SEGMENTS
        if deciding and is_null_at_odds(effect.simultaneous, thresholds):
            yield (
                f"This machine shows a difference between equal arms: baseline_null / baseline is "
                f"{describe(effect.simultaneous)} in {segment} at load {load}."
            )


def _count(prepared: PreparedRun, pairs: PairTable) -> dict[str, int]:
    return prepared.counts | {
        "failures": sum(not one.is_ok for one in prepared.observations),
        "prompts": len({one.record.item_id for one in prepared.observations}),
        "pairs": len(pairs["candidate", "baseline"]),
        "pairs_ok": sum(pair.is_ok for pair in pairs["candidate", "baseline"]),
    }
