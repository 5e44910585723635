"""From a run's records to its cells, decision and envelope: the part of the results that decides.

Pure and deterministic. Whatever a report shows beside it (percentiles, what services say, costs) is added by
`compute_results`; the simulation study of docs/method.md calls `decide_run` itself.
"""

from collections.abc import Sequence

import msgspec

from draftproof.verdict.behaviour.judge import judge_probes, judge_unjudged
from draftproof.verdict.cells import decide_cell, gather_evidence
from draftproof.verdict.contexts import compute_context_bands, judge_contexts
from draftproof.verdict.coverage import count_hidden, judge_coverage
from draftproof.verdict.credit import judge_credit
from draftproof.verdict.decide import decide
from draftproof.verdict.decision_results import ContextBand
from draftproof.verdict.effects import compute_effects, index_effects
from draftproof.verdict.envelope import list_envelope, narrow_decision
from draftproof.verdict.equivalence.assess import compute_equivalence
from draftproof.verdict.equivalence.guardrail import judge_equivalence
from draftproof.verdict.equivalence.results import OutputEquivalence
from draftproof.verdict.faults import Faults, find_faults
from draftproof.verdict.guardrails import (
    compute_differences,
    count_new_critical,
    index_differences,
    judge_guardrails,
)
from draftproof.verdict.pairs import PairTable, pair_observations
from draftproof.verdict.results import Cell, Decision, Difference, Effect, EnvelopeEntry
from draftproof.verdict.run_data import PreparedRun, RunData, prepare_run
from draftproof.verdict.services.compute import ServiceReadings, read_services
from draftproof.verdict.tails import Tails, compute_tails, judge_tails
from draftproof.verdict.wording import weakest_evidence


class RunEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that cells are judged by."""

    prepared: PreparedRun
    pairs: PairTable
    readings: ServiceReadings
    faults: Faults
    effects: tuple[Effect, ...]
    differences: tuple[Difference, ...]
    tails: Tails
    bands: tuple[ContextBand, ...]
    equivalence: tuple[OutputEquivalence, ...]


class DecidedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a run, the cells it rests on and where speculation may run."""

    evidence: RunEvidence
    cells: tuple[Cell, ...]
    decision: Decision
    envelope: tuple[EnvelopeEntry, ...]


def decide_run(run: RunData) -> DecidedRun:
    """Return the decision of a run; a function of its records in any order."""
    evidence = gather_run(run)
    cells = judge_cells(evidence, evidence.effects)
    decision, envelope = settle(evidence, cells)
    return DecidedRun(evidence=evidence, cells=cells, decision=decision, envelope=envelope)


def settle(run: RunEvidence, cells: Sequence[Cell]) -> tuple[Decision, tuple[EnvelopeEntry, ...]]:
    """Return the decision that cells give, and its envelope; cells of another estimator are settled alike."""
    plan = run.prepared.plan
    decision = decide(cells, plan.thresholds, is_complete=not run.faults.incomplete)
    envelope = list_envelope(run.prepared, cells, decision, run.bands)
    return narrow_decision(decision, envelope), envelope


def gather_run(run: RunData) -> RunEvidence:
    """Compute all that cells are judged by."""
    prepared = prepare_run(run)
    pairs, readings = pair_observations(prepared), read_services(prepared)
    effects = compute_effects(prepared, pairs)
    return RunEvidence(
        prepared=prepared,
        pairs=pairs,
        readings=readings,
        faults=find_faults(prepared, pairs, readings),
        effects=effects,
        differences=compute_differences(prepared, pairs),
        tails=compute_tails(prepared, pairs),
        bands=compute_context_bands(prepared, pairs, index_effects(effects)),
        equivalence=compute_equivalence(prepared, pairs),
    )


def judge_cells(run: RunEvidence, effects: Sequence[Effect]) -> tuple[Cell, ...]:
    """Return the status of every segment at every load.

    Args:
        run: all that cells are judged by.
        effects: the run's own, or others to be judged by the same rules.
    """
    prepared, faults = run.prepared, run.faults
    by_effect, by_difference = index_effects(effects), index_differences(run.differences)
    decisive = run.pairs["candidate", "baseline"]
    critical, hidden = count_new_critical(decisive), count_hidden(prepared, decisive)
    thresholds, metric = prepared.plan.thresholds, prepared.plan.comparison.metric
    level = weakest_evidence(prepared.plan.evidence, prepared.run.manifest.evidence)
    regressions, unjudged = judge_probes(prepared), judge_unjudged(prepared)
    credit = judge_credit(
        prepared, run.pairs, index_effects(run.effects), is_representative=level == "representative"
    )
    decided = []
    for load in prepared.loads:
        for segment in prepared.segments:
            cell = (segment, load)
            findings = (
                *judge_guardrails(cell, by_effect, by_difference, critical, thresholds),
                *judge_coverage(cell, hidden, thresholds.failure_margin),
                *judge_contexts(cell, run.bands),
                *judge_equivalence(cell, run.equivalence),
                *judge_tails(cell, run.tails, thresholds, withholds=level == "representative"),
                *regressions,
                *unjudged.get(cell, ()),
                *credit.get(cell, ()),
            )
            evidence = gather_evidence(prepared, cell, by_effect, findings, faults)
            decided.append(decide_cell(evidence, thresholds, metric, prepared.sizes[load]))
    return tuple(decided)
