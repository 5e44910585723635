"""`results.knee` of a run: each arm's knee, the loads it rests on, and the arms against each other. Pure.

What a knee search may take and what it may miss, said before anything is measured. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.judge.knee.search import PointSeen, Search, replay
from draftproof.judge.knee.trials import read_turns
from draftproof.judge.knee.wording import (
    describe_knee,
    describe_ratio,
    describe_search,
    explain_missing,
    explain_point,
    list_notes,
    write_load,
)
from draftproof.judge.observe.levels import list_arms
from draftproof.judge.observe.pairs import COMPARISONS
from draftproof.judge.observe.run_data import RunData
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeRatio, KneeSearch
from draftproof.judge.stats.knee import Bracket, Seen, find_bracket, list_ladder, ratio_limits, trials_to_show
from draftproof.plan.knee import Knee, name_level
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item

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
    level, valid, share = knee.look_level(plan.comparison.confidence), seen.valid, seen.share
    good, done = sum(turn.good for turn in valid), sum(turn.conversations for turn in valid)
    # Of the wait for the last answers the counted requests fill a part alone: the load goes on behind them.
    window_s = sum(turn.filled_ns for turn in valid) / NS_PER_S or None
    due_s = sum(turn.due_ns - turn.from_ns for turn in valid) / NS_PER_S
    in_flight = [sum(turn.in_flight[end] for turn in valid) / max(len(valid), 1) for end in (0, 1)]
    needed = _requests_needed(knee, seen, level) if seen.standing == "open" else None
    if share is None:
        why = "no request of a valid turn can be judged"
        figure = Figure(value=None, level=level, needed=needed, reason=why)
    else:
        low, high = share.low, share.high
        figure = Figure(value=share.value, low=low, high=high, level=level, n=share.n, needed=needed)
    per_device = Figure(value=None, reason="no valid turn")
    if window_s is not None and share is not None:
        # The interval is that of the on-time share: the pace at which conversations come is known.
        rate = done / window_s * _HOUR_S / _devices(plan, arm)
        per_device = Figure(value=rate, n=done)
        if share.value:
            low, high = rate * (share.low / share.value), rate * (share.high / share.value)
            per_device = Figure(value=rate, low=low, high=high, level=level, n=done)
    return KneePoint(
        arm=arm,
        load=knee.grid[point],
        level=name_level(knee.grid[point]),
        standing=seen.standing,
        looks=len(seen.turns),
        invalid_looks=len(seen.turns) - len(valid),
        attempted=sum(len(turn.on_time) for turn in valid),
        unjudged=sum(turn.on_time.count(None) for turn in valid),
        prompts=seen.prompts,
        share=figure,
        effective=share.effective if share else None,
        saturated=seen.saturated,
        reason=explain_point(
            seen,
            plan.comparison.minimum_prompts,
            knee.on_time_share,
            trials_to_show(knee.on_time_share, level),
        ),
        good=good,
        window_s=window_s,
        goodput_rps=good / window_s if window_s else None,
        completed_rps=sum(turn.completed for turn in valid) / due_s if due_s > 0 else None,
        in_flight=(in_flight[0], in_flight[1]) if valid else None,
        conversations_per_device_hour=per_device,
    )


def _requests_needed(knee: Knee, seen: PointSeen, level: float) -> int | None:
    """Return about how many more requests would tell the share from the target, if it stays what it is.

    From the normal interval at the effective number of requests; None where the share is the target.
    """
    target = knee.on_time_share
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
    holds, fails = (None if at is None else knee.grid[at] for at in (bracket.holds, bracket.fails))
    fewest = trials_to_show(knee.on_time_share, knee.look_level(plan.comparison.confidence))
    row = next((one for one in points if (one.arm, one.load) == (arm, holds)), None)
    found = ArmKnee(
        arm=arm,
        holds=holds,
        fails=fails,
        devices=_devices(plan, arm),
        text="",
        reason=explain_missing(
            knee, bracket, [one for one in points if one.arm == arm], search.ended, fewest
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


def _devices(plan: Plan, arm: str) -> int:
    """Return the devices in an arm's budget; the second baseline is the baseline once more."""
    named = {"candidate": plan.arms.candidate, "alternative": plan.arms.alternative}.get(arm)
    return (named or plan.arms.baseline).devices


FEW_DEADLINES = 5.0


def describe_outlook(plan: Plan, items: Sequence[Item]) -> tuple[str, ...]:
    """Return a sentence on the search of a plan and one on each thing that it will miss; none without one."""
    return () if plan.knee is None else (_describe(plan, plan.knee), *_warn(plan, plan.knee, items))


def _describe(plan: Plan, knee: Knee) -> str:
    grid, arms = knee.grid, len(list_arms(plan))
    loads = f"{len(grid)} loads from {write_load(grid[0])} to {write_load(grid[-1])} {knee.unit}"
    text = f"knee search: {loads}, {arms} arms"
    if knee.axis == "rps":
        ladder = [grid[point] for point in list_ladder(len(grid), knee.points_per_doubling)]
        climb_s = arms * sum(knee.count_requests(load) / load for load in ladder)
        text += f"; once up the doublings takes at least {_minutes(climb_s)} if every load holds"
    return f"{text}; no look is begun that by the estimate would end after {_minutes(knee.time_budget_s)}."


def _warn(plan: Plan, knee: Knee, items: Sequence[Item]) -> Iterator[str]:
    yield from _warn_of_looks(plan, knee)
    yield from _warn_of_prompts(plan, knee, items)
    yield from _warn_of_times(plan, knee)


def _warn_of_looks(plan: Plan, knee: Knee) -> Iterator[str]:
    """Say where a look shows nothing although every request is on time, and what would be enough."""
    wanted = trials_to_show(knee.on_time_share, knee.look_level(plan.comparison.confidence))
    short = [load for load in knee.grid if knee.count_requests(load) < wanted]
    if not short:
        return
    fewest = knee.count_requests(short[0])
    looks = -(-wanted // fewest)
    yield (
        f"knee: {wanted:,} requests, each independent of the others and on time, are the fewest that show an "
        f"on-time share of {100 * knee.on_time_share:g}%, and one look at {write_load(short[0])} {knee.unit} "
        f"has {fewest:,}: that load does not hold before look {looks} of {knee.looks}. All looks together "
        f"have {knee.looks * fewest:,} requests, which are worth fewer where late ones come in runs: "
        f"set knee.requests = {wanted:,} at least, several times as many for loads close to the knee."
    )


def _warn_of_prompts(plan: Plan, knee: Knee, items: Sequence[Item]) -> Iterator[str]:
    """Say where all looks at a load ask too few prompts for any load to be judged."""
    named, floor = plan.comparison.cluster_by, plan.comparison.minimum_prompts
    labels = {item.segments.get(named, item.id) if named else item.id for item in items}
    most = min(len(labels), knee.looks * knee.count_requests(knee.grid[-1]))
    if most < floor:
        yield (
            f"knee: looks ask {most} different prompts, and a load is judged from {floor} on "
            "(comparison.minimum_prompts): no load can hold; choose more items."
        )


def _warn_of_times(plan: Plan, knee: Knee) -> Iterator[str]:
    if knee.axis != "rps":
        return
    first_s = len(list_arms(plan)) * knee.count_requests(knee.grid[0]) / knee.grid[0]
    if first_s > knee.time_budget_s:
        yield (
            f"knee.time_budget_s = {knee.time_budget_s:g} is less than the first look takes, {first_s:,.0f} "
            "s at least in all arms: nothing is measured; raise it, or knee.low."
        )
    objectives = plan.objectives
    deadline_s = max(objectives.ttft_ms or 0.0, objectives.e2e_ms or 0.0) / 1e3
    if knee.window_s < FEW_DEADLINES * deadline_s:
        yield (
            f"knee.window_s = {knee.window_s:g} is less than {FEW_DEADLINES:g} times the deadline of "
            f"{deadline_s:g} s: at a high load a look may be over before a service that falls behind is late."
        )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"
