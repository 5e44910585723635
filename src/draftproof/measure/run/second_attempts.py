"""Which periods are measured once more, because the host disturbed them. Pure.

Right after their block, in the order of their first attempts, so that the machine is as it was for the other
arms of the block. At most a fifth of a load's periods: where the host disturbs more, no repeat helps.

What an interrupted run still lacks. Pure.

A period is finished if its own line says so and every request of it is recorded. The second is no repetition
of the first: a power cut may spare the line of a period and take a line of one of its requests, which may lie
in another file, and somebody may have taken a damaged line out.

When the arms are started anew between blocks, so that no process answers for all of a run. Pure.

Where a process is placed and how its memory lies moves all of its times, and no prompt shows it. A block
begins with new processes where those that run have answered its load before: each load then meets every
process, and a start is worth its time. `auto` adds: starts and warm-ups take at most a quarter of the run at
any moment of it. Times of an earlier part of a resumed run do not count.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from draftproof.core.records import BlockRecord, Warmup
from draftproof.judge.observe.attempts import find_host_events
from draftproof.judge.observe.client_limits import LAGGED_PERIODS_LIMIT
from draftproof.measure.load.period import Period
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item


class Repeats:
    """Says after each block which of its periods are measured once more.

    `periods`: every period of the run, in order. `records`: of the periods that an earlier part of the run
    has had. `lag_limit_ms`: how late the client may be.
    """

    def __init__(
        self,
        periods: Collection[Period],
        records: Iterable[BlockRecord] = (),
        *,
        lag_limit_ms: float,
        is_wanted: bool = True,
    ) -> None:
        self._periods, self._lag_limit_ms, self._is_wanted = tuple(periods), lag_limit_ms, is_wanted
        self._room = {
            load: max(1, int(LAGGED_PERIODS_LIMIT * planned))
            for load, planned in Counter(period.load for period in periods).items()
        }
        self._parts: defaultdict[tuple[str, int, str, int], list[BlockRecord]] = defaultdict(list)
        for record in records:
            self.note(record)

    def note(self, record: BlockRecord) -> None:
        """Take in the record of a period, or of a part of one."""
        key = (record.load, record.block, record.arm, record.attempt)
        if record.load in self._room and record.attempt and key not in self._parts:
            self._room[record.load] -= 1
        self._parts[key].append(record)

    def list_due(self, block: Sequence[Period]) -> tuple[Period, ...]:
        """Return the second attempts that a block still lacks."""
        wanted = [period for period in block if self._is_disturbed(period)] if self._is_wanted else []
        lacking = [period for period in wanted if not self._is_whole(period, 1)]
        begun = [period for period in lacking if _key(period, 1) in self._parts]
        fresh = [period for period in lacking if _key(period, 1) not in self._parts]
        chosen = (*begun, *(fresh[: max(self._room[fresh[0].load], 0)] if fresh else ()))
        return tuple(
            msgspec.structs.replace(period, attempt=1, order=len(block) + period.order)
            for period in block
            if period in chosen
        )

    def list_all_due(self) -> Iterator[Period]:
        """Yield the second attempts that a run lacks which is over otherwise."""
        for _, block in groupby(self._periods, key=lambda period: period.block):
            yield from self.list_due(tuple(block))

    def _is_whole(self, period: Period, attempt: int) -> bool:
        return any(one.completed for one in self._parts.get(_key(period, attempt), ()))

    def _is_disturbed(self, period: Period) -> bool:
        if not self._is_whole(period, 0):
            return False
        return bool(find_host_events(self._parts[_key(period, 0)], self._lag_limit_ms))


def _key(period: Period, attempt: int) -> tuple[str, int, str, int]:
    return (period.load, period.block, period.arm, attempt)


def list_repeats(plan: Plan, periods: Collection[Period], records: Iterable[BlockRecord]) -> Repeats:
    """Return what says which periods of a run are measured once more, as its plan asks."""
    limits = plan.limits
    return Repeats(periods, records, lag_limit_ms=limits.client_lag_ms, is_wanted=limits.repeat_disturbed)


def list_missing_periods(
    periods: Iterable[Period],
    items: Mapping[str, Item],
    blocks: Iterable[BlockRecord],
    recorded: Collection[str],
) -> list[Period]:
    """Return the periods that are not finished, in their order.

    `periods`: every period of the run. `items`: the workload's items by id. `blocks`: the records of periods,
    finished or not. `recorded`: ids of the requests that are recorded.
    """
    ended = {(one.block, one.arm, one.attempt) for one in blocks if one.completed}
    return [
        period
        for period in periods
        if (period.block, period.arm, period.attempt) not in ended
        or any(name not in recorded for name in list_request_ids(period, items))
    ]


def count_starts(blocks: Iterable[BlockRecord], warmups: Iterable[Warmup]) -> dict[str, int]:
    """Return how often an earlier part of a run has started each arm, as far as its records tell."""
    found: dict[str, int] = {}
    for arm, number in (
        *((one.arm, one.process or 0) for one in blocks),
        *((w.arm, w.start) for w in warmups),
    ):
        found[arm] = max(found.get(arm, 0), number)
    return found


def has_other_blocks(periods: Iterable[Period], blocks: Iterable[BlockRecord]) -> bool:
    """Tell whether periods were measured that the plan's order of blocks does not have.

    An earlier version ran all blocks of a level before those of the next: its numbers mean other items.
    """
    planned = {(period.load, period.block, period.arm) for period in periods}
    loads = {load for load, _, _ in planned}
    return any((one.load, one.block, one.arm) not in planned for one in blocks if one.load in loads)


def list_request_ids(period: Period, items: Mapping[str, Item]) -> list[str]:
    """Return the ids of every counted request of a period, those of later turns of conversations included."""
    return [
        f"{period.key}/{item_id}" + (f"+{number}" if number else "")
        for item_id in period.item_ids
        for number in range(items[item_id].turns)
    ]


SHARE = 0.25


class Restarts:
    """Keeps count of what starts cost and says when the next one is due.

    `periods`: every measurement period of the run, in order. `first_s`: how long the arms took to start; None
    where there is none that the run starts.
    """

    def __init__(
        self, wanted: int | Literal["auto"], periods: Sequence[Period], first_s: float | None
    ) -> None:
        self._wanted, self._start_s = wanted, first_s
        self._chosen = set() if wanted == "auto" else choose_blocks(periods, wanted)
        self._answered = set[str]()
        self._block: int | None = None
        self._measured_s, self._spent_s, self._warm_s, self._last_warm_s = 0.0, 0.0, 0.0, 0.0
        self._is_first = True

    def is_due(self, period: Period) -> bool:
        """Tell whether the arms are to be started anew before a period; call it once for each, in order."""
        if self._start_s is None or period.block == self._block:
            return False
        self._block = period.block
        if period.load not in self._answered:
            self._answered.add(period.load)
            return False
        if self._wanted != "auto":
            return period.block in self._chosen
        cost_s = self._start_s + max(self._warm_s, self._last_warm_s)
        return self._spent_s + cost_s <= self._measured_s * SHARE / (1 - SHARE)

    def count_start(self, load: str, seconds: float) -> None:
        """The arms were started anew before a block of a load."""
        self._start_s, self._is_first, self._answered = seconds, False, {load}
        self._spent_s += seconds
        self._last_warm_s, self._warm_s = self._warm_s, 0.0

    def count_warmup(self, seconds: float) -> None:
        """An arm that the run starts was warmed up; that is a cost of its start."""
        self._warm_s += seconds
        self._spent_s += 0.0 if self._is_first else seconds

    def count_period(self, seconds: float) -> None:
        """A period was measured."""
        self._measured_s += seconds


def list_boundaries(periods: Sequence[Period]) -> list[int]:
    """Return the blocks before which the arms can be started anew: of a load that was answered since."""
    found, answered, block = list[int](), set[str](), None
    for period in periods:
        if period.block != block:
            if period.load in answered:
                found.append(period.block)
                answered.clear()
            answered.add(period.load)
        block = period.block
    return found


def choose_blocks(periods: Sequence[Period], count: int) -> set[int]:
    """Return `count` blocks before which the arms are started anew, evenly spread; fewer if there are."""
    blocks = list_boundaries(periods)
    if count >= len(blocks):
        return set(blocks)
    step = (len(blocks) + 1) / (count + 1)
    return {blocks[round(step * (number + 1)) - 1] for number in range(count)}
