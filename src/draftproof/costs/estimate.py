"""From the costs of single waves to step costs with intervals and what would break even. Pure, seeded.

A wave is one observation: its requests share every step. Drift between the ordinary starts at the beginning
and the end widens every interval that compares with them.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from draftproof.costs.results import Drift, StepCost
from draftproof.costs.schedule import CostGrid, Start
from draftproof.costs.waves import WaveCost
from draftproof.engines.synthetic import Drafting
from draftproof.metrics.break_even import break_even_acceptance
from draftproof.stats.two_samples import Estimate, median_interval, median_ratio
from draftproof.verdict.results import Figure

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
    return tuple(_estimate_drift(waves, batch) for batch in sorted(waves.grid.batches))


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
    drafted = _mean(cost.drafted for cost in costs) if draft_length else None
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


def _estimate_drift(waves: WaveSet, batch: int) -> Drift:
    ratio = _drift_ratio(waves, batch)
    return Drift(batch=batch, ratio=ratio, is_large=abs(ratio - 1) > LARGE_DRIFT)


def _drift_ratio(waves: WaveSet, batch: int) -> float:
    ordinary = waves.select(0, batch)
    first, last = min(cost.start for cost in ordinary), max(cost.start for cost in ordinary)
    medians = [
        float(np.median(step_values(cost for cost in ordinary if cost.start == start)))
        for start in (first, last)
    ]
    return medians[1] / medians[0]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
