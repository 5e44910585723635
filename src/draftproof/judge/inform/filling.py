"""Open loops that met a service still filling up, or one that could not take their rate. Pure.

After a ramp-up that its bound ended, or where the requests in flight grow within the periods of an arm, waits
are those of a queue that has not reached its mean: the arm that is closer to its capacity looks better than
it is. Where a queue grew as long as a period went on, by the rule of the knee search, waits are those of the
period's length and say little of two arms.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.knee.trials import count_in_flight, fell_behind, measure_slowing
from draftproof.judge.observe.run_data import PeriodKey, PreparedRun
from draftproof.workload.arrivals import Steady


def warn_about_overload(prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for every arm and load of steady rate at which the arm fell behind.

    A period that was broken off and gone on with has no one window, and is not looked at.
    """
    loads = {level.name for level in prepared.plan.load if is_steady(level.open_loop)}
    periods = group_whole_periods(prepared, loads) if loads else {}
    for load, arm in sorted({(load, arm) for load, _, arm in periods}):
        own = [records for key, records in periods.items() if (key[0], key[2]) == (load, arm)]
        grown = [ends for records in own if (ends := _find_growth(records)) is not None]
        if grown:
            first, last = max(grown, key=lambda ends: ends[1] - ends[0])
            yield (
                f"At load {load} the arm {arm} fell behind in {len(grown)} of {len(own)} periods "
                f"(requests in "
                f"flight grew from {first} to {last}): its times grow with the length of a period. Compare "
                "arms at a lower rate, or look for their capacity with [knee]."
            )


def is_steady(process: object) -> bool:
    """Tell whether an arrival process has one rate."""
    return isinstance(getattr(process, "profile", None), Steady)


def group_whole_periods(prepared: PreparedRun, loads: set[str]) -> dict[PeriodKey, list[RequestRecord]]:
    """Return every request of the periods of some loads that went through in one piece."""
    parts: defaultdict[PeriodKey, int] = defaultdict(int)
    for block in prepared.run.blocks:
        parts[block.load, block.block, block.arm] += block.load in loads
    found: defaultdict[PeriodKey, list[RequestRecord]] = defaultdict(list)
    for one in prepared.run.records:
        if parts.get((one.load, one.block, one.arm)) == 1:
            found[one.load, one.block, one.arm].append(one)
    return found


def _find_growth(every: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """Return the requests in flight at the first and at the last due time of a period that fell behind."""
    counted = [one for one in every if one.phase == "measure"]
    ordered = sorted(counted, key=lambda one: one.scheduled_ns)
    due_ns = [one.scheduled_ns for one in ordered if one.conversation_turn == 0]
    if not due_ns:
        return None
    first_ns, last_ns = due_ns[0], due_ns[-1]
    completed = sum(first_ns < one.end_ns <= last_ns and one.outcome == "ok" for one in every)
    in_flight = (count_in_flight(every, first_ns), count_in_flight(every, last_ns))
    slowing = measure_slowing(ordered)
    return in_flight if fell_behind(len(due_ns), completed, in_flight, slowing=slowing) else None


LEAST_TURNS = 6
GROWN = 1.1
LEAST_T = 3.0


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Mean requests in flight in the first and in the second half of the periods of an arm."""

    first: float
    second: float
    periods: int


def warn_about_filling(prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for each load whose ramp-ups were cut and each arm whose queue grew in its periods."""
    yield from _warn_about_ramp_ups(prepared)
    loads = {level.name for level in prepared.plan.load if is_steady(level.open_loop)}
    by_load_arm = defaultdict[tuple[str, str], list[tuple[float, float]]](list)
    for (load, _, arm), records in (group_whole_periods(prepared, loads) if loads else {}).items():
        if (halves := measure_halves(records)) is not None:
            by_load_arm[load, arm].append(halves)
    for (load, arm), periods in sorted(by_load_arm.items()):
        if (grown := find_growth(periods)) is not None:
            yield (
                f"At load {load} the requests in flight of {arm} grew within its {grown.periods} "
                f"periods, from "
                f"{grown.first:.1f} on average in their first halves to {grown.second:.1f} in their second: "
                "its waits are those of a service still filling up, and longer ones follow. Use longer "
                "blocks or a longer ramp-up (limits.ramp_up_max_s), or a lower rate."
            )


def find_growth(periods: Sequence[tuple[float, float]]) -> Growth | None:
    """Return how far the requests in flight grew, None where they did not or chance explains it.

    Grown by a tenth, and by three standard errors of the difference from period to period. `periods` are the
    mean requests in flight in both halves of each period.
    """
    if len(periods) < LEAST_TURNS:
        return None
    differences = [second - first for first, second in periods]
    first, second = (statistics.fmean(values) for values in zip(*periods, strict=True))
    error = statistics.stdev(differences) / math.sqrt(len(periods))
    is_grown = second > GROWN * first and statistics.fmean(differences) > LEAST_T * error
    return Growth(first=first, second=second, periods=len(periods)) if is_grown else None


def measure_halves(every: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """Return the mean requests in flight in both halves of the time in which counted requests were due."""
    due_ns = [one.scheduled_ns for one in every if one.phase == "measure" and one.conversation_turn == 0]
    if not due_ns or (span_ns := max(due_ns) - min(due_ns)) < 2:
        return None
    ends = (min(due_ns), min(due_ns) + span_ns // 2, max(due_ns))
    first, second = (
        sum(
            max(min(one.end_ns, end_ns) - max(one.scheduled_ns, start_ns), 0)
            for one in every
            if one.phase in ("measure", "fill")
        )
        / (end_ns - start_ns)
        for start_ns, end_ns in itertools.pairwise(ends)
    )
    return first, second


def _warn_about_ramp_ups(prepared: PreparedRun) -> Iterator[str]:
    bound_s = prepared.plan.limits.ramp_up_max_s
    for load in prepared.loads:
        own = [one for one in prepared.run.blocks if one.load == load and one.lead_end is not None]
        empty = _count(own, "not_standing")
        if empty:
            yield (
                f"At load {load} the ramp-up reached its bound of {bound_s:g} s before as many requests had "
                f"ended as were in flight: {empty}. Waits there are of a service still filling up. Raise "
                "limits.ramp_up_max_s, or lower the rate."
            )
        if cut := _count(own, "cut"):
            yield (
                f"At load {load} the ramp-up was cut at its bound of {bound_s:g} s, short of 16 mean "
                f"times of a "
                f"request: {cut}. An arm that is close to its capacity may still have been filling up, and "
                "then its waits are too short. Raise limits.ramp_up_max_s."
            )


def _count(periods: Sequence[BlockRecord], end: str) -> str:
    """Return "candidate in 3 of 8 periods" for each arm that had such periods."""
    found = []
    for arm in dict.fromkeys(sorted(one.arm for one in periods)):
        own = [one.lead_end == end for one in periods if one.arm == arm]
        if any(own):
            found.append(f"{arm} in {sum(own)} of {len(own)} periods")
    return ", ".join(found)


def warn_about_known_prompts(prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for the loads whose fill asked counted prompts before these counted."""
    loads = sorted({one.load for one in prepared.run.blocks if one.lead_asks_counted})
    loads = [load for load in loads if load in prepared.loads]
    if loads:
        yield (
            f"At load {', '.join(loads)} a period asks every item of the workload, so that its ramp-up asked "
            "counted prompts: a service that keeps prompts knew them, and first tokens are too early. Set "
            "block_size below the number of items, or switch prompt caching off in every arm."
        )
