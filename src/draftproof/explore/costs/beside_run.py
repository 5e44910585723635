"""What a run's drafts committed a step, beside what its steps need to commit. Pure."""

from collections.abc import Sequence

from draftproof.explore.costs.results import Judgement, RunComparison, StepCost
from draftproof.judge.results.run import ArmCell, Figure, Results

CANDIDATE = "candidate"


def compare_run(
    results: Results, draft_length: int | None, steps: Sequence[StepCost]
) -> tuple[RunComparison, ...]:
    """Return every cell of the run's candidate that discloses its decode steps, beside its break-even.

    `draft_length`: tokens that its candidate drafts a step, None where that is not known.
    """
    # An open loop has no batch of its own: how many requests are in flight is up to the service.
    batches = {load: batch for load, batch in results.loads if batch is not None}
    return tuple(
        _compare(cell, batches[cell.load], draft_length, steps)
        for cell in results.arm_cells
        if cell.arm == CANDIDATE and cell.acceptance is not None and cell.load in batches
    )


def _compare(cell: ArmCell, batch: int, draft_length: int | None, steps: Sequence[StepCost]) -> RunComparison:
    has = cell.acceptance.tokens_per_decode_step if cell.acceptance else None
    step = next(
        (one for one in steps if (one.draft_length, one.batch, one.drafting) == (draft_length, batch, "own")),
        None,
    )
    needs = step.ratio if step else Figure(value=None, reason=_why_unknown(draft_length, batch, steps))
    pays = judge(needs, has)
    return RunComparison(
        segment=cell.segment,
        load=cell.load,
        batch=batch,
        draft_length=draft_length,
        needs=needs,
        has=has,
        pays=pays,
        sentence=_say(needs, has, pays, batch),
    )


def judge(needs: Figure, has: float | None) -> Judgement:
    """Return whether tokens per step beat the break-even: its whole interval, or it is too close to call."""
    if needs.value is None or has is None:
        return "unknown"
    low = needs.value if needs.low is None else needs.low
    high = needs.value if needs.high is None else needs.high
    if has > high:
        return "pays"
    return "does_not_pay" if has < low else "too_close"


def _why_unknown(draft_length: int | None, batch: int, steps: Sequence[StepCost]) -> str:
    if draft_length is None:
        return "the run does not say how many tokens its candidate drafts a step"
    if all(step.draft_length != draft_length for step in steps):
        return f"drafts of {draft_length} were not measured: add {draft_length} to --draft-lengths"
    return f"batch {batch} was not measured: add {batch} to --batches"


def _say(needs: Figure, has: float | None, pays: Judgement, batch: int) -> str:
    if needs.value is None:
        return f"{needs.reason}."
    if has is None:
        return f"needs {needs.value:.2f}; the run does not tell its tokens per decode step."
    words = {
        "pays": f"pays at batch {batch}",
        "does_not_pay": f"does not pay at batch {batch}",
        "too_close": f"too close to call at batch {batch}",
    }
    return f"needs {needs.value:.2f}, has {has:.2f}: {words[pays]}."
