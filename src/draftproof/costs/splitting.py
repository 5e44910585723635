"""Drafting apart from verification: from the engine's own clock, else by taking n-gram steps off. Pure.

A step with drafts = an ordinary step + checking the drafts + making them. Lookup makes its drafts at next to
no cost, so an n-gram step less an ordinary one is the checking, and a drafter's step less an n-gram step of
the same length and batch is its drafting.
"""

from draftproof.costs.estimate import WaveSet, drift_error, figure, step_values
from draftproof.costs.results import SplitSource, StepSplit
from draftproof.costs.waves import WaveCost
from draftproof.metrics.break_even import break_even_draft_ns, expected_tokens
from draftproof.stats.two_samples import median_difference, median_interval
from draftproof.verdict.results import Figure

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
    """Return the split of every step with drafts whose parts can be told."""
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
