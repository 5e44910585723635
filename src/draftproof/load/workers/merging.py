"""One record of a turn from the records of its parts. Pure.

Times in which the client was late are those of the worst worker, work is the sum of all. A turn is complete
if every part is: a part whose worker died leaves it incomplete, whatever the others did.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from draftproof.load.turn import Turn
from draftproof.records import BlockRecord, LeadEnd


def merge_parts(
    turn: Turn,
    parts: Mapping[str, BlockRecord],
    *,
    workers: int,
    started_ns: int,
    ended_ns: int,
    faults: Sequence[str] = (),
    conductor_cpu_s: float | None = None,
    lead_end: LeadEnd | None = None,
) -> BlockRecord:
    """Return the record of a turn.

    Args:
        turn: the turn.
        parts: a worker's name -> the record of its part; a worker that died has none.
        workers: into how many parts the turn was dealt.
        started_ns: when the parts began.
        ended_ns: when the last one ended.
        faults: what befell workers, each a phrase.
        conductor_cpu_s: CPU time of the process that conducted them.
        lead_end: how the lead ended, which the conductor decides.
    """
    blocks = list(parts.values())
    notes = [*faults, *(f"{name}: {one.note}" for name, one in parts.items() if one.note)]
    return BlockRecord(
        block=turn.block,
        load=turn.load,
        arm=turn.arm,
        order=turn.order,
        attempt=turn.attempt,
        started_ns=started_ns,
        ended_ns=ended_ns,
        completed=len(blocks) == workers and not faults and all(one.completed for one in blocks),
        event_loop_lag_max_ns=_take(max, (one.event_loop_lag_max_ns for one in blocks)),
        client_cpu_s=_add(one.client_cpu_s for one in blocks),
        note="; ".join(notes) or None,
        counted_from_ns=_take(min, (one.counted_from_ns for one in blocks)),
        lag_p99_ns=_take(max, (one.lag_p99_ns for one in blocks)),
        send_lag_p99_ns=_take(max, (one.send_lag_p99_ns for one in blocks)),
        send_lag_max_ns=_take(max, (one.send_lag_max_ns for one in blocks)),
        end_lag_max_ns=_take(max, (one.end_lag_max_ns for one in blocks)),
        gc_pause_max_ns=_take(max, (one.gc_pause_max_ns for one in blocks)),
        gc_pause_total_ns=_take(sum, (one.gc_pause_total_ns for one in blocks)),
        connections=_take(sum, (one.connections for one in blocks)),
        unreached=_take(sum, (one.unreached for one in blocks)),
        broken=_take(sum, (one.broken for one in blocks)),
        unstamped=_take(sum, (one.unstamped for one in blocks)),
        held_back=_take(sum, (one.held_back for one in blocks)),
        in_flight_max=_take(sum, (one.in_flight_max for one in blocks)),
        workers=workers,
        clocks=tuple(clock for one in blocks for clock in one.clocks),
        conductor_cpu_s=conductor_cpu_s,
        client_cpu_max_s=max(
            (one.client_cpu_s for one in blocks if one.client_cpu_s is not None), default=None
        ),
        lead_end=lead_end,
        lead_asks_counted=max(
            (one.lead_asks_counted for one in blocks if one.lead_asks_counted is not None), default=None
        ),
    )


def _take(choose: Callable[[list[int]], int], values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return choose(known) if known else None


def _add(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
