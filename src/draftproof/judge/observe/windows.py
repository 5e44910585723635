"""The stretch of each period in which its requests counted, and how much of it they filled.

Requests that only keep the load up take a part. In a full closed loop the counted ones filled what they are
of the time that all spent in the service; in any other loop what they are of all requests that ended in the
window, since behind a service that is too slow fill requests wait in line and get nothing done.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.observe.run_data import PeriodKey, PreparedRun

UNCOUNTED = frozenset({"fill", "interrupted"})


class PeriodWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The counted stretch of one period, or of one part of a period that was resumed; times in ns.

    `share` of it was filled by the counted requests. `all_ns` is what all requests of the period spent in the
    service inside the stretch.
    """

    load: str
    block: int
    arm: str
    start_ns: int
    end_ns: int
    share: float
    all_ns: int

    @property
    def length_ns(self) -> int:
        """How long it lasted."""
        return self.end_ns - self.start_ns

    @property
    def filled_ns(self) -> float:
        """The part that the counted requests filled."""
        return self.length_ns * self.share


def measure_windows(prepared: PreparedRun) -> tuple[PeriodWindow, ...]:
    """Return the window of every period of the plan's loads; none of a part in which nothing counted."""
    loads = set(prepared.loads)
    parts: defaultdict[PeriodKey, list[BlockRecord]] = defaultdict(list)
    for block in prepared.run.blocks:
        if block.load in loads:
            parts[block.load, block.block, block.arm].append(block)
    counted = _group(parts, (one.record for one in prepared.observations))
    others = _group(parts, (one for one in prepared.run.records if one.phase in UNCOUNTED))
    found = (
        _measure(
            part, counted.get((key, index), ()), others.get((key, index), ()), is_full=_is_full(prepared, key)
        )
        for key, own in sorted(parts.items())
        for index, part in enumerate(own)
    )
    return tuple(one for one in found if one is not None)


def _is_full(prepared: PreparedRun, key: PeriodKey) -> bool:
    """Return whether a load keeps its number of requests in flight all the time."""
    level = prepared.level(key[0])
    return level.concurrency is not None and not level.think_s


def _group(
    parts: dict[PeriodKey, list[BlockRecord]], records: Iterable[RequestRecord]
) -> dict[tuple[PeriodKey, int], list[RequestRecord]]:
    found: defaultdict[tuple[PeriodKey, int], list[RequestRecord]] = defaultdict(list)
    for record in records:
        key = (record.load, record.block, record.arm)
        index = _find_part(parts.get(key, ()), record)
        if index is not None:
            found[key, index].append(record)
    return found


def _find_part(parts: Sequence[BlockRecord], record: RequestRecord) -> int | None:
    if len(parts) == 1:
        return 0
    for index, part in enumerate(parts):
        if part.started_ns <= record.scheduled_ns <= part.ended_ns:
            return index
    return None


def _measure(
    part: BlockRecord, counted: Sequence[RequestRecord], others: Sequence[RequestRecord], *, is_full: bool
) -> PeriodWindow | None:
    """Return the window of a part: of a full loop its counting time, else what counted requests span."""
    if not counted and not is_full:
        return None
    began_ns = part.started_ns if part.counted_from_ns is None else part.counted_from_ns
    start_ns = began_ns if is_full else min(one.scheduled_ns for one in counted)
    end_ns = part.ended_ns if is_full else max(one.end_ns for one in counted)
    if end_ns <= start_ns:
        return None
    every = (*counted, *others)
    ends_ns = np.array([one.end_ns for one in every], dtype=np.int64)
    begun_ns = np.array([one.scheduled_ns for one in every], dtype=np.int64)
    inside_ns = np.maximum(np.minimum(ends_ns, end_ns) - np.maximum(begun_ns, start_ns), 0)
    all_ns, counted_ns = int(inside_ns.sum()), int(inside_ns[: len(counted)].sum())
    ended = int(((start_ns < ends_ns) & (ends_ns <= end_ns)).sum())
    return PeriodWindow(
        load=part.load,
        block=part.block,
        arm=part.arm,
        start_ns=start_ns,
        end_ns=end_ns,
        share=_divide(counted_ns, all_ns) if is_full else _divide(len(counted), ended),
        all_ns=all_ns,
    )


def _divide(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole else 0.0
