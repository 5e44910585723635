"""Which periods are measured once more, because the host disturbed them. Pure.

Right after their block, in the order of their first attempts, so that the machine is as it was for the other
arms of the block. At most a fifth of a load's periods: where the host disturbs more, no repeat helps.

What an interrupted run still lacks. Pure.

A turn is finished if its own line says so and every request of it is recorded. The second is no repetition of
the first: a power cut may spare the line of a turn and take a line of one of its requests, which may lie in
another file, and somebody may have taken a damaged line out.

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
from draftproof.judge.observe.client_limits import LAGGED_TURNS_LIMIT
from draftproof.measure.load.period import Turn
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item


class Repeats:
    """Says after each block which of its periods are measured once more.

    `turns`: every period of the run, in order. `records`: of the periods that an earlier part of the run has
    had. `lag_limit_ms`: how late the client may be.
    """

    def __init__(
        self,
        turns: Collection[Turn],
        records: Iterable[BlockRecord] = (),
        *,
        lag_limit_ms: float,
        is_wanted: bool = True,
    ) -> None:
        self._turns, self._lag_limit_ms, self._is_wanted = tuple(turns), lag_limit_ms, is_wanted
        self._room = {
            load: max(1, int(LAGGED_TURNS_LIMIT * planned))
            for load, planned in Counter(turn.load for turn in turns).items()
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

    def list_due(self, block: Sequence[Turn]) -> tuple[Turn, ...]:
        """Return the second attempts that a block still lacks."""
        wanted = [turn for turn in block if self._is_disturbed(turn)] if self._is_wanted else []
        lacking = [turn for turn in wanted if not self._is_whole(turn, 1)]
        begun = [turn for turn in lacking if _key(turn, 1) in self._parts]
        fresh = [turn for turn in lacking if _key(turn, 1) not in self._parts]
        chosen = (*begun, *(fresh[: max(self._room[fresh[0].load], 0)] if fresh else ()))
        return tuple(
            msgspec.structs.replace(turn, attempt=1, order=len(block) + turn.order)
            for turn in block
            if turn in chosen
        )

    def list_all_due(self) -> Iterator[Turn]:
        """Yield the second attempts that a run lacks which is over otherwise."""
        for _, block in groupby(self._turns, key=lambda turn: turn.block):
            yield from self.list_due(tuple(block))

    def _is_whole(self, turn: Turn, attempt: int) -> bool:
        return any(one.completed for one in self._parts.get(_key(turn, attempt), ()))

    def _is_disturbed(self, turn: Turn) -> bool:
        if not self._is_whole(turn, 0):
            return False
        return bool(find_host_events(self._parts[_key(turn, 0)], self._lag_limit_ms))


def _key(turn: Turn, attempt: int) -> tuple[str, int, str, int]:
    return (turn.load, turn.block, turn.arm, attempt)


def list_repeats(plan: Plan, turns: Collection[Turn], records: Iterable[BlockRecord]) -> Repeats:
    """Return what says which periods of a run are measured once more, as its plan asks."""
    limits = plan.limits
    return Repeats(turns, records, lag_limit_ms=limits.client_lag_ms, is_wanted=limits.repeat_disturbed)


def list_missing_turns(
    turns: Iterable[Turn],
    items: Mapping[str, Item],
    blocks: Iterable[BlockRecord],
    recorded: Collection[str],
) -> list[Turn]:
    """Return the turns that are not finished, in their order.

    `turns`: every turn of the run. `items`: the workload's items by id. `blocks`: the records of turns,
    finished or not. `recorded`: ids of the requests that are recorded.
    """
    ended = {(one.block, one.arm, one.attempt) for one in blocks if one.completed}
    return [
        turn
        for turn in turns
        if (turn.block, turn.arm, turn.attempt) not in ended
        or any(name not in recorded for name in list_request_ids(turn, items))
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


def has_other_blocks(turns: Iterable[Turn], blocks: Iterable[BlockRecord]) -> bool:
    """Tell whether periods were measured that the plan's order of blocks does not have.

    An earlier version ran all blocks of a level before those of the next: its numbers mean other items.
    """
    planned = {(turn.load, turn.block, turn.arm) for turn in turns}
    loads = {load for load, _, _ in planned}
    return any((one.load, one.block, one.arm) not in planned for one in blocks if one.load in loads)


def list_request_ids(turn: Turn, items: Mapping[str, Item]) -> list[str]:
    """Return the ids of every counted request of a turn, those of later turns of conversations included."""
    return [
        f"{turn.key}/{item_id}" + (f"+{number}" if number else "")
        for item_id in turn.item_ids
        for number in range(items[item_id].turns)
    ]


SHARE = 0.25


class Restarts:
    """Keeps count of what starts cost and says when the next one is due.

    `periods`: every measurement period of the run, in order. `first_s`: how long the arms took to start; None
    where there is none that the run starts.
    """

    def __init__(self, wanted: int | Literal["auto"], periods: Sequence[Turn], first_s: float | None) -> None:
        self._wanted, self._start_s = wanted, first_s
        self._chosen = set() if wanted == "auto" else choose_blocks(periods, wanted)
        self._answered = set[str]()
        self._block: int | None = None
        self._measured_s, self._spent_s, self._warm_s, self._last_warm_s = 0.0, 0.0, 0.0, 0.0
        self._is_first = True

    def is_due(self, period: Turn) -> bool:
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


def list_boundaries(periods: Sequence[Turn]) -> list[int]:
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


def choose_blocks(periods: Sequence[Turn], count: int) -> set[int]:
    """Return `count` blocks before which the arms are started anew, evenly spread; fewer if there are."""
    blocks = list_boundaries(periods)
    if count >= len(blocks):
        return set(blocks)
    step = (len(blocks) + 1) / (count + 1)
    return {blocks[round(step * (number + 1)) - 1] for number in range(count)}
