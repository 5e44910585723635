"""What an interrupted run still lacks. Pure.

A turn is finished if its own line says so and every request of it is recorded. The second is no repetition of
the first: a power cut may spare the line of a turn and take a line of one of its requests, which may lie in
another file, and somebody may have taken a damaged line out.
"""

from collections.abc import Collection, Iterable, Mapping

from draftproof.load.turn import Turn
from draftproof.records import BlockRecord, Warmup
from draftproof.workload.items import Item


def list_missing_turns(
    turns: Iterable[Turn],
    items: Mapping[str, Item],
    blocks: Iterable[BlockRecord],
    recorded: Collection[str],
) -> list[Turn]:
    """Return the turns that are not finished, in their order.

    Args:
        turns: every turn of the run.
        items: the workload's items by id.
        blocks: the records of turns, finished or not.
        recorded: ids of the requests that are recorded.
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
