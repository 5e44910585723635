"""The search as the journal tells it: which trials were taken, what they showed, and what comes next.

Pure. The search is replayed from its beginning, and each step is chosen from the steps before it alone, so a
run that was broken off goes on where it was, and a report finds the same steps as the run did.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.judge.knee.trials import GridKey, PeriodSeen, estimate_trial_s
from draftproof.judge.observe.levels import Trial, count_blocks, list_arms, list_items, plan_trial
from draftproof.judge.observe.run_data import PeriodKey
from draftproof.judge.stats.knee import Rules, Seen, Step, TrialOutcome, choose_step, evaluate_share
from draftproof.judge.stats.shares import (
    ClusteredShare,
    clustered_share,
    correlation_time,
    rising_times,
)
from draftproof.plan.load import Knee, name_level
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item

# Of less than this share of a deadline it makes no difference how much: no queue is near it.
FAR_USE = 0.3
Ending = Literal["settled", "budget", "unfinished"]


class PointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm showed at one point: its periods, the share of all valid ones, and its outcome.

    `own_time` is the correlation time that its own requests show, `correlation` the one by which its share is
    judged, see `evaluate_arm`.
    """

    periods: tuple[PeriodSeen, ...]
    share: ClusteredShare | None
    own_time: float
    correlation: float
    standing: TrialOutcome
    saturated: str | None
    prompts: int

    @property
    def valid(self) -> tuple[PeriodSeen, ...]:
        """The periods in which the client kept its own limits."""
        return tuple(period for period in self.periods if period.is_valid)


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """How far a search is. `next` is the trial to be taken or finished, None at the end.

    `next_s` is how long the trial would take that did not fit into the time budget, None where none did not.
    """

    trials: tuple[Trial, ...]
    points: dict[GridKey, PointSeen]
    next: Trial | None
    spent_s: float
    ended: Ending
    next_s: float | None = None


def replay(plan: Plan, items: Sequence[Item], periods: Mapping[PeriodKey, PeriodSeen]) -> Search:
    """Return how far a search is, from what was seen of it (`read_periods`).

    A trial that is in the journal was taken, and counts even where this version would have taken another.
    """
    knee, arms = plan.knee, list_arms(plan)
    assert knee is not None  # noqa: S101 - who asks for the search has one
    sizes = {item.id: item.turns for item in list_items(plan, items)}
    rules = Rules(len(knee.grid), knee.points_per_doubling, knee.trials, knee.on_time_share)
    begun = _find_begun(knee, arms, periods)
    points: dict[GridKey, PointSeen] = {}
    trials: list[Trial] = []
    spent_s, first = 0.0, count_blocks(plan, items)

    def stop(ended: Ending, trial: Trial | None = None, next_s: float | None = None) -> Search:
        return Search(
            trials=tuple(trials), points=points, next=trial, spent_s=spent_s, ended=ended, next_s=next_s
        )

    while True:
        index = first + len(trials)
        chosen = choose_step(_standings(arms, points), rules)
        step = _find_step(chosen, begun.get(index), is_over=index + 1 in begun)
        if step is None:
            return stop("settled")
        trial_s = estimate_trial_s(knee, step, {key: one.periods for key, one in points.items()})
        if index not in begun and spent_s + trial_s > knee.time_budget_s:
            return stop("budget", next_s=trial_s)
        number = sum(trial.point == step.point for trial in trials)
        trial = plan_trial(plan, items, point=step.point, number=number, arms=step.arms, index=index)
        taken = _find_taken(trial, periods, sizes)
        if len(taken) < len(step.arms):
            return stop("unfinished", trial)
        trials.append(trial)
        for arm, period in taken.items():
            points |= evaluate_arm(plan, arm, points, step.point, period)
            spent_s += period.period_s


def evaluate_arm(
    plan: Plan, arm: str, points: Mapping[GridKey, PointSeen], point: int, period: PeriodSeen
) -> dict[GridKey, PointSeen]:
    """Return what an arm's points show after one more period at one of them.

    In an open loop the correlation times of its loads are taken together as one curve that rises: a single
    trial tells too little of its own, so that a lucky one would pass for many independent requests.
    """
    before = points.get((arm, point))
    periods = (*(before.periods if before else ()), period)
    own = {at: (one.periods, one.own_time) for (name, at), one in points.items() if name == arm}
    own[point] = periods, _own_time(periods)
    times = {at: time for at, (_, time) in own.items()} | _fit_times(plan, own)
    return {
        (arm, at): evaluate_point(plan, seen, time, times[at])
        for at, (seen, time) in own.items()
        if at == point or points[arm, at].correlation != times[at]
    }


def evaluate_point(
    plan: Plan, periods: Sequence[PeriodSeen], own_time: float, correlation: float
) -> PointSeen:
    """Return what an arm's periods at one load show together, at a correlation time."""
    knee = plan.knee
    assert knee is not None  # noqa: S101 - as in `replay`
    valid = [period for period in periods if period.is_valid]
    judged = [one for period in valid for one in _list_judged(period)]
    prompts = [prompt for _, _, prompt in judged]
    share = clustered_share(
        [float(fine) for fine, _, _ in judged],
        prompts,
        knee.trial_level(plan.comparison.confidence),
        correlation_time=correlation,
    )
    saturated = _find_saturated(periods)
    enough = len(set(prompts)) >= plan.comparison.minimum_prompts
    return PointSeen(
        periods=tuple(periods),
        share=share,
        own_time=own_time,
        correlation=correlation,
        standing=_stand(share if enough else None, saturated, knee.on_time_share),
        saturated=saturated,
        prompts=len(set(prompts)),
    )


def _list_judged(period: PeriodSeen) -> list[tuple[bool, float, str]]:
    """Return of each request that can be judged whether it was on time, its use of a deadline, its prompt."""
    return [
        (fine, use, prompt)
        for fine, use, prompt in zip(period.on_time, period.use, period.prompts, strict=True)
        if fine is not None
    ]


def _own_time(periods: Sequence[PeriodSeen]) -> float:
    return correlation_time(
        [[max(use, FAR_USE) for _, use, _ in _list_judged(period)] for period in periods if period.is_valid]
    )


def _fit_times(plan: Plan, own: Mapping[int, tuple[Sequence[PeriodSeen], float]]) -> dict[int, float]:
    """Return the correlation times of an arm's loads as a rising curve, of those that one queue explains.

    A load that the service does not keep up with, or at which failures alone break the target, tells nothing
    of the others; in a closed loop no queue grows with the load.
    """
    knee = plan.knee
    assert knee is not None  # noqa: S101 - as in `replay`
    if knee.axis != "rps":
        return {}
    counts = {at: _count_judged(seen, 1 - knee.on_time_share) for at, (seen, _) in sorted(own.items())}
    fit = [at for at, count in counts.items() if count]
    return dict(zip(fit, rising_times([own[at][1] for at in fit], [counts[at] for at in fit]), strict=True))


def _count_judged(periods: Sequence[PeriodSeen], most_failures: float) -> int:
    """Return the judged requests of a load's valid periods, 0 where they show no ordinary queue."""
    judged = [one for period in periods if period.is_valid for one in _list_judged(period)]
    failures = sum(math.isinf(use) for _, use, _ in judged)
    return 0 if _find_saturated(periods) or failures > most_failures * len(judged) else len(judged)


def _find_saturated(periods: Iterable[PeriodSeen]) -> str | None:
    return next((period.saturated for period in periods if period.is_valid and period.saturated), None)


def _find_begun(knee: Knee, arms: Sequence[str], periods: Mapping[PeriodKey, PeriodSeen]) -> dict[int, Step]:
    """Return block -> the trial that the journal has of it, with the arms that are in it."""
    at = {name_level(load): point for point, load in enumerate(knee.grid)}
    return {
        block: Step(at[load], tuple(arm for arm in arms if (load, block, arm) in periods))
        for load, block, _ in periods
        if load in at
    }


def _find_step(chosen: Step | None, begun: Step | None, *, is_over: bool) -> Step | None:
    """Return the trial of a block: the one chosen, unless the journal has another one or goes on after it."""
    if begun is None or (chosen is not None and chosen.point == begun.point and not is_over):
        return chosen
    return begun


def _stand(share: ClusteredShare | None, saturated: str | None, target: float) -> TrialOutcome:
    if saturated is not None:
        return "fails"
    return "open" if share is None else evaluate_share(share.low, share.high, target)


def _standings(arms: Sequence[str], points: Mapping[GridKey, PointSeen]) -> dict[str, dict[int, Seen]]:
    found: dict[str, dict[int, Seen]] = {arm: {} for arm in arms}
    for (arm, point), seen in points.items():
        value = seen.share.value if seen.share else None
        found[arm][point] = Seen(seen.standing, value, len(seen.periods))
    return found


def _find_taken(
    trial: Trial, periods: Mapping[PeriodKey, PeriodSeen], sizes: Mapping[str, int]
) -> dict[str, PeriodSeen]:
    """Return the arms whose period is over with every request of it recorded."""
    wanted = sum(sizes[item_id] for item_id in trial.block.item_ids)
    keys = {arm: (trial.block.load, trial.block.index, arm) for arm in trial.block.arm_order}
    return {
        arm: periods[key]
        for arm, key in keys.items()
        if key in periods and periods[key].is_complete and len(periods[key].on_time) >= wanted
    }
