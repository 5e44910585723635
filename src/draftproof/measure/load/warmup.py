"""Warming an arm up at a load level: groups of requests until two successive ones agree.

Owns which items are asked and what is written down. The rule is `metrics/warmup.py`, the sending `driver.py`.
"""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.records import RequestRecord, Warmup, WarmupGroup
from draftproof.judge.metrics.phases import WarmupRule, last_change, summarise_group
from draftproof.measure.load.period import Sink, Turn
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.items import Item

AskGroup = Callable[[int], Awaitable[tuple[RequestRecord, ...]]]


class GroupSink:
    """Hands records on and keeps those of one group."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.records: list[RequestRecord] = []

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self.records.append(record)
        self._sink.append(record)


def lay_out_group(turn: Turn, items: Mapping[str, Item], size: int) -> Turn:
    """Return the turn whose items one group of a warm-up asks, the same in every group and every arm.

    The same in every group, since the times of two groups that ask other prompts differ by the prompts. Of
    items that the turn does not count, where there are any: a service that keeps prompts must not know a
    counted one from its warm-up. Different ones as far as they go, so that no answer is read from a cache
    before the second group.
    """
    own = set(turn.item_ids)
    others = [item_id for item_id in items if item_id not in own] or list(turn.item_ids)
    chosen = order_by_seed(others, "warmup", turn.load, turn.block, turn.repeat)[:size]
    return msgspec.structs.replace(turn, item_ids=tuple(chosen))


async def warm_up(
    turn: Turn,
    ask_group: AskGroup,
    rule: WarmupRule,
    *,
    start: int,
    is_stopped: Callable[[], bool] = lambda: False,
    clock: Clock = monotonic_ns,
) -> Warmup | None:
    """Ask groups until the rule says that it is enough; None where the user stopped it before.

    Args:
        turn: the turn that the warm-up comes before.
        ask_group: asks one group, numbered from 0, and returns its records.
        rule: when it is enough.
        start: number of the arm's start in the run, from 1.
        is_stopped: tells whether the user wants to leave; what a group shows then is of no use.
        clock: source of both times.
    """
    started_ns = clock()
    groups: list[WarmupGroup] = []
    while (step := rule.next_step(groups, (clock() - started_ns) / 1e9)) == "more":
        records = await ask_group(len(groups))
        if is_stopped():
            return None
        groups.append(summarise_group(records))
    return Warmup(
        arm=turn.arm,
        load=turn.load,
        block=turn.block,
        start=start,
        started_ns=started_ns,
        ended_ns=clock(),
        stable=step == "stable",
        tolerance=rule.tolerance,
        change=last_change(groups),
        groups=tuple(groups),
    )
