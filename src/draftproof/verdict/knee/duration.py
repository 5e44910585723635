"""How long the next look of a search may take, from those before it. Pure."""

from collections.abc import Mapping, Sequence

from draftproof.plan.knee import Knee
from draftproof.stats.knee import Step
from draftproof.verdict.knee.turns import NS_PER_S, TurnSeen

Place = tuple[str, int]  # arm, point of the grid
Seen = Mapping[Place, Sequence[TurnSeen]]


def estimate_look_s(knee: Knee, step: Step, seen: Seen) -> float:
    """Return about how many seconds the turns of a look take, one arm after the other.

    An arm that was at this load takes as long as its longest turn there. Else its requests come over the time
    that the load says, and leading up to them and waiting for the last answers takes as long as at the
    nearest loads that it was at; nothing is added before it was at any.

    Args:
        knee: the search.
        step: the look.
        seen: every turn so far.
    """
    return sum(_turn_s(knee, arm, step.point, seen) for arm in step.arms)


def _turn_s(knee: Knee, arm: str, point: int, seen: Seen) -> float:
    if here := seen.get((arm, point)):
        return max(turn.turn_s for turn in here)
    load, near = knee.grid[point], _nearest(arm, point, seen)
    requests = knee.count_requests(load)
    if knee.axis == "concurrency":
        return requests * max((turn.turn_s / len(turn.on_time) for turn in near), default=0.0)
    return requests / load + max((_beside_s(turn) for turn in near), default=0.0)


def _nearest(arm: str, point: int, seen: Seen) -> list[TurnSeen]:
    """Return an arm's turns at the nearest loads below and above a point."""
    at = [place for name, place in seen if name == arm]
    near = (
        max((one for one in at if one < point), default=None),
        min((one for one in at if one > point), default=None),
    )
    return [turn for one in near if one is not None for turn in seen[arm, one]]


def _beside_s(turn: TurnSeen) -> float:
    """Return what a turn took beside the time over which its requests came."""
    return max(turn.turn_s - (turn.due_ns - turn.from_ns) / NS_PER_S, 0.0)
