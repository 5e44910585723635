"""When turns began, on one axis of time, though the client's monotonic clock may have begun anew. Pure.

Within one start of the client host its monotonic clock alone orders turns, whatever anybody does to the wall
clock. Between two starts (a resumed run after a restart, or on another machine) only the wall clock tells how
they lie to each other: each start's clock is shifted as a whole by the anchor of its first turn.
"""

from collections import defaultdict
from collections.abc import Iterable

from draftproof.records import BlockRecord


def place_in_time(turns: Iterable[BlockRecord], *, anchor_offset_ns: int) -> list[tuple[int, BlockRecord]]:
    """Return (when it began in ns, turn), by time; turns of one start of the host keep their own times.

    Args:
        turns: the turns of a run.
        anchor_offset_ns: wall clock less monotonic clock as the run was made, for turns without an anchor.
    """
    by_boot: defaultdict[str | None, list[BlockRecord]] = defaultdict(list)
    for turn in turns:
        by_boot[turn.boot].append(turn)
    offsets = {boot: _offset_ns(own, anchor_offset_ns) for boot, own in by_boot.items()}
    begun = [(_first_start(own).started_ns + offsets[boot], offsets[boot]) for boot, own in by_boot.items()]
    first = min(begun, default=(0, 0))[1]
    placed = [
        (turn.started_ns + offsets[boot] - first, turn) for boot, own in by_boot.items() for turn in own
    ]
    return sorted(placed, key=lambda one: (one[0], one[1].ended_ns, one[1].order))


def _offset_ns(turns: list[BlockRecord], otherwise_ns: int) -> int:
    start = _first_start(turns)
    return otherwise_ns if start.started_wall_ns is None else start.started_wall_ns - start.started_ns


def _first_start(turns: list[BlockRecord]) -> BlockRecord:
    return min(turns, key=lambda turn: turn.started_ns)
