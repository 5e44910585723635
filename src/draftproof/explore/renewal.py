"""How many rounds an answer takes with a drafter, from the chance that each draft is kept. Pure.

The answer is fixed: it is the target's own. A round that starts at s and keeps m drafts commits them and the
target's token behind them, which is the answer's at s + m: the next round starts at s + m + 1. So the starts
are a renewal process, and one walk over them gives every expectation. Given the answer, drafts are kept
independently (Leviathan et al. 2023, algorithm 1): draft j of a round that starts at s with probability
min(1, draft / target) of the answer's token.

What pools them over answers, with prompts as sampling units, and what step costs make of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.core.records import ScreenedAnswer
from draftproof.explore.results import Costs
from draftproof.judge.results.run import Figure
from draftproof.judge.stats.totals import ratio_of_totals, sum_by_cluster

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectations at one draft length; the names are those of `ScreenedAnswer`."""

    rounds: float
    drafting_rounds: float
    drafted: float
    reached: tuple[float, ...]
    kept: tuple[float, ...]


def expect_rounds(kept: Floats, made: Ints, lengths: Sequence[int]) -> list[Expected]:
    """Return what an answer takes at each of some draft lengths.

    `kept`: [starts, drafts], the probability that draft j of a round that starts there is kept if those
    before it are; 0 beyond the answer's end. `made`: [starts], the drafts of a round of the longest length; a
    shorter one drafts the first of them. Raises ValueError: the shapes do not fit, or a number is no
    probability.
    """
    starts, longest = kept.shape
    if made.shape != (starts,) or not bool(np.all((kept >= 0) & (kept <= 1))) or max(lengths) > longest:
        raise ValueError(f"probabilities {kept.shape}, drafts {made.shape} and lengths {lengths} do not fit")
    limits = np.minimum(made[:, None], np.asarray(lengths))  # [starts, lengths]
    depth = np.arange(longest + 1)
    reach = np.concatenate([np.ones((starts, 1)), np.cumprod(kept, axis=1)], axis=1)  # [starts, drafts + 1]
    arrive = np.where(depth <= limits[..., None], reach[:, None, :], 0.0)  # [starts, lengths, drafts + 1]
    visits = _walk(arrive)
    weighted = visits[..., None] * arrive
    exists = depth[:-1] < limits[..., None]
    reached, held = (weighted[..., :-1] * exists).sum(0), weighted[..., 1:].sum(0)
    return [
        Expected(
            rounds=float(visits[:, at].sum()),
            drafting_rounds=float(visits[limits[:, at] > 0, at].sum()),
            drafted=float((visits[:, at] * limits[:, at]).sum()),
            reached=tuple(reached[at, :length].tolist()),
            kept=tuple(held[at, :length].tolist()),
        )
        for at, length in enumerate(lengths)
    ]


def _walk(arrive: Floats) -> Floats:
    """Return [starts, lengths], the probability that a round starts there.

    `arrive`: [starts, lengths, drafts + 1], the probability that a round keeps at least so many drafts.
    """
    starts, lengths, depths = arrive.shape
    exactly = arrive.copy()
    exactly[..., :-1] -= arrive[..., 1:]  # so many drafts and no more
    onward = exactly.transpose(0, 2, 1)
    visits = np.zeros((starts + depths, lengths))
    visits[0] = 1.0
    for start in range(starts):
        visits[start + 1 : start + depths + 1] += visits[start] * onward[start]
    return visits[:starts]


class ScreenedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A drafter at a draft length over the answers of a segment, pooled.

    `tokens_per_round`: tokens after the first over decode steps (block efficiency); its interval is over
    prompts. `acceptance`: kept over drafted; `position_acceptance[i]`: of the rounds that reach draft i, the
    share that keeps it, None where none does. `ratios`: batch size -> predicted time per token over that of
    ordinary decoding, where step costs are known.
    """

    segment: str
    method: str
    draft_length: int
    prompts: int
    tokens: int
    rounds: float
    rounds_per_answer: float
    tokens_per_round: Figure
    acceptance: float | None
    position_acceptance: tuple[float | None, ...]
    ratios: dict[int, Figure] = {}


def pool_answers(answers: Iterable[ScreenedAnswer], costs: Costs | None = None) -> tuple[ScreenedCell, ...]:
    """Return the cells of all segments, and of all answers together first, in the order of the answers."""
    groups: dict[tuple[str, str, int], list[ScreenedAnswer]] = {}
    for one in answers:
        for segment in (EVERYTHING, one.segment):
            groups.setdefault((segment, one.method, one.draft_length), []).append(one)
    order = {EVERYTHING: 0}
    for segment, _, _ in groups:
        order.setdefault(segment, len(order))
    found = sorted(groups, key=lambda key: order[key[0]])  # a stable order within a segment
    return tuple(_pool(key, groups[key], costs) for key in found)


def _pool(key: tuple[str, str, int], answers: Sequence[ScreenedAnswer], costs: Costs | None) -> ScreenedCell:
    segment, method, length = key
    reached, kept = (
        [sum(column) for column in zip(*(getattr(one, name) for one in answers), strict=True)]
        for name in ("reached", "kept")
    )
    tokens, rounds = sum(one.tokens for one in answers), sum(one.rounds for one in answers)
    drafted = sum(one.drafted for one in answers)
    return ScreenedCell(
        segment=segment,
        method=method,
        draft_length=length,
        prompts=len({one.item_id for one in answers}),
        tokens=tokens,
        rounds=rounds,
        rounds_per_answer=rounds / len(answers),
        tokens_per_round=_ratio([one.tokens for one in answers], [one.rounds for one in answers], answers),
        acceptance=sum(kept) / drafted if drafted else None,
        position_acceptance=tuple(b / a if a else None for a, b in zip(reached, kept, strict=True)),
        ratios={} if costs is None else _predict(answers, method, length, costs),
    )


def _ratio(above: Sequence[float], below: Sequence[float], answers: Sequence[ScreenedAnswer]) -> Figure:
    found = ratio_of_totals(sum_by_cluster(above, below, [one.item_id for one in answers]))
    return Figure(
        value=found.value,
        low=found.low,
        high=found.high,
        level=found.level,
        n=found.n_clusters,
        reason=found.reason,
    )


def _predict(answers: Sequence[ScreenedAnswer], method: str, length: int, costs: Costs) -> dict[int, Figure]:
    """Return batch -> predicted time per token over ordinary decoding; a batch without costs is left out.

    A round without drafts costs an ordinary step. One with fewer drafts than the length costs what lies
    between the steps that were timed.
    """
    tokens, ratios = [float(one.tokens) for one in answers], {}
    for batch in costs.batches:
        prices = price_steps(costs, method, batch)
        if max(prices) >= length:
            spent = [_spend(one, prices) for one in answers]
            ratios[batch] = _ratio(spent, tokens, answers)
    return ratios


def _spend(one: ScreenedAnswer, prices: Mapping[int, float]) -> float:
    """Return the time of an answer's rounds, in ordinary steps."""
    if not one.drafting_rounds:
        return one.rounds
    step = np.interp(one.drafted / one.drafting_rounds, list(prices), list(prices.values()))
    return one.rounds - one.drafting_rounds + one.drafting_rounds * float(step)


def price_steps(costs: Costs, method: str, batch: int) -> dict[int, float]:
    """Return draft length -> step over ordinary step for a method at a batch size, lengths in rising order.

    Lookup is priced by the steps of lookup where those were timed beside the candidate's own. Nothing but
    length 0 where the method was not timed.
    """
    family = method.partition(":")[0]
    drafting = "own" if costs.method.startswith(family) else family
    found = {
        step.draft_length: step.ratio.value
        for step in costs.steps
        if step.batch == batch and step.drafting == drafting and step.draft_length
    }
    return {0: 1.0} | {length: value for length, value in sorted(found.items()) if value is not None}


def choose_length(cells: Sequence[ScreenedCell], batch: int) -> ScreenedCell | None:
    """Return the cell of the draft length with the lowest predicted ratio at a batch, None without any."""
    priced = [one for one in cells if batch in one.ratios and one.ratios[batch].value is not None]
    return min(priced, key=lambda one: one.ratios[batch].value or 0.0, default=None)
