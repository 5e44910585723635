"""From the costs of single waves to step costs with intervals and what would break even. Pure, seeded.

A wave is one observation: its requests share every step. Drift between the ordinary starts at the beginning
and the end widens every interval that compares with them. Drafting is separated from verification by the
engine's own clock, else by n-gram steps: lookup makes its drafts at next to no cost, so such a step less an
ordinary one is the checking, and a drafter's step less an n-gram step of the same length and batch is its
drafting.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from draftproof.explore.batches import WaveCost
from draftproof.explore.results import Drift, Judgement, RunComparison, SplitSource, StepCost, StepSplit
from draftproof.explore.schedule import CostGrid, Start
from draftproof.judge.metrics.acceptance import break_even_acceptance, break_even_draft_ns, expected_tokens
from draftproof.judge.results.run import ArmCell, Figure, Results
from draftproof.judge.stats.totals import Estimate, median_difference, median_interval, median_ratio
from draftproof.services.engines.commands import Drafting
from draftproof.tell.report import write

# Beyond this the machine was not the same at the end as at the beginning.
LARGE_DRIFT = 0.05
# Below this share of the wanted drafts a step is cheaper than a full one; answers lose a little at the end.
FULL_DRAFTS = 0.9
NO_INTERVAL = "an interval needs three waves or more"
NONE_PAYS = "no acceptance pays: the step costs more than all its tokens"


class WaveSet(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of all waves of an experiment, with what each start drafted.

    `is_lookup`: the candidate's own drafter is an n-gram lookup.
    """

    grid: CostGrid
    starts: tuple[Start, ...]
    costs: tuple[WaveCost, ...]
    is_lookup: bool = False

    def select(self, draft_length: int, batch: int, drafting: Drafting = "own") -> tuple[WaveCost, ...]:
        """Return the waves of one combination; ordinary decoding has those of all its starts."""
        of_kind = {
            start.index
            for start in self.starts
            if start.draft_length == draft_length and start.drafting == drafting
        }
        return tuple(cost for cost in self.costs if cost.start in of_kind and cost.batch == batch)

    @property
    def has_lookup(self) -> bool:
        """Whether n-gram drafts were timed beside the candidate's own."""
        return any(start.drafting == "ngram" for start in self.starts)


def step_values(costs: Iterable[WaveCost]) -> list[float]:
    """Return the step time of each wave, ns."""
    return [cost.step_ns for cost in costs]


def estimate_steps(waves: WaveSet) -> tuple[StepCost, ...]:
    """Return the cost of every combination that was measured, ordinary steps first."""
    kinds: list[tuple[int, Drafting]] = [(0, "own")]
    kinds += [(length, "own") for length in sorted(waves.grid.draft_lengths)]
    kinds += [(length, "ngram") for length in sorted(waves.grid.draft_lengths) if waves.has_lookup]
    return tuple(
        _estimate_step(waves, length, batch, drafting)
        for length, drafting in kinds
        for batch in sorted(waves.grid.batches)
    )


def estimate_drifts(waves: WaveSet) -> tuple[Drift, ...]:
    """Return how far the ordinary step moved from the first start to the last, by batch size."""
    ratios = {batch: _drift_ratio(waves, batch) for batch in sorted(waves.grid.batches)}
    return tuple(
        Drift(batch=batch, ratio=ratio, is_large=abs(ratio - 1) > LARGE_DRIFT)
        for batch, ratio in ratios.items()
    )


def drift_error(waves: WaveSet, batch: int) -> float:
    """Return the standard error on the log scale that drift adds: half of what the ordinary step moved."""
    return abs(math.log(_drift_ratio(waves, batch))) / 2


def figure(estimate: Estimate) -> Figure:
    """Return an estimate as a figure; without an interval it says why."""
    return Figure(
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        level=estimate.level,
        n=estimate.n,
        reason=NO_INTERVAL if estimate.low is None else None,
    )


def acceptance_figure(ratio: Figure, draft_length: int) -> Figure:
    """Return the acceptance that breaks even at a ratio, the ratio's limits carried over.

    A limit that no acceptance reaches is None, and so is the value where none pays.
    """
    value, low, high = (
        None if limit is None else break_even_acceptance(limit, draft_length)
        for limit in (ratio.value, ratio.low, ratio.high)
    )
    reason = NONE_PAYS if value is None else ratio.reason
    return Figure(value=value, low=low, high=high, level=ratio.level, n=ratio.n, reason=reason)


def _estimate_step(waves: WaveSet, draft_length: int, batch: int, drafting: Drafting) -> StepCost:
    costs, grid = waves.select(draft_length, batch, drafting), waves.grid
    ratio = _estimate_ratio(waves, costs, draft_length, batch)
    counted = [cost.drafted for cost in costs if cost.drafted is not None]
    drafted = sum(counted) / len(counted) if draft_length and counted else None
    return StepCost(
        draft_length=draft_length,
        batch=batch,
        drafting=drafting,
        step_ns=figure(median_interval(step_values(costs), level=grid.confidence, seed=grid.seed)),
        ratio=ratio,
        acceptance=acceptance_figure(ratio, draft_length),
        waves=len(costs),
        requests=sum(cost.requests for cost in costs),
        steps=sum(cost.steps for cost in costs),
        drafted=drafted,
        prompt_tokens=costs[0].prompt_tokens,
        note=_note(draft_length, drafted),
    )


def _estimate_ratio(waves: WaveSet, costs: Sequence[WaveCost], draft_length: int, batch: int) -> Figure:
    grid = waves.grid
    if not draft_length:
        return Figure(value=1.0, reason="the ordinary step is what others are compared with")
    ordinary = step_values(waves.select(0, batch))
    return figure(
        median_ratio(
            step_values(costs),
            ordinary,
            extra_error=drift_error(waves, batch),
            level=grid.confidence,
            seed=grid.seed,
        )
    )


def _note(draft_length: int, drafted: float | None) -> str | None:
    if not draft_length:
        return None
    if drafted is None:
        return "nothing counts the drafts, so that all were made is not shown"
    if drafted < FULL_DRAFTS * draft_length:
        return f"only {drafted:.2f} of {draft_length} tokens were drafted a step: a full one costs more"
    return None


def _drift_ratio(waves: WaveSet, batch: int) -> float:
    ordinary = waves.select(0, batch)
    first, last = min(cost.start for cost in ordinary), max(cost.start for cost in ordinary)
    medians = [
        float(np.median(step_values(cost for cost in ordinary if cost.start == start)))
        for start in (first, last)
    ]
    return medians[1] / medians[0]


NO_DRAFTING_PAYS = "no drafting is quick enough: checking alone takes longer than the tokens are worth"
ASSUMPTIONS: dict[SplitSource, str] = {
    "rounds": "Drafting time is the engine's own record of each round. Verification is the rest of the step "
    "beyond an ordinary step of the same batch, sampling and scheduling included.",
    "device_timer": "Drafting time is the engine's device timer over a wave, divided by its steps; work "
    "outside the models' passes is not in it. Verification is the rest of the step beyond an ordinary step.",
    "ngram": "Drafting is told from verification by an assumption: an n-gram lookup makes its drafts at next "
    "to no cost, and an engine checks drafts at the same cost whoever made them. Whatever else the engine "
    "changes for lookup, such as its scheduling, is then counted as verification and taken off drafting.",
}
LOOKUP_ITSELF = (
    "The candidate drafts by lookup, whose own time is taken to be next to none: what its step costs beyond "
    "an ordinary one is counted as verification."
)


def estimate_splits(waves: WaveSet) -> tuple[StepSplit, ...]:
    """Return the split of every step with drafts whose parts are known."""
    splits = (
        _estimate_split(waves, length, batch)
        for length in sorted(waves.grid.draft_lengths)
        for batch in sorted(waves.grid.batches)
    )
    return tuple(split for split in splits if split is not None)


def _estimate_split(waves: WaveSet, draft_length: int, batch: int) -> StepSplit | None:
    own = waves.select(draft_length, batch)
    timed = [cost for cost in own if cost.draft_ns is not None]
    if len(timed) == len(own):
        return _split_timed(waves, own, draft_length, batch)
    if waves.is_lookup:
        none = Figure(value=0.0, reason="the lookup's own time is taken to be next to none")
        return _join(waves, draft_length, batch, source="ngram", drafting=none, rest=step_values(own))
    lookup = waves.select(draft_length, batch, "ngram")
    return _split_by_lookup(waves, own, lookup, draft_length, batch) if lookup else None


def _split_timed(waves: WaveSet, own: tuple[WaveCost, ...], draft_length: int, batch: int) -> StepSplit:
    drafts = [cost.draft_ns or 0.0 for cost in own]
    rest = [cost.step_ns - (cost.draft_ns or 0.0) for cost in own]
    source: SplitSource = "rounds" if all(cost.from_rounds for cost in own) else "device_timer"
    return _join(waves, draft_length, batch, source=source, drafting=_time_figure(waves, drafts), rest=rest)


def _split_by_lookup(
    waves: WaveSet,
    own: tuple[WaveCost, ...],
    lookup: tuple[WaveCost, ...],
    draft_length: int,
    batch: int,
) -> StepSplit:
    grid = waves.grid
    drafting = median_difference(step_values(own), step_values(lookup), level=grid.confidence, seed=grid.seed)
    return _join(
        waves, draft_length, batch, source="ngram", drafting=figure(drafting), rest=step_values(lookup)
    )


def _join(
    waves: WaveSet, draft_length: int, batch: int, *, source: SplitSource, drafting: Figure, rest: list[float]
) -> StepSplit:
    """Put a split together; `rest` is the step without its drafting, ns, one value a wave."""
    grid, ordinary = waves.grid, step_values(waves.select(0, batch))
    whole = median_interval(ordinary, level=grid.confidence, seed=grid.seed)
    checking = median_difference(
        rest,
        ordinary,
        extra_error=drift_error(waves, batch) * whole.value,
        level=grid.confidence,
        seed=grid.seed,
    )
    return StepSplit(
        draft_length=draft_length,
        batch=batch,
        source=source,
        ordinary_ns=figure(whole),
        verification_ns=figure(checking),
        draft_ns=drafting,
        draft_limit_ns=_limit(grid.acceptance, draft_length, whole.value, whole.value + checking.value),
    )


def _limit(acceptance: float, draft_length: int, ordinary_ns: float, verified_ns: float) -> Figure:
    tokens = expected_tokens(acceptance, draft_length)
    limit = break_even_draft_ns(tokens, ordinary_ns, verified_ns)
    return Figure(value=limit, reason=NO_DRAFTING_PAYS if limit is None else None)


def _time_figure(waves: WaveSet, values: list[float]) -> Figure:
    """Return the median of times of which some may be 0, as a lookup's are."""
    if min(values) > 0:
        return figure(median_interval(values, level=waves.grid.confidence, seed=waves.grid.seed))
    return figure(
        median_difference(values, [0.0] * len(values), level=waves.grid.confidence, seed=waves.grid.seed)
    )


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
    assumptions = [
        LOOKUP_ITSELF if is_lookup and source == "ngram" else ASSUMPTIONS[source] for source in sources
    ]
    from_stream = _FROM_ARRIVALS if synthetic else _FROM_CHUNKS
    return (_FROM_ROUNDS if from_rounds else from_stream, _INDEPENDENT, *assumptions, _CONTEXT)


def list_warnings(
    steps: Sequence[StepCost], drifts: Sequence[Drift], splits: Sequence[StepSplit]
) -> tuple[str, ...]:
    """Return what makes figures doubtful."""
    moved = [f"{write.change(drift.ratio)} at batch {drift.batch}" for drift in drifts if drift.is_large]
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
        if cell.arm == "candidate" and cell.acceptance is not None and cell.load in batches
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
