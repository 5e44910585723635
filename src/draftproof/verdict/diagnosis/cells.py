"""The whole diagnosis of a run: where time goes, what the drafter costs, what to look at first. Pure."""

from collections.abc import Sequence

from draftproof.verdict.diagnosis.break_evens import RoundTable
from draftproof.verdict.diagnosis.drafter_cost import compute_drafter_costs
from draftproof.verdict.diagnosis.drafting_remedies import (
    suggest_cheaper_drafter,
    suggest_fewer_drafts,
    suggest_off_at_load,
    suggest_separate_prefill,
)
from draftproof.verdict.diagnosis.remedies import (
    gather_known,
    order_remedies,
    suggest_capacity,
    suggest_cold_start,
    suggest_prefill,
    suggest_prefix_cache,
)
from draftproof.verdict.diagnosis.results import BreakEven, Diagnoses
from draftproof.verdict.diagnosis.time_parts import NOT_MEASURED, compute_time_parts
from draftproof.verdict.effects import index_effects
from draftproof.verdict.faults import Faults
from draftproof.verdict.results import ArmCell, Effect
from draftproof.verdict.run_data import PreparedRun
from draftproof.verdict.services.results import ServiceStart, ServiceUse


def compute_diagnoses(
    prepared: PreparedRun,
    *,
    faults: Faults,
    effects: Sequence[Effect],
    arm_cells: Sequence[ArmCell],
    services: Sequence[ServiceUse],
    starts: Sequence[ServiceStart],
    rounds: RoundTable,
    break_evens: tuple[BreakEven, ...],
) -> Diagnoses:
    """Return time by part, remedies in the order to look at them, the drafter's cost and what breaks even."""
    by_effect = index_effects(effects)
    parts = compute_time_parts(prepared, by_effect, faults)
    known = gather_known(
        prepared,
        parts=parts,
        arm_cells=arm_cells,
        services=services,
        starts=starts,
        break_evens=break_evens,
        effects=by_effect,
        faults=faults,
    )
    return Diagnoses(
        parts=parts,
        remedies=order_remedies(
            (
                suggest_capacity(known),
                suggest_prefill(known),
                suggest_prefix_cache(known),
                suggest_separate_prefill(known, rounds, by_effect),
                suggest_off_at_load(known, by_effect),
                suggest_cheaper_drafter(known),
                suggest_fewer_drafts(known),
                suggest_cold_start(known),
            )
        ),
        drafter=compute_drafter_costs(prepared, rounds, services),
        break_evens=break_evens,
        not_measured=NOT_MEASURED,
    )
