"""What one arm's period at one load of the search showed, and how long the next trial may take.

Whether requests were on time, in the order in which they were due; how close each came to its deadlines; and
whether the service kept up.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from draftproof.core.clock import NS_PER_MS, NS_PER_S
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.metrics.service import is_on_time
from draftproof.judge.observe.levels import knee_only, prompt_of
from draftproof.judge.observe.run_data import Observation, PeriodKey, RunData, prepare_run
from draftproof.judge.stats.knee import Step
from draftproof.plan.load import Knee
from draftproof.plan.schema import Objectives, Plan
from draftproof.workload.clusters import name_clusters

Row = TypeVar("Row")
MOST_FAILURES = 0.5
QUEUE_GROWTH = 2.0
LEAST_BEHIND = 0.1
# A queue that the ramp-up has already made long cannot double in the period: it grows by that share of what
# comes, and each request takes by that share of the time between them longer than one before.
STEADY_GROWTH = 0.25
SLOWING = 0.2
# A queue with as much coming as going wanders by about the root of what came: twice that is no chance.
CHANCE_BEHIND = 2.0


class PeriodSeen(NamedTuple):
    """One arm's period.

    `on_time` has one entry for each counted request in the order in which they were due, None where it is not
    known; `use` is the share of its tightest deadline that each took, infinite for a failed one; `prompts`
    are their cluster labels. `good`: on time and no check failed; `conversations` those of which all turns
    are good, `attempted_conversations` all of them. Times of one clock in ns: the counted part begins, its
    last request is due, its last request ends. `filled_ns` is what the counted requests filled of the time
    from the first to the last of these. `period_s` is how long the whole period took. `saturated` says why
    the service did not keep up, None where it did. `is_valid` is False where the client itself was late.
    """

    on_time: tuple[bool | None, ...]
    use: tuple[float, ...]
    prompts: tuple[str, ...]
    good: int
    conversations: int
    from_ns: int
    due_ns: int
    end_ns: int
    filled_ns: float
    period_s: float
    completed: int
    in_flight: tuple[int, int]
    saturated: str | None
    is_valid: bool
    is_complete: bool


def read_periods(run: RunData) -> dict[PeriodKey, PeriodSeen]:
    """Return every period of the search of a run, finished or not."""
    prepared = prepare_run(knee_only(run))
    seen = _group(prepared.observations, lambda one: _key(one.record))
    every, blocks = _group(prepared.run.records, _key), _group(prepared.run.blocks, _key)
    names = name_clusters(run.items, run.plan.comparison.cluster_by)
    return {
        key: _read_period(
            run.plan,
            seen[key],
            every[key],
            blocks[key],
            names=names,
            is_valid=not prepared.periods[key].lagged,
        )
        for key in sorted(blocks)
        if seen.get(key)
    }


def _read_period(
    plan: Plan,
    seen: Sequence[Observation],
    every: Sequence[RequestRecord],
    blocks: Sequence[BlockRecord],
    *,
    names: Mapping[str, str],
    is_valid: bool,
) -> PeriodSeen:
    ordered = sorted(seen, key=lambda one: (one.record.scheduled_ns, one.record.request_id))
    objectives = plan.objectives
    on_time = tuple(one.is_ok and is_on_time(one.record, one.metrics, objectives) for one in ordered)
    good = [fine is True and one.is_passed is not False for fine, one in zip(on_time, ordered, strict=True)]
    conversations = _join_conversations(ordered, good)
    from_ns, due_ns = ordered[0].record.scheduled_ns, ordered[-1].record.scheduled_ns
    in_flight = (count_in_flight(every, from_ns), count_in_flight(every, due_ns))
    is_open = plan.knee is not None and plan.knee.axis == "rps"
    completed = sum(from_ns < one.end_ns <= due_ns and one.outcome == "ok" for one in every)
    end_ns = max(one.record.end_ns for one in ordered)
    ended = sum(from_ns < one.end_ns <= end_ns for one in every if one.phase in ("measure", "fill"))
    return PeriodSeen(
        on_time=on_time,
        use=tuple(_deadline_use(one, objectives) for one in ordered),
        prompts=tuple(names[prompt_of(one.record.item_id)] for one in ordered),
        good=sum(good),
        conversations=sum(conversations),
        from_ns=from_ns,
        due_ns=due_ns,
        end_ns=end_ns,
        filled_ns=(end_ns - from_ns) * len(ordered) / max(ended, len(ordered)),
        period_s=sum(one.ended_ns - one.started_ns for one in blocks) / NS_PER_S,
        completed=completed,
        in_flight=in_flight,
        saturated=_find_saturation(
            ordered, completed=completed, in_flight=in_flight, is_open=is_open, is_whole=len(blocks) == 1
        ),
        is_valid=is_valid,
        is_complete=any(one.completed for one in blocks),
    )


def _find_saturation(
    ordered: Sequence[Observation],
    *,
    completed: int,
    in_flight: tuple[int, int],
    is_open: bool,
    is_whole: bool,
) -> str | None:
    """Say why a service did not keep up with its period, None where it did.

    A period that was broken off and gone on with has no one window: of it only failures are looked at.
    """
    failures = sum(not one.is_ok for one in ordered)
    if failures > MOST_FAILURES * len(ordered):
        return f"{failures} of {len(ordered)} requests failed"
    offered = sum(one.record.conversation_turn == 0 for one in ordered)
    if (
        is_open
        and is_whole
        and fell_behind(
            offered, completed, in_flight, slowing=measure_slowing([one.record for one in ordered])
        )
    ):
        return (
            f"requests in flight grew from {in_flight[0]} to {in_flight[1]} while {completed} of {offered} "
            "were completed"
        )
    return None


def fell_behind(offered: int, completed: int, in_flight: tuple[int, int], *, slowing: float = 0.0) -> bool:
    """Tell whether a service did not keep up: its queue grew, and by more than chance makes of it.

    `offered` came, `completed` were completed meanwhile; `in_flight` when the first one came and when the
    last one did; `slowing`: seconds that requests took longer for each second that they came later.
    """
    before, after = in_flight
    doubled = after > QUEUE_GROWTH * max(before, 1)
    grew_on = after - before > STEADY_GROWTH * offered and slowing > SLOWING
    behind = offered - completed > max(LEAST_BEHIND * offered, CHANCE_BEHIND * math.sqrt(offered))
    return behind and (doubled or grew_on)


def measure_slowing(ordered: Sequence[RequestRecord]) -> float:
    """Return how much longer requests took for each unit of time that they came later.

    The median of the last third against that of the first. At λ requests per second a service that completes
    μ of them has λ/μ − 1, one that keeps up has 0.
    """
    third = len(ordered) // 3
    if not third:
        return 0.0
    first, last = ordered[:third], ordered[-third:]
    later_ns = median(one.scheduled_ns for one in last) - median(one.scheduled_ns for one in first)
    longer_ns = median(map(_took_ns, last)) - median(map(_took_ns, first))
    return longer_ns / later_ns if later_ns > 0 else 0.0


def _took_ns(record: RequestRecord) -> int:
    return record.end_ns - record.scheduled_ns


def _deadline_use(one: Observation, objectives: Objectives) -> float:
    """Return the largest share of a deadline that a request took; what failed took all there is."""
    if not one.is_ok:
        return float("inf")
    metrics = one.metrics
    parts = (
        (metrics.ttft_from_schedule_ns, objectives.ttft_ms),
        (metrics.tpot_ns, objectives.tpot_ms),
        (metrics.e2e_from_schedule_ns, objectives.e2e_ms),
    )
    known = [value / (limit * NS_PER_MS) for value, limit in parts if value is not None and limit is not None]
    return max(known, default=0.0)


def _join_conversations(seen: Iterable[Observation], good: Iterable[bool]) -> list[bool]:
    """Return of each conversation whether all its turns are good."""
    found: dict[str, bool] = {}
    for one, fine in zip(seen, good, strict=True):
        found[one.record.item_id] = found.get(one.record.item_id, True) and fine
    return list(found.values())


def count_in_flight(every: Iterable[RequestRecord], at_ns: int) -> int:
    """Return the requests that were due before a time and had not ended by then, counted or not."""
    return sum(one.scheduled_ns < at_ns < one.end_ns for one in every if one.phase in ("measure", "fill"))


def _group(rows: Iterable[Row], key_of: Callable[[Row], PeriodKey]) -> dict[PeriodKey, list[Row]]:
    found: defaultdict[PeriodKey, list[Row]] = defaultdict(list)
    for one in rows:
        found[key_of(one)].append(one)
    return found


def _key(record: RequestRecord | BlockRecord) -> PeriodKey:
    return (record.load, record.block, record.arm)


GridKey = tuple[str, int]  # arm, point of the grid
Seen = Mapping[GridKey, Sequence[PeriodSeen]]


def estimate_trial_s(knee: Knee, step: Step, seen: Seen) -> float:
    """Return about how many seconds the periods of a trial take, one arm after the other.

    An arm that was at this load takes as long as its longest period there. Else its requests come over the
    time that the load says, and what a period takes beside that is as long as at the nearest loads that it
    was at.
    """
    return sum(_period_s(knee, arm, step.point, seen) for arm in step.arms)


def _period_s(knee: Knee, arm: str, point: int, seen: Seen) -> float:
    if here := seen.get((arm, point)):
        return max(period.period_s for period in here)
    load, near = knee.grid[point], _nearest(arm, point, seen)
    requests = knee.count_requests(load)
    if knee.axis == "concurrency":
        return requests * max((period.period_s / len(period.on_time) for period in near), default=0.0)
    return requests / load + max((_beside_s(period) for period in near), default=0.0)


def _nearest(arm: str, point: int, seen: Seen) -> list[PeriodSeen]:
    """Return an arm's periods at the nearest loads below and above a point."""
    at = [key for name, key in seen if name == arm]
    near = (
        max((one for one in at if one < point), default=None),
        min((one for one in at if one > point), default=None),
    )
    return [period for one in near if one is not None for period in seen[arm, one]]


def _beside_s(period: PeriodSeen) -> float:
    """Return what a period took beside the time over which its requests came."""
    return max(period.period_s - (period.due_ns - period.from_ns) / NS_PER_S, 0.0)
