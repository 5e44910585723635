"""`results.knee` of a run: each arm's knee, the loads it rests on, and the arms against each other. Pure."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec

from draftproof.plan.knee import Knee, name_level
from draftproof.plan.schema import Plan
from draftproof.stats.knee import Bracket, Seen, find_bracket, ratio_limits, trials_to_show
from draftproof.verdict.figure import Figure
from draftproof.verdict.knee.levels import list_arms
from draftproof.verdict.knee.results import ArmKnee, KneePoint, KneeRatio, KneeSearch
from draftproof.verdict.knee.search import PointSeen, Search, replay
from draftproof.verdict.knee.turns import NS_PER_S, read_turns
from draftproof.verdict.knee.wording import (
    describe_knee,
    describe_ratio,
    describe_search,
    explain_missing,
    explain_point,
    list_notes,
)
from draftproof.verdict.pairs import COMPARISONS
from draftproof.verdict.run_data import RunData

_HOUR_S = 3600.0


def compute_knee(run: RunData) -> KneeSearch | None:
    """Return what the search of a run found, None where its plan has none."""
    plan, knee = run.plan, run.plan.knee
    if knee is None:
        return None
    search = replay(plan, run.items, read_turns(run))
    points = tuple(
        _describe_point(plan, knee, arm, point, search.points[arm, point])
        for arm in list_arms(plan)
        for point in range(len(knee.grid))
        if (arm, point) in search.points
    )
    arms = tuple(_find_knee(plan, knee, search, arm, points) for arm in list_arms(plan))
    ratios = _compare(arms)
    found = KneeSearch(
        axis=knee.axis,
        unit=knee.unit,
        grid=knee.grid,
        target=knee.on_time_share,
        confidence=plan.comparison.confidence,
        look_level=knee.look_level(plan.comparison.confidence),
        budget_s=knee.time_budget_s,
        spent_s=search.spent_s,
        turns=sum(len(look.block.arm_order) for look in search.looks),
        ended=search.ended,
        points=points,
        arms=arms,
        ratios=ratios,
        sentence="",
        next_s=search.next_s,
    )
    return msgspec.structs.replace(found, sentence=describe_search(found), notes=list_notes(found))


def _describe_point(plan: Plan, knee: Knee, arm: str, point: int, seen: PointSeen) -> KneePoint:
    attempted = sum(len(turn.on_time) for turn in seen.valid)
    good, window_s = sum(turn.good for turn in seen.valid), _window_s(seen)
    needed = None if seen.standing != "open" else _requests_needed(plan, knee, seen)
    minimum = plan.comparison.minimum_prompts
    return KneePoint(
        arm=arm,
        load=knee.grid[point],
        level=name_level(knee.grid[point]),
        standing=seen.standing,
        looks=len(seen.turns),
        invalid_looks=len(seen.turns) - len(seen.valid),
        attempted=attempted,
        unjudged=sum(turn.on_time.count(None) for turn in seen.valid),
        prompts=seen.prompts,
        share=_share_figure(plan, knee, seen, needed),
        effective=seen.share.effective if seen.share else None,
        saturated=seen.saturated,
        reason=explain_point(seen, minimum, knee.on_time_share, _fewest(plan, knee)),
        good=good,
        window_s=window_s,
        goodput_rps=good / window_s if window_s else None,
        completed_rps=_completed_rps(seen),
        in_flight=_mean_in_flight(seen),
        conversations_per_device_hour=_conversations(plan, knee, arm, seen),
    )


def _fewest(plan: Plan, knee: Knee) -> int:
    """Return the fewest independent requests that show the target, all of them on time."""
    return trials_to_show(knee.on_time_share, knee.look_level(plan.comparison.confidence))


def _share_figure(plan: Plan, knee: Knee, seen: PointSeen, needed: int | None) -> Figure:
    level = knee.look_level(plan.comparison.confidence)
    if seen.share is None:
        return Figure(
            value=None, level=level, needed=needed, reason="no request of a valid turn can be judged"
        )
    share = seen.share
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=share.n, needed=needed)


def _window_s(seen: PointSeen) -> float | None:
    """Return what the counted requests of the valid turns filled, from the first one due to the last end.

    Of the wait for the last answers they fill a part alone, since the load goes on behind them.
    """
    return sum(turn.filled_ns for turn in seen.valid) / NS_PER_S or None


def _completed_rps(seen: PointSeen) -> float | None:
    span_s = sum(turn.due_ns - turn.from_ns for turn in seen.valid) / NS_PER_S
    return sum(turn.completed for turn in seen.valid) / span_s if span_s > 0 else None


def _mean_in_flight(seen: PointSeen) -> tuple[float, float] | None:
    if not seen.valid:
        return None
    ends = [turn.in_flight for turn in seen.valid]
    return sum(one for one, _ in ends) / len(ends), sum(one for _, one in ends) / len(ends)


def _conversations(plan: Plan, knee: Knee, arm: str, seen: PointSeen) -> Figure:
    """Return completed conversations per device and hour.

    The interval is that of the on-time share, as a factor: the pace at which conversations come is known.
    """
    window_s, share = _window_s(seen), seen.share
    done = sum(turn.conversations for turn in seen.valid)
    if window_s is None or share is None:
        return Figure(value=None, reason="no valid turn")
    rate = done / window_s * _HOUR_S / _devices(plan, arm)
    if not share.value:
        return Figure(value=rate, n=done)
    factors = share.low / share.value, share.high / share.value
    return Figure(
        value=rate,
        low=rate * factors[0],
        high=rate * factors[1],
        level=knee.look_level(plan.comparison.confidence),
        n=done,
    )


def _requests_needed(plan: Plan, knee: Knee, seen: PointSeen) -> int | None:
    """Return about how many more requests would tell the share from the target, if it stays what it is.

    From the normal interval at the effective number of requests; None where the share is the target.
    """
    target, level = knee.on_time_share, knee.look_level(plan.comparison.confidence)
    if seen.share is None:
        return trials_to_show(target, level)
    distance, each = abs(seen.share.value - target), seen.share.n / seen.share.effective
    if distance < 1e-3:
        return None
    quantile = NormalDist().inv_cdf(0.5 + level / 2)
    effective = max((quantile / distance) ** 2 * target * (1 - target), trials_to_show(target, level))
    return max(1, math.ceil(effective * each) - seen.share.n)


def _find_knee(plan: Plan, knee: Knee, search: Search, arm: str, points: Sequence[KneePoint]) -> ArmKnee:
    own = {point: seen for (name, point), seen in search.points.items() if name == arm}
    bracket = find_bracket({point: Seen(seen.standing, None, len(seen.turns)) for point, seen in own.items()})
    holds, fails = _load(knee, bracket.holds), _load(knee, bracket.fails)
    row = next((one for one in points if (one.arm, one.load) == (arm, holds)), None)
    found = ArmKnee(
        arm=arm,
        holds=holds,
        fails=fails,
        devices=_devices(plan, arm),
        text="",
        reason=explain_missing(
            knee, bracket, [one for one in points if one.arm == arm], search.ended, _fewest(plan, knee)
        ),
        needed=_needed_between(bracket, arm, points),
        is_monotone=bracket.is_monotone,
        goodput_rps=row.goodput_rps if row else None,
        conversations_per_device_hour=row.conversations_per_device_hour
        if row
        else Figure(value=None, reason="no load was shown to hold"),
    )
    return msgspec.structs.replace(found, text=describe_knee(found, knee.unit))


def _needed_between(bracket: Bracket, arm: str, points: Sequence[KneePoint]) -> int | None:
    """Return what the open point below the knee's upper end would take, where an end is not shown."""
    if bracket.holds is not None and bracket.fails is not None:
        return None
    opened = [one.share.needed for one in points if one.arm == arm and one.standing == "open"]
    told = [one for one in opened if one is not None]
    return min(told, default=None)


def _compare(arms: Sequence[ArmKnee]) -> tuple[KneeRatio, ...]:
    by_name = {one.arm: one for one in arms}
    found = []
    for arm, versus in COMPARISONS:
        if arm in by_name and versus in by_name:
            mine, other = by_name[arm], by_name[versus]
            low, high = ratio_limits((mine.holds, mine.fails), (other.holds, other.fails))
            text = describe_ratio(arm, versus, low, high)
            found.append(KneeRatio(arm=arm, versus=versus, low=low, high=high, text=text))
    return tuple(found)


def _load(knee: Knee, point: int | None) -> float | None:
    return None if point is None else knee.grid[point]


def _devices(plan: Plan, arm: str) -> int:
    """Return the devices in an arm's budget; the second baseline is the baseline once more."""
    named = {"candidate": plan.arms.candidate, "alternative": plan.arms.alternative}.get(arm)
    return (named or plan.arms.baseline).devices
