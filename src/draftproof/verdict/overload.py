"""Which arms could not take the steady rate of a load: their queue grew as long as a turn went on. Pure.

Waiting times at such a rate are those of the turn's length and not of the service, so that the comparison of
two arms says little there. The rule is that of the knee search.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from draftproof.records import RequestRecord
from draftproof.verdict.knee.turns import count_in_flight, fell_behind, measure_slowing
from draftproof.verdict.run_data import PreparedRun, TurnKey
from draftproof.workload.arrivals import Steady


def warn_about_overload(prepared: PreparedRun) -> Iterator[str]:
    """Yield a sentence for every arm and load of steady rate at which the arm fell behind.

    A turn that was broken off and gone on with has no one window, and is not looked at.
    """
    loads = {level.name for level in prepared.plan.load if is_steady(level.open_loop)}
    turns = group_whole_turns(prepared, loads) if loads else {}
    for load, arm in sorted({(load, arm) for load, _, arm in turns}):
        own = [records for key, records in turns.items() if (key[0], key[2]) == (load, arm)]
        grown = [ends for records in own if (ends := _find_growth(records)) is not None]
        if grown:
            first, last = max(grown, key=lambda ends: ends[1] - ends[0])
            yield (
                f"At load {load} the arm {arm} fell behind in {len(grown)} of {len(own)} turns (requests in "
                f"flight grew from {first} to {last}): its times grow with the length of a turn. Compare "
                "arms at a lower rate, or look for their capacity with [knee]."
            )


def is_steady(process: object) -> bool:
    """Tell whether an arrival process has one rate."""
    return isinstance(getattr(process, "profile", None), Steady)


def group_whole_turns(prepared: PreparedRun, loads: set[str]) -> dict[TurnKey, list[RequestRecord]]:
    """Return every request of the turns of some loads that went through in one piece."""
    parts: defaultdict[TurnKey, int] = defaultdict(int)
    for block in prepared.run.blocks:
        parts[block.load, block.block, block.arm] += block.load in loads
    found: defaultdict[TurnKey, list[RequestRecord]] = defaultdict(list)
    for one in prepared.run.records:
        if parts.get((one.load, one.block, one.arm)) == 1:
            found[one.load, one.block, one.arm].append(one)
    return found


def _find_growth(every: Sequence[RequestRecord]) -> tuple[int, int] | None:
    """Return the requests in flight at the first and at the last due time of a turn that fell behind."""
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
