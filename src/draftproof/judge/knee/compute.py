"""`results.knee` of a run: each arm's knee, the loads it is based on, and the arms against each other. Pure.

What a knee search may take and what it may miss, said before anything is measured. Pure.
"""

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.judge.knee.search import PointSeen, Search, replay
from draftproof.judge.knee.trials import read_periods
from draftproof.judge.observe.levels import list_arms
from draftproof.judge.observe.pairs import COMPARISONS
from draftproof.judge.observe.run_data import RunData
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeRatio, KneeSearch
from draftproof.judge.stats.knee import Bracket, Seen, find_bracket, list_ladder, ratio_limits, trials_to_show
from draftproof.plan.load import Knee, name_level
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item

_HOUR_S = 3600.0


def compute_knee(run: RunData) -> KneeSearch | None:
    """Return what the search of a run found, None where its plan has none."""
    plan, knee = run.plan, run.plan.knee
    if knee is None:
        return None
    search = replay(plan, run.items, read_periods(run))
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
        trial_level=knee.trial_level(plan.comparison.confidence),
        budget_s=knee.time_budget_s,
        spent_s=search.spent_s,
        periods=sum(len(trial.block.arm_order) for trial in search.trials),
        ended=search.ended,
        points=points,
        arms=arms,
        ratios=ratios,
        sentence="",
        next_s=search.next_s,
    )
    return msgspec.structs.replace(found, sentence=describe_search(found), notes=list_notes(found))


def _describe_point(plan: Plan, knee: Knee, arm: str, point: int, seen: PointSeen) -> KneePoint:
    level, valid, share = knee.trial_level(plan.comparison.confidence), seen.valid, seen.share
    good, done = sum(period.good for period in valid), sum(period.conversations for period in valid)
    # Of the wait for the last answers the counted requests fill a part alone: the load goes on behind them.
    window_s = sum(period.filled_ns for period in valid) / NS_PER_S or None
    due_s = sum(period.due_ns - period.from_ns for period in valid) / NS_PER_S
    in_flight = [sum(period.in_flight[end] for period in valid) / max(len(valid), 1) for end in (0, 1)]
    needed = _requests_needed(knee, seen, level) if seen.standing == "open" else None
    if share is None:
        why = "no request of a valid period can be judged"
        figure = Figure(value=None, level=level, needed=needed, reason=why)
    else:
        low, high = share.low, share.high
        figure = Figure(value=share.value, low=low, high=high, level=level, n=share.n, needed=needed)
    per_device = Figure(value=None, reason="no valid period")
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
        trials=len(seen.periods),
        invalid_trials=len(seen.periods) - len(valid),
        attempted=sum(len(period.on_time) for period in valid),
        unjudged=sum(period.on_time.count(None) for period in valid),
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
        completed_rps=sum(period.completed for period in valid) / due_s if due_s > 0 else None,
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
    bracket = find_bracket(
        {point: Seen(seen.standing, None, len(seen.periods)) for point, seen in own.items()}
    )
    holds, fails = (None if at is None else knee.grid[at] for at in (bracket.holds, bracket.fails))
    fewest = trials_to_show(knee.on_time_share, knee.trial_level(plan.comparison.confidence))
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
    known = [one for one in opened if one is not None]
    return min(known, default=None)


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
    return f"{text}; no trial is begun that by the estimate would end after {_minutes(knee.time_budget_s)}."


def _warn(plan: Plan, knee: Knee, items: Sequence[Item]) -> Iterator[str]:
    yield from _warn_of_trials(plan, knee)
    yield from _warn_of_prompts(plan, knee, items)
    yield from _warn_of_times(plan, knee)


def _warn_of_trials(plan: Plan, knee: Knee) -> Iterator[str]:
    """Say where a trial shows nothing although every request is on time, and what would be enough."""
    wanted = trials_to_show(knee.on_time_share, knee.trial_level(plan.comparison.confidence))
    short = [load for load in knee.grid if knee.count_requests(load) < wanted]
    if not short:
        return
    fewest = knee.count_requests(short[0])
    trials = -(-wanted // fewest)
    yield (
        f"knee: {wanted:,} requests, each independent of the others and on time, are the fewest that show an "
        f"on-time share of {100 * knee.on_time_share:g}%, and one trial at {write_load(short[0])} "
        f"{knee.unit} "
        f"has {fewest:,}: that load does not hold before trial {trials} of {knee.trials}. All trials "
        f"together "
        f"have {knee.trials * fewest:,} requests, which are worth fewer where late ones come in runs: "
        f"set knee.requests = {wanted:,} at least, several times as many for loads close to the knee."
    )


def _warn_of_prompts(plan: Plan, knee: Knee, items: Sequence[Item]) -> Iterator[str]:
    """Say where all trials at a load ask too few prompts for any load to be judged."""
    named, floor = plan.comparison.cluster_by, plan.comparison.minimum_prompts
    labels = {item.segments.get(named, item.id) if named else item.id for item in items}
    most = min(len(labels), knee.trials * knee.count_requests(knee.grid[-1]))
    if most < floor:
        yield (
            f"knee: trials ask {most} different prompts, and a load is judged from {floor} on "
            "(comparison.minimum_prompts): no load can hold; choose more items."
        )


def _warn_of_times(plan: Plan, knee: Knee) -> Iterator[str]:
    if knee.axis != "rps":
        return
    first_s = len(list_arms(plan)) * knee.count_requests(knee.grid[0]) / knee.grid[0]
    if first_s > knee.time_budget_s:
        yield (
            f"knee.time_budget_s = {knee.time_budget_s:g} is less than the first trial takes, {first_s:,.0f} "
            "s at least in all arms: nothing is measured; raise it, or knee.low."
        )
    objectives = plan.objectives
    deadline_s = max(objectives.ttft_ms or 0.0, objectives.e2e_ms or 0.0) / 1e3
    if knee.window_s < FEW_DEADLINES * deadline_s:
        yield (
            f"knee.window_s = {knee.window_s:g} is less than {FEW_DEADLINES:g} times the deadline of "
            f"{deadline_s:g} s: at a high load a trial may be over before a service that falls behind "
            f"is late."
        )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"


ENDINGS = {
    "settled": "nothing more was left to tell",
    "budget": "no further trial fits into the time budget",
    "unfinished": "the run was broken off before the search ended",
}
_NAMES = {"baseline_null": "the second baseline"}


def describe_search(found: KneeSearch) -> str:
    """Say every arm's knee in one sentence, with what it means."""
    if not found.points:
        if found.ended == "budget":
            return "The time budget of the knee search is too small for its first trial."
        return "The knee search has not been run yet."
    arms = "; ".join(one.text for one in found.arms)
    ratio = next((f" {one.text}." for one in found.ratios if one.arm == "candidate"), "")
    return f"With at least {_percent(found.target)} of attempted requests on time: {arms}.{ratio}"


def describe_knee(one: ArmKnee, unit: str) -> str:
    """Say one arm's knee."""
    name = name_arm(one.arm)
    if one.holds is not None and one.fails is not None:
        return f"{name} holds {write_load(one.holds)} and fails {write_load(one.fails)} {unit}"
    if one.holds is not None:
        return f"{name} holds {write_load(one.holds)} {unit}, and no load was shown to fail"
    if one.fails is not None:
        return f"{name} fails {write_load(one.fails)} {unit}, and no load was shown to hold"
    return f"of {name} no load was shown to hold or to fail"


def describe_ratio(arm: str, versus: str, low: float | None, high: float | None) -> str:
    """Say how many times as much one arm carries as another."""
    pair = f"{name_arm(arm)}'s knee".capitalize(), f"that of {name_arm(versus)}"
    if low is None and high is None:
        return f"{pair[0]} cannot be compared with {pair[1]}"
    if low is None:
        return f"{pair[0]} is at most {high:.2f} times {pair[1]}"
    if high is None:
        return f"{pair[0]} is at least {low:.2f} times {pair[1]}"
    return f"{pair[0]} is {low:.2f} to {high:.2f} times {pair[1]}"


def explain_point(seen: PointSeen, minimum_prompts: int, target: float, wanted: int) -> str | None:
    """Say why a point is not judged by its share alone, or cannot be shown by it; None elsewhere.

    `wanted`: the fewest independent requests that show the target.
    """
    if seen.saturated is not None:
        return seen.saturated
    if not seen.valid:
        return "in every trial the client itself was beyond its limits, so nothing is known of the service"
    if seen.prompts < minimum_prompts:
        return f"{seen.prompts} prompts, at least {minimum_prompts} are needed"
    share = seen.share if seen.standing == "open" else None
    if share is not None and share.value >= target and share.effective < wanted:
        return _too_few(share.n, share.effective, target, wanted)
    return None


def explain_missing(
    knee: Knee, bracket: Bracket, points: Sequence[KneePoint], ended: str, wanted: int
) -> str | None:
    """Say why an end of an arm's knee is missing, None where neither is; `wanted` as in `explain_point`."""
    if not points:
        return "no load was looked at"
    if bracket.holds is not None and bracket.fails is not None:
        return None
    return _explain_grid(knee, bracket) or _explain_end(knee, points, ended, wanted)


def _explain_grid(knee: Knee, bracket: Bracket) -> str | None:
    """Say where the grid itself ends too early, None where it does not."""
    low, high = (f"{write_load(load)} {knee.unit}" for load in (knee.grid[0], knee.grid[-1]))
    if bracket.fails == 0:
        return f"even the lowest load of the grid, {low}, fails: set a lower low"
    if bracket.holds == len(knee.grid) - 1:
        return f"even the highest load of the grid, {high}, holds: set a higher high"
    return None


def _explain_end(knee: Knee, points: Sequence[KneePoint], ended: str, wanted: int) -> str:
    """Say why trials show no more: none were taken, too few requests were in them, or chance is as large."""
    if ended != "settled":
        return ENDINGS[ended]
    if weak := _find_weak(points, knee.on_time_share, wanted):
        why = _too_few(weak.share.n or 0, weak.effective or 0.0, knee.on_time_share, wanted)
        return f"at {write_load(weak.load)} {knee.unit} {why}: set more requests or trials"
    opened = any(one.standing == "open" for one in points)
    return "so many requests tell no further load from the target" if opened else ENDINGS[ended]


def _find_weak(points: Sequence[KneePoint], target: float, wanted: int) -> KneePoint | None:
    """Return the lowest open point that reaches the target and whose requests could not show it."""
    opened = (one for one in points if one.standing == "open" and (one.share.value or 0.0) >= target)
    return next((one for one in opened if one.effective is not None and one.effective < wanted), None)


def _too_few(n: int, effective: float, target: float, wanted: int) -> str:
    return (
        f"its {n:,} requests count as {effective:,.0f} independent ones, and {wanted:,} are the fewest that "
        f"show {_percent(target)}, even with all of them on time"
    )


def list_notes(found: KneeSearch) -> tuple[str, ...]:
    """Return what to know about a search beside its knees."""
    return tuple(_notes(found))


def _notes(found: KneeSearch) -> Iterator[str]:
    if found.ended != "settled":
        yield f"The search ended because {ENDINGS[found.ended]}{_left(found)}."
    for one in found.arms:
        if one.reason and found.points:
            more = f" (about {one.needed:,} more requests would tell)" if one.needed else ""
            yield f"{name_arm(one.arm).capitalize()}: {one.reason}{more}."
        if not one.is_monotone:
            yield (
                f"{name_arm(one.arm).capitalize()} held a load above one that it failed; only loads below "
                "its lowest failure count as held."
            )
    late = sum(one.invalid_trials for one in found.points)
    if late:
        yield f"{late} trials do not count, since the client itself was beyond its limits in them."
    unjudged = sum(one.unjudged for one in found.points)
    if unjudged:
        yield f"Of {unjudged:,} requests it cannot be told whether they were on time; they are in no share."


def _left(found: KneeSearch) -> str:
    """Return the time that was left, where the search knows how long the next trial would have taken."""
    if found.next_s is None:
        return ""
    left_s = max(found.budget_s - found.spent_s, 0.0)
    return (
        f": of {found.budget_s:,.0f} s {left_s:,.0f} s were left, and the next would take about "
        f"{found.next_s:,.0f} s"
    )


def name_arm(arm: str) -> str:
    """Return an arm as a sentence names it."""
    return _NAMES.get(arm, f"the {arm}")


def write_load(load: float) -> str:
    """Return a load with the digits of the grid."""
    return f"{load:,.4g}" if load < 10_000 else f"{load:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"
