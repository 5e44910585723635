"""From a run's records to its cells, decision and envelope: the part of the results that decides.

Pure and deterministic. Whatever a report shows beside it (percentiles, what services say, costs) is added by
`compute_results`; the simulation study of docs/method.md calls `decide_run` itself.
"""

import itertools
from collections.abc import Mapping
from functools import cached_property

import msgspec

from draftproof.judge.decide.behaviour import evaluate_probes, find_unjudged
from draftproof.judge.decide.cells import decide_cell, gather_evidence
from draftproof.judge.decide.contexts import compute_context_bands, evaluate_contexts
from draftproof.judge.decide.counting import count_hidden, evaluate_coverage
from draftproof.judge.decide.device_time import compare_with_alternative, evaluate_budgets
from draftproof.judge.decide.effects import CellKey, compute_effects, index_effects
from draftproof.judge.decide.eligibility import evaluate_gain_eligibility
from draftproof.judge.decide.envelope import list_envelope, narrow_decision
from draftproof.judge.decide.equivalence.assess import compute_equivalence, evaluate_equivalence
from draftproof.judge.decide.faults import Faults, count_verification_steps, find_faults
from draftproof.judge.decide.guardrails import (
    compute_differences,
    count_new_critical,
    evaluate_guardrails,
    find_low_agreement,
    index_differences,
)
from draftproof.judge.decide.outcome import decide, is_admissible, is_settled
from draftproof.judge.decide.preceding import Doubt, find_doubts, withhold
from draftproof.judge.decide.samples import plan_from_run
from draftproof.judge.decide.spreads import shows_no_gain
from draftproof.judge.decide.tails import Tails, compute_tails, evaluate_tails
from draftproof.judge.decide.wording import weakest_evidence
from draftproof.judge.observe.pairs import DECISIVE, PairTable, pair_observations
from draftproof.judge.observe.run_data import PreparedRun, RunData, prepare_run
from draftproof.judge.observe.services import ServiceReadings, read_services
from draftproof.judge.results.decide import ContextBand, OutputEquivalence
from draftproof.judge.results.run import Cell, Decision, Difference, Effect, EnvelopeEntry
from draftproof.judge.results.samples import SamplePlan


class RunEvidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
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

    @cached_property
    def is_representative(self) -> bool:
        """Whether the run's traffic stands for the operator's own."""
        stated = self.prepared.plan.evidence, self.prepared.run.manifest.evidence
        return weakest_evidence(*stated) == "representative"

    @cached_property
    def doubts(self) -> Mapping[str, tuple[Doubt, ...]]:
        """Why no difference in time can be separated from luck or order, by load."""
        return find_doubts(self.prepared, is_representative=self.is_representative)

    @cached_property
    def samples(self) -> SamplePlan | None:
        """What the run's own question takes by its own spreads, None where no gain could be asked for."""
        return plan_from_run(self.prepared, self.pairs)

    def shows_no_gain(self, cell: Cell) -> bool:
        """Return whether a cell shows that it has no gain, or would have shown one of the size asked for."""
        if cell.status in ("harm", "no_gain") or is_settled(cell) or self.samples is None:
            return True
        return shows_no_gain(self.samples, cell)


class DecidedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of a run, the cells it is based on and where speculation may run."""

    evidence: RunEvidence
    cells: tuple[Cell, ...]
    decision: Decision
    envelope: tuple[EnvelopeEntry, ...]


def decide_run(run: RunData) -> DecidedRun:
    """Return the decision of a run; a function of its records in any order."""
    evidence = gather_run(run)
    cells = evaluate_cells(evidence)
    decision = decide(
        cells,
        evidence.prepared.plan.thresholds,
        is_complete=not evidence.faults.incomplete,
        shows_no_gain=evidence.shows_no_gain,
    )
    envelope = list_envelope(evidence.prepared, cells, decision, evidence.bands)
    decision = narrow_decision(decision, envelope)
    return DecidedRun(evidence=evidence, cells=cells, decision=decision, envelope=envelope)


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


def evaluate_cells(run: RunEvidence) -> tuple[Cell, ...]:
    """Return the status of every segment at every load."""
    prepared, pairs, withholds = run.prepared, run.pairs[DECISIVE], run.is_representative
    by_effect, by_difference = index_effects(run.effects), index_differences(run.differences)
    thresholds, metric = prepared.plan.thresholds, prepared.plan.comparison.metric
    asks_quality = prepared.plan.comparison.quality != "latency_only"
    critical, hidden = count_new_critical(pairs), count_hidden(prepared, pairs)
    open_anyway = [
        find_unjudged(prepared),
        find_low_agreement(prepared, run.pairs),
        evaluate_gain_eligibility(prepared, run.pairs, by_effect, is_representative=withholds),
        evaluate_budgets(prepared),
    ]
    regressions, by_budget = evaluate_probes(prepared), compare_with_alternative(prepared)
    decided: dict[CellKey, Cell] = {}
    above_gap: set[tuple[str, str]] = set()
    every = [(segment, load) for load, segment in itertools.product(prepared.loads, prepared.segments)]
    for cell in sorted(every, key=lambda one: prepared.sizes[one[1]].order):
        segment, load = cell
        axis = (segment, prepared.sizes[load].axis)
        findings = (
            *evaluate_guardrails(
                cell,
                by_effect,
                by_difference,
                critical,
                thresholds,
                withholds=withholds,
                asks_quality=asks_quality,
            ),
            *evaluate_coverage(cell, hidden, thresholds.failure_margin),
            *evaluate_contexts(cell, run.bands),
            *evaluate_equivalence(cell, run.equivalence),
            *evaluate_tails(cell, run.tails, thresholds, withholds=withholds),
            *regressions,
            *(finding for found in open_anyway for finding in found.get(cell, ())),
        )
        answered = (one.record for one in prepared.of_arm("candidate", load, segment) if one.is_ok)
        steps = count_verification_steps(answered)
        evidence = gather_evidence(
            prepared, cell, by_effect, findings, run.faults, steps=steps, in_sequence=axis not in above_gap
        )
        if (figure := by_budget.get(load)) is not None:
            evidence = msgspec.structs.replace(
                evidence, versus_alternative=figure, pooled_versus_alternative=figure
            )
        judged = decide_cell(evidence, thresholds, metric, prepared.sizes[load])
        decided[cell] = withhold(judged, evidence, run.doubts.get(load, ()), thresholds)
        if not is_admissible(decided[cell]):
            above_gap.add(axis)
    return tuple(decided[cell] for cell in every)
