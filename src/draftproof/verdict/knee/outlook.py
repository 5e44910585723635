"""What a knee search may take and what it may miss, said before anything is measured. Pure."""

from collections.abc import Iterator, Sequence

from draftproof.plan.knee import Knee
from draftproof.plan.schema import Plan
from draftproof.stats.knee import list_ladder, trials_to_show
from draftproof.verdict.knee.levels import list_arms
from draftproof.verdict.knee.wording import write_load
from draftproof.workload.items import Item

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
