"""Sentences about a knee search, for results and report. Pure."""

from collections.abc import Iterator, Sequence

from draftproof.judge.knee.search import PointSeen
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeSearch
from draftproof.judge.stats.knee import Bracket
from draftproof.plan.knee import Knee

ENDINGS = {
    "settled": "nothing more was left to tell",
    "budget": "no further look fits into the time budget",
    "unfinished": "the run was broken off before the search ended",
}
_NAMES = {"baseline_null": "the second baseline"}


def describe_search(found: KneeSearch) -> str:
    """Say every arm's knee in one sentence, with what it means."""
    if not found.points:
        if found.ended == "budget":
            return "The time budget of the knee search is too small for its first look."
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
        return "in every look the client itself was beyond its limits, so nothing is known of the service"
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
    """Say why looks told no more: none were taken, too few requests were in them, or chance is as large."""
    if ended != "settled":
        return ENDINGS[ended]
    if weak := _find_weak(points, knee.on_time_share, wanted):
        told = _too_few(weak.share.n or 0, weak.effective or 0.0, knee.on_time_share, wanted)
        return f"at {write_load(weak.load)} {knee.unit} {told}: set more requests or looks"
    opened = any(one.standing == "open" for one in points)
    return "so many requests tell no further load from the target" if opened else ENDINGS[ended]


def _find_weak(points: Sequence[KneePoint], target: float, wanted: int) -> KneePoint | None:
    """Return the lowest open point that reaches the target and whose requests could not show it."""
    opened = (one for one in points if one.standing == "open" and (one.share.value or 0.0) >= target)
    return next((one for one in opened if one.effective is not None and one.effective < wanted), None)


def _too_few(n: int, effective: float, target: float, wanted: int) -> str:
    return (
        f"its {n:,} requests are worth {effective:,.0f} independent ones, and {wanted:,} are the fewest that "
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
    late = sum(one.invalid_looks for one in found.points)
    if late:
        yield f"{late} looks do not count, since the client itself was beyond its limits in them."
    unjudged = sum(one.unjudged for one in found.points)
    if unjudged:
        yield f"Of {unjudged:,} requests it cannot be told whether they were on time; they are in no share."


def _left(found: KneeSearch) -> str:
    """Return the time that was left, where the search knows how long the next look would have taken."""
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
