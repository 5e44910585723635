"""Why it pays or not: what a decode step commits against what it costs. Pure.

A step of the candidate is worth its time only if it commits more tokens than it takes ordinary steps' time.
Both numbers come from the rounds that the engine discloses; without them nothing is explained.
"""

from collections.abc import Iterable, Mapping

import msgspec

from draftproof.verdict.diagnosis.results import BreakEven
from draftproof.verdict.effects import read_direction
from draftproof.verdict.figure import Figure
from draftproof.verdict.results import ArmCell, Progress, Reason

FEW_TOKENS = 1.3  # below this a step commits hardly more than the target's own token

ArmCellIndex = Mapping[tuple[str, str, str], ArmCell]
MarginIndex = Mapping[tuple[str, str], Figure]  # (segment, load): what a step commits / what it must commit


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens_per_step`: committed by a candidate's step; `cost`: its time / an ordinary step's time."""

    tokens_per_step: float
    cost: float


def index_arm_cells(arm_cells: Iterable[ArmCell]) -> ArmCellIndex:
    """Return the cells by (arm, segment, load)."""
    return {(cell.arm, cell.segment, cell.load): cell for cell in arm_cells}


def index_margins(break_evens: Iterable[BreakEven], nulls: Mapping[str, float]) -> MarginIndex:
    """Return by (segment, load) what a step commits against what it must, with its interval.

    The interval is widened by what two equal arms differ by at the load: two processes of one service step at
    different paces, too.
    """
    return {
        (one.segment, one.load): widen_margin(one.margin, nulls.get(one.load, 1.0)) for one in break_evens
    }


def widen_margin(margin: Figure, null: float) -> Figure:
    """Return a ratio of two arms whose interval takes in what two equal arms differ by, 1 or more."""
    if margin.low is None or margin.high is None:
        return margin
    return msgspec.structs.replace(margin, low=margin.low / null, high=margin.high * null)


def compute_step_cost(arm_cells: ArmCellIndex, segment: str, load: str) -> StepCost | None:
    """Return what a step of the candidate commits and costs in a cell, None without rounds in both arms."""
    baseline, candidate = (arm_cells.get((arm, segment, load)) for arm in ("baseline", "candidate"))
    if baseline is None or candidate is None:
        return None
    ordinary, speculative = compute_step_ns(baseline.progress), compute_step_ns(candidate.progress)
    if not ordinary or not speculative or candidate.progress is None:
        return None
    return StepCost(
        tokens_per_step=candidate.progress.committed_tokens / candidate.progress.rounds,
        cost=speculative / ordinary,
    )


def explain_step_cost(
    arm_cells: ArmCellIndex, margins: MarginIndex, segment: str, load: str
) -> Reason | None:
    """Return the step cost of a cell as a reason: too few tokens, too dear a step, paying, or not shown."""
    step = compute_step_cost(arm_cells, segment, load)
    if step is None:
        return None
    margin = margins.get((segment, load))
    code = name_step_cost(step, margin)
    words = {
        "low_acceptance": "too few drafts are accepted",
        "dear_verification": "verifying drafts is too dear at this batch",
        "step_pays": "the step pays",
        "step_open": "whether the step pays is not shown",
    }
    text = (
        f"A candidate's step commits {step.tokens_per_step:.2f} tokens and takes {step.cost:.2f} times "
        f"an ordinary step: {words[code]}."
    )
    return Reason(code=code, text=text, evidence=f"arm_cells: progress, {segment} × {load}")


def name_step_cost(step: StepCost, margin: Figure | None = None) -> str:
    """Return the code of a step cost; without an interval of its margin, or where it holds 1, it is open."""
    direction = read_direction(margin, 1.0)
    if direction is None:
        return "step_open"
    if direction == "above":
        return "step_pays"
    return "low_acceptance" if step.tokens_per_step < FEW_TOKENS else "dear_verification"


def compute_step_ns(progress: Progress | None) -> float | None:
    """Return what a decode step of a cell takes, in ns; None without rounds or their time."""
    if progress is None or progress.time_per_committed_token_ns is None or not progress.rounds:
        return None
    return progress.time_per_committed_token_ns * progress.committed_tokens / progress.rounds
