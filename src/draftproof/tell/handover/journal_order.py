"""Is a journal still in the order in which it was written?

A run appends each line when its request or period ends, on one clock, period after period. So times never
fall, the blocks count up, each arm's period is one stretch, and the periods of a block follow their numbers.
The clock of the client's machine may begin anew, once per restart: between two periods, or where an
interrupted period begins again with its warm-up. Requests are written in the order in which the client gets
to them, and their ends are when the kernel had their last bytes. So a line may have ended before one above it
in its period or warm-up, by as much as the client was late there. Any other fall is a line that was moved.

How late: the next request of a slot is due as the one before it ends and sent once that is written, so it
tells when that was. Of one that none follows, a run notes how long after its end such a line was written at
most, in each period and each warm-up; journals without it tell by the event loop and by what was sent. Of a
period without a line of its own, or a warm-up that was broken off, the largest lateness of the run is
allowed. A clock that began anew needs a host that did: where two periods name the same boot, none did between
them; and within a period it falls below everything there.

And is every line there once? A counted request has one line in all files together, for a run that goes on
asks only what has none; every other line has a time of its own.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec

from draftproof.core.records import BlockRecord, RequestRecord, Warmup
from draftproof.judge.observe.observed import identify
from draftproof.store.journal import Record, iterate_records

_PeriodKey = tuple[int, str, int]  # block, arm, attempt
_Stretch = tuple[int, str, bool]  # block, arm, whether it is a warm-up
_Line = RequestRecord | BlockRecord
_TOGETHER_NS = 5_000_000  # ends that one look at many sockets may bring, of a client that is not late
_UNKNOWN_LAG_NS = 50_000_000  # what a client may be late by default


class JournalOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Places ("journal/records.jsonl:12") where the clock began anew, and what is out of order or twice."""

    restarts: tuple[str, ...]
    faults: tuple[str, ...]


def check_order(folder: Path) -> JournalOrder:
    """Check every file of a run's journal folder, each by itself.

    Raises StoreError: a line is not a record.
    """
    restarts, faults = list[str](), list[str]()
    every = {
        f"{folder.name}/{path.name}": list(iterate_records(path)) for path in sorted(folder.glob("*.jsonl"))
    }
    files = {
        name: [one for one in lines if isinstance(one, RequestRecord | BlockRecord)]
        for name, lines in every.items()
    }
    lags = find_lags(one for lines in every.values() for one in lines)
    for name, lines in files.items():
        falls, moved = check_records(lines, lags)
        restarts += [f"{name}:{line}" for line in falls]
        faults += [f"{name}:{line}: {what}" for line, what in moved]
    return JournalOrder(restarts=tuple(restarts), faults=(*find_repeats(every), *faults))


def find_repeats(files: Mapping[str, Iterable[Record]]) -> Iterator[str]:
    """Yield what stands in a journal twice, next to each other or apart, in one file or in two."""
    first: dict[Hashable, str] = {}
    for name, records in files.items():
        for line, record in enumerate(records, start=1):
            place = f"{name}:{line}"
            before = first.setdefault(_identify(record), place)
            if before != place:
                yield f"{place}: {_name(record)} stands there a second time, the first is at {before}"


def _identify(record: Record) -> Hashable:
    """Return what no two lines of a journal share."""
    if isinstance(record, RequestRecord | BlockRecord):
        return type(record).__name__, identify(record)
    return type(record).__name__, msgspec.json.encode(record)


def _name(record: Record) -> str:
    if isinstance(record, RequestRecord):
        return f"the request {record.request_id}"
    if isinstance(record, BlockRecord):
        return f"the period of {record.arm} in block {record.block}"
    return f"this {type(record).__name__.lower()}"


class Lags:
    """How late the client was, in ns: with single requests, and at most in each stretch of a run."""

    def __init__(self) -> None:
        self._known = dict[_Stretch, int]()
        self._largest_ns = _UNKNOWN_LAG_NS
        self._followed = dict[tuple[_PeriodKey, int], int]()  # end of a request -> when the next one was sent

    def add(self, stretch: _Stretch, lag_ns: int) -> None:
        """Note a lateness; the largest of a stretch counts."""
        self._known[stretch] = max(lag_ns, self._known.get(stretch, 0))
        self._largest_ns = max(lag_ns, self._largest_ns)

    def follow(self, record: RequestRecord) -> None:
        """Note that a request was sent, so that one whose end it was due at had been written by then."""
        if record.sent_ns is not None:
            key, begun_ns = (_period(record), record.scheduled_ns), record.sent_ns - (record.connect_ns or 0)
            self._followed[key] = max(begun_ns, self._followed.get(key, 0))

    def read(self, record: RequestRecord) -> int:
        """Return how long after its end a request may have been written."""
        if (sent_ns := self._followed.get((_period(record), record.end_ns))) is not None:
            return sent_ns - record.end_ns
        return self._known.get((record.block, record.arm, record.phase == "warmup"), self._largest_ns)


def find_lags(records: Iterable[Record]) -> Lags:
    """Return what a journal tells of how late the client was."""
    lags = Lags()
    for record in records:
        if isinstance(record, RequestRecord):
            lags.follow(record)
        if isinstance(record, Warmup) and record.end_lag_max_ns is not None:
            lags.add((record.block, record.arm, True), record.end_lag_max_ns)
        elif isinstance(record, BlockRecord) and (lag_ns := _read_lag(record)) is not None:
            lags.add((record.block, record.arm, False), lag_ns)
    return lags


def _read_lag(period: BlockRecord) -> int | None:
    """Requests that the plan held back were sent late, and not because the client was."""
    if period.end_lag_max_ns is not None:
        return period.end_lag_max_ns
    sent_ns = None if period.held_back else period.send_lag_max_ns
    return max((one for one in (period.event_loop_lag_max_ns, sent_ns) if one is not None), default=None)


def check_records(
    records: Sequence[_Line], lags: Lags | None = None
) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the lines, from 1, at which the clock began anew, and those that are out of order and why.

    `lags` are of all files of a run; None: what these lines tell.
    """
    lags = find_lags(records) if lags is None else lags
    restarts, faults = list[int](), list(_find_moved_periods(records))
    boots = _find_boots(records)
    is_part = not any(isinstance(one, BlockRecord) for one in records)
    # Of the lines above the latest end; and the earliest of their period since the clock began.
    latest = earliest = records[0] if records else None
    for line, (before, after) in enumerate(pairwise(records), start=2):
        assert latest is not None and earliest is not None  # noqa: S101, PT018 - there are two lines
        if _ended_ns(after) < _ended_ns(latest) and _ended_together(latest, after, lags):
            continue
        if _ended_ns(after) < _ended_ns(latest):
            is_restart = _may_restart(before, after) or (is_part and _may_restart_part(before, after))
            floor = earliest if _period(after) == _period(before) else before
            if is_restart and _ended_ns(after) < _ended_ns(floor) and _may_differ(*boots[line - 2 : line]):
                restarts.append(line)
            else:
                faults.append((line, "it ended before a line above it"))
            earliest = after
        elif _period(after) != _period(before):
            earliest = after
        latest = after
    return restarts, sorted(faults)


def _find_moved_periods(records: Iterable[_Line]) -> Iterator[tuple[int, str]]:
    """Yield lines at which a block, a period or a number of a period comes too late."""
    seen, ended, last = set[_PeriodKey](), set[_PeriodKey](), None
    orders: tuple[int, int] = (-1, -1)
    for line, record in enumerate(records, start=1):
        key = _period(record)
        if last is not None and key[0] < last[0]:
            yield line, f"block {key[0]} comes after block {last[0]}"
        elif key in seen and (key != last or key in ended):
            yield line, f"the period of {key[1]} in block {key[0]} had ended before"
        if isinstance(record, BlockRecord):
            here = (record.block, record.order)
            if record.block == orders[0] and here < orders:
                yield line, f"period {record.order} of block {record.block} comes after period {orders[1]}"
            orders = here
            ended |= {key} if record.completed else set()
        seen.add(key)
        last = key


def _ended_together(before: _Line, after: _Line, lags: Lags) -> bool:
    """Tell whether two requests of a period ended so close that the client may have come to either first."""
    if isinstance(before, BlockRecord) or isinstance(after, BlockRecord) or _period(before) != _period(after):
        return False
    apart_ns = _ended_ns(before) - _ended_ns(after)
    return apart_ns <= _TOGETHER_NS + lags.read(after)


def _may_restart(before: _Line, after: _Line) -> bool:
    if isinstance(before, BlockRecord):
        return _period(before) != _period(after) or not before.completed
    if _period(before) != _period(after) or not isinstance(after, RequestRecord):
        return False
    return after.phase == "warmup" and before.phase != "warmup"


def _find_boots(records: Sequence[_Line]) -> list[tuple[str | None, str | None]]:
    """Return, for each line, the boot that the last period up to it names, and the first from it on."""
    own = [one.boot if isinstance(one, BlockRecord) else None for one in records]

    def keep(last: str | None, one: str | None) -> str | None:
        return one or last

    after = list(accumulate(reversed(own), keep))
    return list(zip(accumulate(own, keep), reversed(after), strict=True))


def _may_differ(above: tuple[str | None, str | None], below: tuple[str | None, str | None]) -> bool:
    """Tell whether the host may have been started anew between two lines."""
    return above[0] is None or above[0] != below[1]


def _may_restart_part(before: _Line, after: _Line) -> bool:
    """A load worker's file holds no period's own line and no warm-up: a period begins with ramp-up there."""
    return _period(before) != _period(after) or (isinstance(after, RequestRecord) and after.phase == "fill")


def _period(record: _Line) -> _PeriodKey:
    return (record.block, record.arm, record.attempt)


def _ended_ns(record: _Line) -> int:
    return record.ended_ns if isinstance(record, BlockRecord) else record.end_ns


def sort_as_written(records: Iterable[RequestRecord], periods: Iterable[BlockRecord]) -> list[_Line]:
    """Return records and periods in the order in which a run writes them, as far as they tell it.

    Requests of a period by their end, each period's own line behind them, periods by block and number.
    """
    numbers = {_period(period): period.order for period in periods}
    every: list[_Line] = [*records, *periods]
    return sorted(
        every,
        key=lambda one: (
            one.block,
            numbers.get(_period(one), len(numbers)),
            one.arm,
            isinstance(one, BlockRecord),
            _ended_ns(one),
        ),
    )
