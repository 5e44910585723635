"""What must be taken for granted, and what to doubt, in sentences. Pure."""

from collections.abc import Sequence

from draftproof.costs.results import Drift, StepCost, StepSplit
from draftproof.costs.splitting import ASSUMPTIONS, LOOKUP_ITSELF
from draftproof.report.quantities import format_change

_INDEPENDENT = (
    "Break-even acceptance takes each draft to be accepted with the same probability whatever went before "
    "(Leviathan et al. 2023, equation 1). Break-even tokens per step need no such assumption."
)
_FROM_ARRIVALS = (
    "No draft is accepted, so every step commits one token and the client's time per token is the step's "
    "time, with the network and the scheduling between two steps in it."
)
_FROM_CHUNKS = (
    "Drafts are accepted as they come, and every chunk of the stream is taken for one step of the engine. "
    "So the client must keep up, and a step's time is taken not to depend on how many drafts are accepted."
)
_FROM_ROUNDS = (
    "Step times are the engine's own records of rounds in which every request of the batch drafted the full "
    "length; what the network and the client add is not in them."
)
_CONTEXT = "Steps are timed at one context length; longer contexts make every step dearer, drafts included."


def list_assumptions(
    splits: Sequence[StepSplit], *, is_lookup: bool, from_rounds: bool, synthetic: bool = True
) -> tuple[str, ...]:
    """Return what the figures rest on."""
    sources = dict.fromkeys(split.source for split in splits)
    told = [LOOKUP_ITSELF if is_lookup and source == "ngram" else ASSUMPTIONS[source] for source in sources]
    from_stream = _FROM_ARRIVALS if synthetic else _FROM_CHUNKS
    return (_FROM_ROUNDS if from_rounds else from_stream, _INDEPENDENT, *told, _CONTEXT)


def list_warnings(
    steps: Sequence[StepCost], drifts: Sequence[Drift], splits: Sequence[StepSplit]
) -> tuple[str, ...]:
    """Return what makes figures doubtful."""
    moved = [f"{format_change(drift.ratio)} at batch {drift.batch}" for drift in drifts if drift.is_large]
    unsteady = (
        f"The ordinary step moved from the first start to the last by {', '.join(moved)}: the machine was "
        "not steady. Intervals are widened by it; measure again on a quiet machine."
    )
    partial = [
        f"{step.draft_length} drafts at batch {step.batch}"
        f"{' by n-gram lookup' if step.drafting == 'ngram' else ''}: {step.note}."
        for step in steps
        if step.note is not None
    ]
    cheap = [
        f"{split.draft_length} drafts at batch {split.batch}: drafting comes out below zero, so n-gram steps "
        "are no measure of checking here."
        for split in splits
        if split.draft_ns.high is not None and split.draft_ns.high < 0
    ]
    return (*([unsteady] if moved else ()), *partial, *cheap)
