"""The seeded order of a measurement: which items each arm answers, in which block, and which arm goes first.

Pure. Items are cut into blocks that hold every segment in equal shares; inside a block each arm answers the
same items in the same order, one arm after the other, so that slow drift of the machine meets all arms alike.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from draftproof.errors import UsageError
from draftproof.workload.items import Item
from draftproof.workload.ordering import hash_number, order_by_seed
from draftproof.workload.segments import group_by_segment

SEED_LIMIT = 2**31  # engines accept a signed 32-bit seed; larger ones are refused by some


class LoadLevel(Protocol):
    """What the block plan needs to know of a load level; the plan's own type fits."""

    @property
    def name(self) -> str:
        """Name of the level, unique in the plan."""
        ...

    @property
    def concurrency(self) -> int:
        """Requests kept in flight."""
        ...

    @property
    def repeats(self) -> int:
        """How often each arm sees each item at this level."""
        ...

    @property
    def block_size(self) -> int:
        """Most items an arm answers before the next arm takes its turn."""
        ...


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block: every arm of `arm_order` in turn answers `item_ids` in this order."""

    index: int
    load: str
    concurrency: int
    repeat: int
    item_ids: tuple[str, ...]
    arm_order: tuple[str, ...]


def plan_blocks(
    items: Sequence[Item],
    levels: Sequence[LoadLevel],
    arms: Sequence[str],
    seed: int,
    segment_by: Sequence[str] = ("task",),
) -> tuple[Block, ...]:
    """Return the blocks of a run in the order in which they are run.

    Repeats come one after the other; inside a repeat the levels follow in a drawn order, and each level
    runs all its blocks. Blocks of one level and repeat differ in size by at most one item, and so does each
    segment's share of them. Within a level every arm takes every place in the order equally often, within
    one: each group of as many blocks as there are arms is a Latin square of rotations of one drawn order.

    Raises:
        UsageError: no items, no arms, or arm names that repeat.
    """
    _check_inputs(items, arms)
    orders = {level.name: _draw_arm_orders(arms, seed, level.name) for level in levels}
    index = itertools.count()
    return tuple(
        Block(
            index=next(index),
            load=level.name,
            concurrency=level.concurrency,
            repeat=repeat,
            item_ids=item_ids,
            arm_order=next(orders[level.name]),
        )
        for repeat, level in _order_levels(levels, seed)
        for item_ids in _cut(items, level, repeat, seed, segment_by)
    )


def request_seed(item: Item, repeat: int) -> int:
    """Return the seed sent with a request, below 2^31: the same for every arm and load level.

    An item's own seed counts up by one a repeat; without one the seed is drawn from the item's id.
    """
    if item.sampling.seed is not None:
        return (item.sampling.seed + repeat) % SEED_LIMIT
    return hash_number("request", item.id, repeat) % SEED_LIMIT


def _check_inputs(items: Sequence[Item], arms: Sequence[str]) -> None:
    if not items:
        raise UsageError("there is no item to measure", place="workload", fix="select at least one item.")
    if not arms or len(set(arms)) != len(arms):
        raise UsageError(
            f"arm names must differ and there must be one at least, got {list(arms)}", place="arms"
        )


def _order_levels(levels: Sequence[LoadLevel], seed: int) -> Iterator[tuple[int, LoadLevel]]:
    by_name = {level.name: level for level in levels}
    for repeat in range(max((level.repeats for level in levels), default=0)):
        names = [level.name for level in levels if repeat < level.repeats]
        for name in order_by_seed(names, "levels", seed, repeat):
            yield repeat, by_name[name]


def _cut(
    items: Sequence[Item], level: LoadLevel, repeat: int, seed: int, segment_by: Sequence[str]
) -> list[tuple[str, ...]]:
    """Deal items, segment by segment, to the blocks in turn; then shuffle inside each block."""
    salt = (seed, level.name, repeat)
    count = -(-len(items) // level.block_size)
    groups = {key: [item.id for item in group] for key, group in group_by_segment(items, segment_by).items()}
    dealt = [
        item_id
        for key in order_by_seed(groups, "segments", *salt)
        for item_id in order_by_seed(groups[key], "items", *salt)
    ]
    return [tuple(order_by_seed(dealt[start::count], "block", *salt)) for start in range(count)]


def _draw_arm_orders(arms: Sequence[str], seed: int, load: str) -> Iterator[tuple[str, ...]]:
    """Yield arm orders without end: squares of rotations of a drawn order, the rotations in drawn turn."""
    for square in itertools.count():
        base = order_by_seed(arms, "arms", seed, load, square)
        for arm in order_by_seed(arms, "rotation", seed, load, square):
            start = base.index(arm)
            yield tuple(base[start:] + base[:start])
