"""Which periods are measured once more, because the host disturbed them. Pure.

Right after their block, in the order of their first attempts, so that the machine is as it was for the other
arms of the block. At most a fifth of a load's periods: where the host disturbs more, no repeat helps.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from draftproof.load.turn import Turn
from draftproof.plan.schema import Plan
from draftproof.records import BlockRecord
from draftproof.verdict.client_limits import LAGGED_TURNS_LIMIT
from draftproof.verdict.host_evidence import find_host_events


class Repeats:
    """Says after each block which of its periods are measured once more.

    Args:
        turns: every period of the run, in order.
        records: of the periods that an earlier part of the run has had.
        lag_limit_ms: how late the client may be.
        is_wanted: the plan's `limits.repeat_disturbed`.
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
