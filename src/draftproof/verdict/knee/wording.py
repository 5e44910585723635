"""Sentences about a knee search, for results and report. Pure."""

from collections.abc import Iterator, Sequence

from draftproof.plan.knee import Knee
from draftproof.stats.knee import Bracket
from draftproof.verdict.knee.results import ArmKnee, KneePoint, KneeSearch
from draftproof.verdict.knee.search import PointSeen

ENDINGS = {
    "settled": "nothing more was left to tell",
    "budget": "the time budget was used up",
    "unfinished": "the run was broken off before the search ended",
}
_NAMES = {"baseline_null": "the second baseline"}


def describe_search(found: KneeSearch) -> str:
    """Say every arm's knee in one sentence, with what it means."""
    if not found.points:
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


def explain_point(seen: PointSeen, minimum_prompts: int) -> str | None:
    """Say why a point is not judged by its share alone; None where it is."""
    if seen.saturated is not None:
        return seen.saturated
    if not seen.valid:
        return "in every look the client itself was beyond its limits, so nothing is known of the service"
    if seen.prompts < minimum_prompts:
        return f"{seen.prompts} prompts, at least {minimum_prompts} are needed"
    return None


def explain_missing(knee: Knee, bracket: Bracket, points: Sequence[KneePoint], ended: str) -> str | None:
    """Say why an end of the knee is missing, None where both are there."""
    if not points:
        return "no load was looked at"
    if bracket.holds is not None and bracket.fails is not None:
        return None
    opened = any(one.standing == "open" for one in points)
    ends = [f"{write_load(load)} {knee.unit}" for load in (knee.grid[0], knee.grid[-1])]
    if bracket.fails == 0:
        return f"even the lowest load of the grid, {ends[0]}, fails: set a lower low"
    if bracket.holds == len(knee.grid) - 1:
        return f"even the highest load of the grid, {ends[1]}, holds: set a higher high"
    if ended != "settled":
        return ENDINGS[ended]
    return "so many requests tell no further load from the target" if opened else ENDINGS[ended]


def list_notes(found: KneeSearch) -> tuple[str, ...]:
    """Return what to know about a search beside its knees."""
    return tuple(_notes(found))


def _notes(found: KneeSearch) -> Iterator[str]:
    if found.ended != "settled":
        yield f"The search ended because {ENDINGS[found.ended]}."
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


def name_arm(arm: str) -> str:
    """Return an arm as a sentence names it."""
    return _NAMES.get(arm, f"the {arm}")


def write_load(load: float) -> str:
    """Return a load with the digits of the grid."""
    return f"{load:,.4g}" if load < 10_000 else f"{load:,.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:g}%"
