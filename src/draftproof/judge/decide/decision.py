"""From a run's records to its cells, decision and envelope: the part of the results that decides.

Pure and deterministic. Whatever a report shows beside it (percentiles, what services say, costs) is added by
`compute_results`; the simulation study of docs/method.md calls `decide_run` itself.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from draftproof.judge.decide.behaviour import judge_probes, judge_unjudged
from draftproof.judge.decide.cells import decide_cell, gather_evidence
from draftproof.judge.decide.contexts import compute_context_bands, judge_contexts
from draftproof.judge.decide.counting import Coverage, count_hidden, judge_coverage
from draftproof.judge.decide.device_time import compare_with_alternative, judge_budgets
from draftproof.judge.decide.effects import CellKey, compute_effects, index_effects
from draftproof.judge.decide.eligibility import judge_credit
from draftproof.judge.decide.envelope import list_envelope, narrow_decision
from draftproof.judge.decide.equivalence.assess import compute_equivalence, judge_equivalence
from draftproof.judge.decide.faults import Faults, count_verification_steps, find_faults
from draftproof.judge.decide.guardrails import (
    Finding,
    compute_differences,
    count_new_critical,
    index_differences,
    judge_guardrails,
)
from draftproof.judge.decide.order.preceding import Doubt, find_doubts, withhold
from draftproof.judge.decide.outcome import decide, is_settled
from draftproof.judge.decide.samples.compute import plan_from_run
from draftproof.judge.decide.samples.missing import shows_no_gain
from draftproof.judge.decide.tails import Tails, compute_tails, judge_tails
from draftproof.judge.decide.wording import weakest_evidence
from draftproof.judge.observe.pairs import PairTable, pair_observations
from draftproof.judge.observe.run_data import PreparedRun, RunData, prepare_run
from draftproof.judge.observe.services import ServiceReadings, read_services
from draftproof.judge.results.decision import ContextBand, OutputEquivalence
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Cell, Decision, Difference, Effect, EnvelopeEntry
from draftproof.judge.results.samples import SamplePlan


class RunEvidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything that cells are judged by. What no effect changes is counted once for all estimators."""

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
    def critical(self) -> Mapping[CellKey, int]:
        """New critical failures of the candidate by cell."""
        return count_new_critical(self.pairs["candidate", "baseline"])

    @cached_property
    def hidden(self) -> Mapping[CellKey, tuple[Coverage, ...]]:
        """What the candidate's cells hide, see `count_hidden`."""
        return count_hidden(self.prepared, self.pairs["candidate", "baseline"])

    @cached_property
    def unjudged(self) -> Mapping[CellKey, tuple[Finding, ...]]:
        """Open findings of critical checks that nobody judged, by cell."""
        return judge_unjudged(self.prepared)

    @cached_property
    def steps(self) -> Mapping[CellKey, int | None]:
        """Verification steps of the candidate's answers by cell."""
        return {
            (segment, load): count_verification_steps(
                one.record for one in self.prepared.of_arm("candidate", load, segment) if one.is_ok
            )
            for load in self.prepared.loads
            for segment in self.prepared.segments
        }

    @cached_property
    def is_representative(self) -> bool:
        """Whether the run's traffic stands for the operator's own."""
        stated = self.prepared.plan.evidence, self.prepared.run.manifest.evidence
        return weakest_evidence(*stated) == "representative"

    @cached_property
    def budgets(self) -> Mapping[CellKey, tuple[Finding, ...]]:
        """Where device time stands, by cell, for arms with other numbers of devices."""
        return judge_budgets(self.prepared)

    @cached_property
    def versus_alternative(self) -> Mapping[str, Figure]:
        """Device time against an alternative with another number of devices, by load."""
        return compare_with_alternative(self.prepared)

    @cached_property
    def doubts(self) -> Mapping[str, tuple[Doubt, ...]]:
        """Why no difference in time is told from luck or order, by load."""
        return find_doubts(self.prepared, is_representative=self.is_representative)

    @cached_property
    def samples(self) -> SamplePlan | None:
        """What the run's own question takes by its own spreads, None where no gain could be asked for."""
        return plan_from_run(self.prepared, self.pairs)

    def shows_no_gain(self, cell: Cell) -> bool:
        """Return whether a cell shows that it has no gain, or would have shown one of the size asked for."""
        if cell.status == "harm" or is_settled(cell) or self.samples is None:
            return True
        return shows_no_gain(self.samples, cell)

    @cached_property
    def credit(self) -> Mapping[CellKey, tuple[Finding, ...]]:
        """Why a gain may not be credited, by cell."""
        return judge_credit(
            self.prepared,
            self.pairs,
            index_effects(self.effects),
            is_representative=self.is_representative,
        )


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
    decision = decide(
        cells,
        plan.thresholds,
        is_complete=not run.faults.incomplete,
        shows_no_gain=run.shows_no_gain,
    )
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
    """Return the status of every segment at every load, by the run's own effects or by others."""
    prepared, faults = run.prepared, run.faults
    by_effect, by_difference = index_effects(effects), index_differences(run.differences)
    thresholds, metric = prepared.plan.thresholds, prepared.plan.comparison.metric
    regressions = judge_probes(prepared)
    decided = []
    for load in prepared.loads:
        for segment in prepared.segments:
            cell = (segment, load)
            findings = (
                *judge_guardrails(
                    cell,
                    by_effect,
                    by_difference,
                    run.critical,
                    thresholds,
                    withholds=run.is_representative,
                ),
                *judge_coverage(cell, run.hidden, thresholds.failure_margin),
                *judge_contexts(cell, run.bands),
                *judge_equivalence(cell, run.equivalence),
                *judge_tails(cell, run.tails, thresholds, withholds=run.is_representative),
                *regressions,
                *run.unjudged.get(cell, ()),
                *run.credit.get(cell, ()),
                *run.budgets.get(cell, ()),
            )
            evidence = gather_evidence(prepared, cell, by_effect, findings, faults, steps=run.steps[cell])
            if (figure := run.versus_alternative.get(load)) is not None:
                evidence = msgspec.structs.replace(
                    evidence, versus_alternative=figure, pooled_versus_alternative=figure
                )
            judged = decide_cell(evidence, thresholds, metric, prepared.sizes[load])
            decided.append(withhold(judged, evidence, run.doubts.get(load, ()), thresholds))
    return tuple(decided)
