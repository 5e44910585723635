"""Where the share of on-time requests falls below a target: which load to probe next, and what is known.

Loads are indices into one geometric grid that all arms share. An arm goes up by doublings until it fails,
then its bracket is halved, first where open points lean; then open points are probed again. What comes next
is a function of what was seen, so a search that was broken off goes on as it would have gone.
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

TrialOutcome = Literal["holds", "fails", "open"]


class Seen(NamedTuple):
    """What an arm showed at a point: `share` leans it one way where it is open; `trials` were taken."""

    standing: TrialOutcome
    share: float | None
    trials: int


class Step(NamedTuple):
    """The next thing to do: these arms at this point of the grid."""

    point: int
    arms: tuple[str, ...]


class Rules(NamedTuple):
    """The shape of a search: points of the grid, points in a doubling, looks at a point, and the target."""

    points: int
    per_doubling: int
    trials: int
    target: float


class Bracket(NamedTuple):
    """The highest point that holds and the lowest above it that fails; None where there is none.

    `is_monotone` is False where a point holds above one that fails: such a point does not count.
    """

    holds: int | None
    fails: int | None
    is_monotone: bool = True


Points = Mapping[int, Seen]


def geometric_grid(low: float, high: float, per_doubling: int, *, whole: bool = False) -> tuple[float, ...]:
    """Return the loads from `low` up to `high`, `per_doubling` in each doubling; `whole` ones each once.

    Raises:
        ValueError: the ends are not positive and in order.
    """
    if not 0 < low <= high or per_doubling < 1:
        raise ValueError("a grid needs 0 < low <= high and a point in each doubling")
    count = math.floor(per_doubling * math.log2(high / low) + 1e-9) + 1
    values = [low * 2 ** (index / per_doubling) for index in range(count)]
    if whole:
        return tuple(dict.fromkeys(float(round(value)) for value in values))
    return tuple(float(f"{value:.4g}") for value in values)


def trials_to_show(target: float, level: float) -> int:
    """Return the fewest independent trials that show a share of `target` if every single one succeeds.

    The lower limit of n of n is tail^(1/n), which reaches the target at n = log(tail) / log(target).
    """
    return math.ceil(math.log((1.0 - level) / 2.0) / math.log(target) - 1e-9)


def list_ladder(points: int, per_doubling: int) -> tuple[int, ...]:
    """Return the points by which an arm goes up: every doubling, and the last."""
    return tuple(dict.fromkeys([*range(0, points, per_doubling), points - 1]))


def evaluate_share(low: float, high: float, target: float) -> TrialOutcome:
    """Say what an interval of the on-time share shows."""
    if low >= target:
        return "holds"
    return "fails" if high < target else "open"


def find_bracket(points: Points) -> Bracket:
    """Return what is known of an arm's knee: nothing above the lowest failure counts as held."""
    fails = min((at for at, one in points.items() if one.standing == "fails"), default=None)
    held = [at for at, one in points.items() if one.standing == "holds"]
    below = [at for at in held if fails is None or at < fails]
    return Bracket(max(below, default=None), fails, is_monotone=len(below) == len(held))


def choose_step(seen: Mapping[str, Points], rules: Rules) -> Step | None:
    """Return the next step of a search, None where every arm's knee is as narrow as it can be shown.

    The lowest point that an arm asks for is next. Every arm of which that point can still tell something
    takes part, so that arms are compared at the same load, with the same requests and at the same time.
    """
    wishes = [want for points in seen.values() if (want := _next_point(points, rules)) is not None]
    if not wishes:
        return None
    point = min(wishes)
    return Step(point, tuple(arm for arm, points in seen.items() if _may_tell(points, point, rules)))


def ratio_limits(
    arm: tuple[float | None, float | None], versus: tuple[float | None, float | None]
) -> tuple[float | None, float | None]:
    """Return the least and the greatest ratio of two knees, each in [low, high); None for an open end."""
    low = None if arm[0] is None or versus[1] is None else arm[0] / versus[1]
    high = None if arm[1] is None or not versus[0] else arm[1] / versus[0]
    return low, high


def _next_point(points: Points, rules: Rules) -> int | None:
    bracket = find_bracket(points)
    inside = _inside(bracket, rules)
    if bracket.fails is None:
        ladder = list_ladder(rules.points, rules.per_doubling)
        climb = next((at for at in ladder if at in inside and at not in points), None)
        if climb is not None:
            return climb
    fresh = (_halve(_lean(points, inside, rules.target), points), _halve(inside, points))
    found = next((at for at in fresh if at is not None), None)
    return found if found is not None else _trial_again(points, inside, rules.trials)


def _inside(bracket: Bracket, rules: Rules) -> range:
    """Return the points between what holds and what fails."""
    low = -1 if bracket.holds is None else bracket.holds
    return range(low + 1, rules.points if bracket.fails is None else bracket.fails)


def _lean(points: Points, inside: range, target: float) -> range:
    """Narrow a bracket by where its open points lean, without taking that for shown."""
    low, high = inside.start, inside.stop
    for at in inside:
        one = points.get(at)
        if one is None or one.share is None:
            continue
        if one.share < target:
            high = at
            break
        low = at + 1
    return range(low, high)


def _halve(inside: range, points: Points) -> int | None:
    """Return the middle point of those that nobody has looked at, None where there is none."""
    fresh = [at for at in inside if at not in points]
    return fresh[(len(fresh) - 1) // 2] if fresh else None


def _trial_again(points: Points, inside: range, trials: int) -> int | None:
    """Return the open point that was looked at least, the lowest of several."""
    left = [(points[at].trials, at) for at in inside if at in points and points[at].trials < trials]
    return min(left)[1] if left else None


def _may_tell(points: Points, point: int, rules: Rules) -> bool:
    one = points.get(point)
    if point not in _inside(find_bracket(points), rules):
        return False
    return one is None or (one.standing == "open" and one.trials < rules.trials)
