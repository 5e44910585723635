"""The search as the journal tells it: which looks were taken, what they showed, and what comes next.

Pure. The search is replayed from its beginning, and each step is chosen from the steps before it alone, so a
run that was broken off goes on where it was, and a report finds the same steps as the run did.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.plan.schema import Plan
from draftproof.stats.clustered_share import ClusteredShare, clustered_share, correlation_time
from draftproof.stats.knee import Rules, Seen, Standing, choose_step, judge_share
from draftproof.verdict.knee.levels import Look, count_blocks, list_arms, list_items, plan_look
from draftproof.verdict.knee.turns import TurnSeen
from draftproof.verdict.run_data import TurnKey
from draftproof.workload.items import Item

# Of less than this share of a deadline it makes no difference how much: no queue is near it.
FAR_USE = 0.3
Place = tuple[str, int]  # arm, point of the grid
Ending = Literal["settled", "budget", "unfinished"]


class PointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm showed at one point: its turns, the share of all valid ones, and where it stands."""

    turns: tuple[TurnSeen, ...]
    share: ClusteredShare | None
    correlation: float
    standing: Standing
    saturated: str | None
    prompts: int

    @property
    def valid(self) -> tuple[TurnSeen, ...]:
        """The turns in which the client kept its own limits."""
        return tuple(turn for turn in self.turns if turn.is_valid)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search is. `next` is the look to be taken or finished, None at the end."""

    looks: tuple[Look, ...]
    points: dict[Place, PointSeen]
    next: Look | None
    spent_s: float
    ended: Ending


def replay(plan: Plan, items: Sequence[Item], turns: Mapping[TurnKey, TurnSeen]) -> Search:
    """Return how far a search is.

    Args:
        plan: the plan, which has a search.
        items: the items of the run.
        turns: what was seen of the search, see `read_turns`.
    """
    knee, arms = plan.knee, list_arms(plan)
    assert knee is not None  # noqa: S101 - who asks for the search has one
    sizes = {item.id: item.turns for item in list_items(plan, items)}
    rules = Rules(len(knee.grid), knee.points_per_doubling, knee.looks, knee.on_time_share)
    points: dict[Place, PointSeen] = {}
    looks: list[Look] = []
    spent_s, index = 0.0, count_blocks(plan, items)
    while True:
        step = choose_step(_standings(arms, points), rules)
        if step is None or spent_s >= knee.time_budget_s:
            ended: Ending = "settled" if step is None else "budget"
            return Search(looks=tuple(looks), points=points, next=None, spent_s=spent_s, ended=ended)
        number = sum(look.point == step.point for look in looks)
        look = plan_look(
            plan, items, point=step.point, number=number, arms=step.arms, index=index + len(looks)
        )
        taken = _find_taken(look, turns, sizes)
        if len(taken) < len(step.arms):
            return Search(looks=tuple(looks), points=points, next=look, spent_s=spent_s, ended="unfinished")
        looks.append(look)
        for arm, turn in taken.items():
            before = points.get((arm, step.point))
            points[arm, step.point] = judge_point(plan, (*(before.turns if before else ()), turn))
            spent_s += turn.turn_s


def judge_point(plan: Plan, turns: Sequence[TurnSeen]) -> PointSeen:
    """Return what an arm's turns at one load show together."""
    knee = plan.knee
    assert knee is not None  # noqa: S101 - as in `replay`
    valid = [turn for turn in turns if turn.is_valid]
    told = [
        [(fine, use, prompt) for fine, use, prompt in zip(*turn[:3], strict=True) if fine is not None]
        for turn in valid
    ]
    prompts = [prompt for turn in told for _, _, prompt in turn]
    correlation = correlation_time([[max(use, FAR_USE) for _, use, _ in turn] for turn in told])
    share = clustered_share(
        [float(fine) for turn in told for fine, _, _ in turn],
        prompts,
        knee.look_level(plan.comparison.confidence),
        correlation_time=correlation,
    )
    saturated = next((turn.saturated for turn in valid if turn.saturated), None)
    enough = len(set(prompts)) >= plan.comparison.minimum_prompts
    return PointSeen(
        turns=tuple(turns),
        share=share,
        correlation=correlation,
        standing=_stand(share if enough else None, saturated, knee.on_time_share),
        saturated=saturated,
        prompts=len(set(prompts)),
    )


def _stand(share: ClusteredShare | None, saturated: str | None, target: float) -> Standing:
    if saturated is not None:
        return "fails"
    return "open" if share is None else judge_share(share.low, share.high, target)


def _standings(arms: Sequence[str], points: Mapping[Place, PointSeen]) -> dict[str, dict[int, Seen]]:
    found: dict[str, dict[int, Seen]] = {arm: {} for arm in arms}
    for (arm, point), seen in points.items():
        value = seen.share.value if seen.share else None
        found[arm][point] = Seen(seen.standing, value, len(seen.turns))
    return found


def _find_taken(
    look: Look, turns: Mapping[TurnKey, TurnSeen], sizes: Mapping[str, int]
) -> dict[str, TurnSeen]:
    """Return the arms whose turn is over with every request of it recorded."""
    wanted = sum(sizes[item_id] for item_id in look.block.item_ids)
    keys = {arm: (look.block.load, look.block.index, arm) for arm in look.block.arm_order}
    return {
        arm: turns[key]
        for arm, key in keys.items()
        if key in turns and turns[key].is_complete and len(turns[key].on_time) >= wanted
    }
