"""The whole diagnosis of a run: where time goes, what the drafter costs, what to look at first. Pure."""

from collections.abc import Sequence

from draftproof.judge.decide.effects import index_effects
from draftproof.judge.decide.faults import Faults
from draftproof.judge.inform.diagnosis.break_evens import RoundTable
from draftproof.judge.inform.diagnosis.drafter_cost import compute_drafter_costs
from draftproof.judge.inform.diagnosis.drafting_remedies import (
    suggest_cheaper_drafter,
    suggest_fewer_drafts,
    suggest_off_at_load,
    suggest_separate_prefill,
)
from draftproof.judge.inform.diagnosis.remedies import (
    gather_known,
    order_remedies,
    suggest_capacity,
    suggest_cold_start,
    suggest_prefill,
    suggest_prefix_cache,
)
from draftproof.judge.inform.diagnosis.time_parts import NOT_MEASURED, compute_time_parts
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.diagnosis import BreakEven, Diagnoses
from draftproof.judge.results.run import ArmCell, Effect
from draftproof.judge.results.services import ServiceStart, ServiceUse


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
