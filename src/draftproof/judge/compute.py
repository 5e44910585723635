"""Results of a run: the one entry to everything a report shows.

Pure and deterministic: the same records in any order give the same bytes.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

import draftproof
from draftproof.core.records import SCHEMA_VERSION
from draftproof.core.rounding import round_figures
from draftproof.judge.decide.behaviour import add_behaviour
from draftproof.judge.decide.cells import describe, is_null_at_odds
from draftproof.judge.decide.decision import DecidedRun, RunEvidence, decide_run
from draftproof.judge.decide.effects import EffectIndex, index_effects, null_difference_at
from draftproof.judge.decide.envelope import explain_contexts, list_unresolved
from draftproof.judge.decide.equivalence.assess import warn_about_equivalence
from draftproof.judge.decide.equivalence.greedy import compute_agreements
from draftproof.judge.decide.faults import Faults, summarise_incomplete
from draftproof.judge.decide.near_copies import warn_about_near_copies
from draftproof.judge.decide.needs import add_needed, ask_nothing_where_invalid, list_largest
from draftproof.judge.decide.order.compute import compute_order, warn_about_order
from draftproof.judge.decide.order.doubts import qualify_by_processes, warn_about_preceding
from draftproof.judge.decide.tails import (
    Tails,
    list_open_tails,
    qualify_sentence,
    tail_share,
)
from draftproof.judge.decide.wording import EVIDENCE_WORDS, list_reasons, render_sentence, weakest_evidence
from draftproof.judge.inform.arm_cells import compute_arm_cells, compute_deliveries, summarise_turns
from draftproof.judge.inform.clients import summarise_clients
from draftproof.judge.inform.diagnosis.bound import (
    ArmCellIndex,
    MarginIndex,
    diagnose,
    explain_step_cost,
    index_arm_cells,
    index_margins,
)
from draftproof.judge.inform.diagnosis.break_evens import RoundTable, collect_rounds, compute_break_evens
from draftproof.judge.inform.diagnosis.cells import compute_diagnoses
from draftproof.judge.inform.economics.compute import compute_economics
from draftproof.judge.inform.estimators import compute_estimator_rows
from draftproof.judge.inform.filling import warn_about_filling, warn_about_known_prompts, warn_about_overload
from draftproof.judge.inform.phases import summarise_phases, warn_about_warmups
from draftproof.judge.inform.questions.answers import compute_label_acceptance
from draftproof.judge.inform.questions.ask import answer_questions
from draftproof.judge.inform.service_agreement import compare_sources, list_disagreements
from draftproof.judge.inform.unmeasured import (
    list_disturbances,
    list_unmeasured,
    list_untold,
    without_searched,
)
from draftproof.judge.knee.compute import compute_knee
from draftproof.judge.observe.notices import explain_ending, warn_about_notices
from draftproof.judge.observe.pairs import PairTable
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun, RunData
from draftproof.judge.observe.services import (
    ServiceReadings,
    draw_lines,
    list_restarts,
    list_silent,
    list_starts,
    summarise_services,
)
from draftproof.judge.observe.windows import measure_windows
from draftproof.judge.results.diagnosis import BreakEven
from draftproof.judge.results.equivalence import OutputEquivalence
from draftproof.judge.results.run import ArmCell, Cell, Reason, Results, Verdict
from draftproof.judge.results.samples import SamplePlan
from draftproof.plan.schema import Thresholds


def compute_results(run: RunData) -> Results:
    """Return everything a report shows, computed from a run's records alone.

    Seeds come from the plan; nothing depends on the order of records, on a clock or on the machine.
    """
    decided = decide_run(run)
    evidence = decided.evidence
    prepared, faults, readings = evidence.prepared, evidence.faults, evidence.readings
    arm_cells = compute_arm_cells(prepared)
    by_effect = index_effects(evidence.effects)
    nulls = {load: null_difference_at(by_effect, "tpot_ns", load) for load in prepared.loads}
    rounds = collect_rounds(prepared)
    break_evens = compute_break_evens(prepared, rounds)
    margins = index_margins(break_evens, nulls)
    found = evidence.samples
    cells = _explain_cells(decided.cells, index_arm_cells(arm_cells), margins, faults.paused)
    cells = add_needed(cells, found, is_complete=not faults.incomplete)
    results = _assemble(decided, arm_cells=arm_cells, margins=margins, cells=cells, found=found)
    results = _add_tails(_add_order(results, evidence), prepared, evidence.tails)
    results = ask_nothing_where_invalid(results)
    results = _add_equivalence(results, evidence.equivalence)
    results = add_behaviour(results, prepared)
    results = _add_costs(_add_services(results, prepared, readings), prepared, faults, rounds, break_evens)
    results = _add_knee(results, run)
    return _add_questions(round_figures(results), prepared)


def _add_knee(results: Results, run: RunData) -> Results:
    """Add the search, which also answers what the run's own loads leave open."""
    found = compute_knee(run)
    if found is None:
        return results
    not_measured = results.not_measured
    if found.points:
        not_measured = without_searched(not_measured, is_open=found.axis == "rps")
    return msgspec.structs.replace(results, knee=found, not_measured=not_measured)


def _add_order(results: Results, run: RunEvidence) -> Results:
    """Add places, drift, the noise floor and what precedes periods; warn where they matter."""
    prepared, verdict = run.prepared, results.verdict
    order = compute_order(prepared, run.pairs, index_effects(results.effects))
    choice = prepared.plan.comparison
    found = warn_about_order(order, prepared.plan.thresholds, choice.confidence, choice.metric)
    sentence = qualify_by_processes(verdict.sentence, verdict.decision, prepared)
    return msgspec.structs.replace(
        results,
        order=order,
        verdict=msgspec.structs.replace(verdict, sentence=sentence),
        warnings=(*results.warnings, *found, *warn_about_preceding(run.doubts)),
    )


def _add_tails(results: Results, prepared: PreparedRun, tails: Tails) -> Results:
    """Add the tail's effects, and say where the tail is not shown to hold."""
    verdict, thresholds = results.verdict, prepared.plan.thresholds
    valid = dict.fromkeys(one.load for one in results.cells if one.status != "invalid")
    sentence = qualify_sentence(verdict.sentence, verdict.decision, results.cells, thresholds)
    return msgspec.structs.replace(
        results,
        tail_effects=tails.effects,
        verdict=msgspec.structs.replace(verdict, sentence=sentence),
        not_measured=(*results.not_measured, *list_open_tails(prepared, tails, tuple(valid))),
    )


def _add_equivalence(results: Results, rows: tuple[OutputEquivalence, ...]) -> Results:
    """Add whether the arms' outputs are the baseline's, and warn where a contract is contradicted."""
    found = warn_about_equivalence(rows)
    return msgspec.structs.replace(results, equivalence=rows, warnings=(*results.warnings, *found))


def _add_questions(results: Results, prepared: PreparedRun) -> Results:
    """Add what a run with rounded figures says to the twelve review questions; it reads all other results."""
    questions = answer_questions(results, prepared.plan, prepared.run.manifest)
    return msgspec.structs.replace(results, questions=questions)


def _add_costs(
    results: Results,
    prepared: PreparedRun,
    faults: Faults,
    rounds: RoundTable,
    break_evens: tuple[BreakEven, ...],
) -> Results:
    """Add where time goes and what to look at first, what every arm costs, and what the client did."""
    windows = measure_windows(prepared)
    economics = compute_economics(prepared, results.services, results.differences, windows, faults)
    return msgspec.structs.replace(
        results,
        diagnoses=compute_diagnoses(
            prepared,
            faults=faults,
            effects=results.effects,
            arm_cells=results.arm_cells,
            services=results.services,
            starts=results.service_starts,
            rounds=rounds,
            break_evens=break_evens,
        ),
        economics=economics,
        clients=summarise_clients(prepared, windows, economics.uses),
    )


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
            *list_restarts(prepared, readings),
            *list_disagreements(agreements),
        ),
    )


def _explain_cells(
    cells: Sequence[Cell], arm_cells: ArmCellIndex, margins: MarginIndex, paused: Mapping[str, Reason]
) -> tuple[Cell, ...]:
    """Add to every valid cell what a step commits and costs there, and whether drafting was paused."""
    explained = []
    for cell in cells:
        why = (paused.get(cell.load), explain_step_cost(arm_cells, margins, cell.segment, cell.load))
        known = tuple(one for one in why if one is not None)
        if cell.status == "invalid":
            explained.append(cell)
        else:
            explained.append(msgspec.structs.replace(cell, reasons=(*cell.reasons, *known)))
    return tuple(explained)


def _assemble(
    decided: DecidedRun,
    *,
    arm_cells: tuple[ArmCell, ...],
    margins: MarginIndex,
    cells: tuple[Cell, ...],
    found: SamplePlan | None,
) -> Results:
    evidence = decided.evidence
    prepared, pairs, faults, bands = evidence.prepared, evidence.pairs, evidence.faults, evidence.bands
    plan, manifest = prepared.plan, prepared.run.manifest
    by_effect = index_effects(evidence.effects)
    return Results(
        schema_version=SCHEMA_VERSION,
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
        arm_cells=arm_cells,
        effects=evidence.effects,
        differences=evidence.differences,
        agreements=compute_agreements(prepared, pairs),
        estimators=compute_estimator_rows(prepared),
        cells=cells,
        diagnosis=diagnose(prepared, by_effect, faults),
        verdict=_word_verdict(decided, cells, arm_cells, margins, found),
        not_measured=(*list_unmeasured(prepared), *list_unresolved(prepared, bands)),
        warnings=(
            *manifest.findings,
            *prepared.warnings,
            *warn_about_notices(prepared.run.notices),
            *list_disturbances(prepared.run.blocks),
            *faults.warnings,
            *_warn(prepared, by_effect, faults),
            *warn_about_overload(prepared),
            *warn_about_filling(prepared),
            *warn_about_known_prompts(prepared),
            *warn_about_near_copies(prepared, pairs["candidate", "baseline"]),
            *warn_about_warmups(one for one in prepared.run.warmups if one.load in prepared.loads),
        ),
        counts=_count(prepared, pairs),
        deliveries=compute_deliveries(prepared),
        turns=summarise_turns(prepared),
        phases=summarise_phases(prepared),
        context_bands=bands,
        label_acceptance=compute_label_acceptance(prepared),
        load_sizes=prepared.sizes,
    )


def _word_verdict(
    decided: DecidedRun,
    cells: tuple[Cell, ...],
    arm_cells: Sequence[ArmCell],
    margins: MarginIndex,
    found: SamplePlan | None,
) -> Verdict:
    prepared, faults, bands = decided.evidence.prepared, decided.evidence.faults, decided.evidence.bands
    decision, envelope = decided.decision, decided.envelope
    index = index_arm_cells(arm_cells)
    pooled = [
        explain_step_cost(index, margins, ALL_SEGMENTS, load)
        for load in prepared.loads
        if not faults.is_invalid(load)
    ]
    is_open = decision == "inconclusive" and not faults.incomplete
    obstacles = list_largest(cells, found) if is_open else []
    why = [
        *(Reason(code="obstacle", text=one.text, evidence=one.evidence) for one in obstacles),
        *explain_contexts(envelope, bands),
        *(reason for reason in pooled if reason is not None),
    ]
    reasons: tuple[Reason, ...] = (
        *(explain_ending(prepared.run.notices) if faults.incomplete else ()),
        *list_reasons(decision, cells, summarise_incomplete(faults.incomplete, len(cells)), why),
    )
    evidence = weakest_evidence(prepared.plan.evidence, prepared.run.manifest.evidence)
    metric = prepared.plan.comparison.metric
    return Verdict(
        decision=decision,
        sentence=render_sentence(
            decision,
            evidence,
            cells=cells,
            envelope=envelope,
            metric=metric,
            reasons=reasons,
            missing=obstacles[0].text if obstacles else None,
            unseen=sum(one.status != "invalid" and not decided.evidence.shows_no_gain(one) for one in cells)
            if decision == "defer"
            else 0,
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
        "failures": int((~prepared.columns.is_ok).sum()),
        "prompts": len(prepared.columns.prompt_names),
        "pairs": len(pairs["candidate", "baseline"]),
        "pairs_ok": int(pairs["candidate", "baseline"].is_ok.sum()),
    }
