"""What a knee search may take and what it may miss, said before anything is measured. Pure."""

from collections.abc import Iterator

from draftproof.plan.knee import Knee
from draftproof.plan.schema import Plan
from draftproof.stats.knee import list_ladder
from draftproof.verdict.knee.levels import list_arms
from draftproof.verdict.knee.wording import write_load

FEW_DEADLINES = 5.0


def describe_outlook(plan: Plan) -> tuple[str, ...]:
    """Return sentences on the search of a plan, none where it has none."""
    return () if plan.knee is None else tuple(_describe(plan, plan.knee))


def _describe(plan: Plan, knee: Knee) -> Iterator[str]:
    grid, arms = knee.grid, len(list_arms(plan))
    loads = f"{len(grid)} loads from {write_load(grid[0])} to {write_load(grid[-1])} {knee.unit}"
    text = f"knee search: {loads}, {arms} arms"
    if knee.axis == "rps":
        ladder = [grid[point] for point in list_ladder(len(grid), knee.points_per_doubling)]
        climb_s = arms * sum(knee.count_requests(load) / load for load in ladder)
        text += f"; once up the doublings takes at least {_minutes(climb_s)} if every load holds"
    yield f"{text}; no look is begun after {_minutes(knee.time_budget_s)}."
    objectives = plan.objectives
    deadline_s = max(objectives.ttft_ms or 0.0, objectives.e2e_ms or 0.0) / 1e3
    if knee.axis == "rps" and knee.window_s < FEW_DEADLINES * deadline_s:
        yield (
            f"knee.window_s = {knee.window_s:g} is less than {FEW_DEADLINES:g} times the deadline of "
            f"{deadline_s:g} s: at a high load a look may be over before a service that falls behind is late."
        )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min" if seconds < 600 else f"{seconds / 60:.0f} min"
