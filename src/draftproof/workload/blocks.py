"""The seeded order of a measurement: which items each arm answers, in which block, and which arm goes first.

Pure. Items are cut into blocks that hold every segment in equal shares; inside a block each arm answers the
same items in the same order, one arm after the other, so that slow drift of the machine meets all arms alike.
In an open loop they are due at the same times too. The blocks of the levels alternate, so that each level
meets every hour of the run, and every process of an arm that is started anew between blocks.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import UsageError
from draftproof.workload.arm_orders import draw_arm_orders, hash_number, order_by_seed
from draftproof.workload.arrivals import OpenLoop, Steady, arrival_times_ns, rate_at_start_rps
from draftproof.workload.items import Item
from draftproof.workload.segments import group_by_segment

if TYPE_CHECKING:
    from draftproof.plan.load import LoadLevel

LONGEST_TURN_S = 30 * 86_400
MOST_REQUESTS = 50_000_000
# Blocks of a load without which no gain is claimed: with representative evidence, and with any. Fewer cannot
# tell what a period does to all of its requests from an effect (docs/statistics.md).
ENOUGH_BLOCKS, FEWEST_BLOCKS = 6, 4
_USUAL_SIZE = 8


def least_blocks(*, is_representative: bool) -> int:
    """Return how many blocks of a load a gain takes."""
    return ENOUGH_BLOCKS if is_representative else FEWEST_BLOCKS


SEED_LIMIT = 2**31  # engines accept a signed 32-bit seed; larger ones are refused by some


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """One block: every arm of `arm_order` in turn answers `item_ids` in this order.

    Closed loop: `concurrency` requests are kept in flight. Open loop: that is None, and `due_ns` says for
    each item when it is due, from the start of the counted part of a period; the same in every arm. `ramp_up`
    is the steady arrival process before it, None where nothing comes before.
    """

    index: int
    load: str
    concurrency: int | None
    repeat: int
    item_ids: tuple[str, ...]
    arm_order: tuple[str, ...]
    due_ns: tuple[int, ...] = ()
    ramp_up: OpenLoop | None = None


_Cut = tuple["LoadLevel", int, int, tuple[Item, ...]]  # level, repeat, number, items


def plan_blocks(
    items: Sequence[Item],
    levels: "Sequence[LoadLevel]",
    arms: Sequence[str],
    seed: int,
    segment_by: Sequence[str] = ("task",),
    *,
    last: Sequence[str] = (),
) -> tuple[Block, ...]:
    """Return the blocks of a run in the order in which they are run.

    Repeats come one after the other; inside a repeat the levels alternate, block by block, in a drawn order
    that turns round each time. Blocks of one level and repeat differ in size by at most one item, and so
    does each segment's share of them; blocks of a replay are windows of the trace. For the order of the arms
    see `arm_orders.py`; those in `last` come last in every block. Raises UsageError: no items, no arms, arm
    names that repeat, a replay of items without times, a class that no item has, or more requests or a longer
    period than anybody waits for.
    """
    _check_inputs(items, arms)
    check_size(len(items), levels, len(arms))
    cut = list(_order_blocks(items, levels, seed, segment_by))
    orders = draw_arm_orders(
        [level.name for level, *_ in cut],
        [arm for arm in arms if arm not in last],
        seed,
        last=[arm for arm in arms if arm in last],
    )
    return tuple(
        Block(
            index=index,
            load=level.name,
            concurrency=level.concurrency,
            repeat=repeat,
            item_ids=tuple(item.id for item in own),
            arm_order=order,
            due_ns=_find_due(own, level, (seed, level.name, repeat, number)),
            ramp_up=_find_ramp_up(own, level),
        )
        for index, ((level, repeat, number, own), order) in enumerate(zip(cut, orders, strict=True))
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


def check_size(items: int, levels: "Sequence[LoadLevel]", arms: int) -> None:
    """Do nothing if so many items can be planned.

    Raises UsageError: they make more requests than anybody waits for.
    """
    wanted = sum(level.repeats for level in levels) * items * arms
    if wanted > MOST_REQUESTS:
        most = max(levels, key=lambda level: level.repeats)
        raise UsageError(
            f"{items} items, {most.repeats} times in {arms} arms: with all levels {wanted:,} requests, and "
            f"at most {MOST_REQUESTS:,} can be planned",
            place=f"load level {most.name}",
            fix="lower repeats, or choose fewer items.",
        )


def _order_blocks(
    items: Sequence[Item], levels: "Sequence[LoadLevel]", seed: int, segment_by: Sequence[str]
) -> Iterator[_Cut]:
    """Yield the blocks in the order in which they are run; those of each level are spread over a repeat."""
    by_name = {level.name: level for level in levels}
    for repeat in range(max((level.repeats for level in levels), default=0)):
        names = [level.name for level in levels if repeat < level.repeats]
        found: list[tuple[tuple[float, int], _Cut]] = []
        for rank, name in enumerate(order_by_seed(names, "levels", seed, repeat)):
            own = _cut(items, by_name[name], repeat, seed, segment_by)
            for number, block in enumerate(own):
                when = ((number + 0.5) / len(own), -rank if number % 2 else rank)
                found.append((when, (by_name[name], repeat, number, block)))
        yield from (block for _, block in sorted(found, key=lambda one: one[0]))


def _cut(
    items: Sequence[Item], level: "LoadLevel", repeat: int, seed: int, segment_by: Sequence[str]
) -> list[tuple[Item, ...]]:
    """Deal items, segment by segment, to the blocks in turn; then shuffle inside each block."""
    if level.replay_speed is not None:
        return _cut_trace(items, level)
    salt = (seed, level.name, repeat)
    chosen = choose_items(items, level, repeat, seed, segment_by)
    by_id = {item.id: item for item in chosen}
    count = -(-len(chosen) // size_block(level, len(chosen)))
    groups = {key: [item.id for item in group] for key, group in group_by_segment(chosen, segment_by).items()}
    keys = order_by_seed(groups, "segments", *salt)
    if level.classes:  # segments of a class lie together, so that each block has its share of the class
        keys.sort(key=lambda key: by_id[groups[key][0]].segments[segment_by[0]])
    dealt = [item_id for key in keys for item_id in order_by_seed(groups[key], "items", *salt)]
    return [
        tuple(by_id[item_id] for item_id in order_by_seed(dealt[start::count], "block", *salt))
        for start in range(count)
    ]


def _cut_trace(items: Sequence[Item], level: "LoadLevel") -> list[tuple[Item, ...]]:
    """Return windows of a recorded trace, each in the order in which its requests came."""
    if any(item.due_ns is None for item in items):
        raise UsageError(
            "a replay needs a workload that says when each request came",
            place=f"load level {level.name}",
            fix="take a trace as the workload, or state `arrivals` instead of `replay`.",
        )
    recorded = sorted(items, key=lambda item: (item.due_ns or 0, item.id))
    size = size_block(level, len(recorded))
    return [tuple(recorded[start : start + size]) for start in range(0, len(recorded), size)]


def size_block(level: "LoadLevel", asked: int) -> int:
    """Return the most items of a block of a level that asks `asked` items in each repeat."""
    if level.block_size is not None:
        return level.block_size
    wanted = -(-ENOUGH_BLOCKS // level.repeats)
    return max(1, min(_USUAL_SIZE, asked // wanted))


def choose_items(
    items: Sequence[Item], level: "LoadLevel", repeat: int, seed: int, segment_by: Sequence[str]
) -> Sequence[Item]:
    """Return the items that each arm is asked at a level in one repeat: all, or as many as its classes want.

    Raises UsageError: no item has the label of a class.
    """
    if not level.classes:
        return items
    return choose_by_class(items, level.classes, segment_by[0], seed, level.name, repeat)


def choose_over_repeats(
    items: Sequence[Item], level: "LoadLevel", seed: int, segment_by: Sequence[str]
) -> tuple[Item, ...]:
    """Return the different items that each arm is asked at a level over all repeats, in their first order.

    Raises UsageError: as `choose_items`.
    """
    if not level.classes:
        return tuple(items)
    repeats = range(level.repeats)
    asked = {item.id for repeat in repeats for item in choose_items(items, level, repeat, seed, segment_by)}
    return tuple(item for item in items if item.id in asked)


def choose_by_class(
    items: Sequence[Item], classes: Mapping[str, float], dimension: str, *salt: str | int
) -> tuple[Item, ...]:
    """Return the most items that have the shares of `classes`, chosen by the seed, in their first order.

    A class may miss its exact share by less than one item. Raises UsageError: no item has the label of a
    class.
    """
    groups = {name: [one.id for one in items if one.segments.get(dimension) == name] for name in classes}
    if missing := [name for name, own in groups.items() if not own]:
        raise UsageError(
            f"no item has {dimension} = {missing[0]!r}",
            place="load classes",
            fix="name a label of the workload.",
        )
    scale = min(len(own) / classes[name] for name, own in groups.items())
    kept = {
        item_id
        for name, own in groups.items()
        for item_id in order_by_seed(own, "classes", name, *salt)[: max(1, round(scale * classes[name]))]
    }
    return tuple(item for item in items if item.id in kept)


def _find_due(own: Sequence[Item], level: "LoadLevel", salt: tuple[int, str, int, int]) -> tuple[int, ...]:
    """Return when each item of a block is due, in ns from its start; empty in a closed loop.

    Raises UsageError: the last is due so late that nobody waits for it.
    """
    due_ns = _list_due(own, level, salt)
    if due_ns and due_ns[-1] > LONGEST_TURN_S * NS_PER_S:
        raise UsageError(
            f"the {len(own)} requests of a period come over {due_ns[-1] / NS_PER_S / 86_400:,.0f} "
            f"days, and a "
            f"period may last {LONGEST_TURN_S // 86_400}",
            place=f"load level {level.name}",
            fix="raise the rate or the speed, or lower block_size.",
        )
    return due_ns


def _list_due(own: Sequence[Item], level: "LoadLevel", salt: tuple[int, str, int, int]) -> tuple[int, ...]:
    if level.replay_speed is not None:
        first_ns = own[0].due_ns or 0
        return tuple(round(((item.due_ns or 0) - first_ns) / level.replay_speed) for item in own)
    if level.open_loop is None:
        return ()
    drawn = hash_number("open loop", *salt) % SEED_LIMIT
    times = arrival_times_ns(level.open_loop.profile, level.open_loop.spacing, drawn)
    return tuple(itertools.islice(times, len(own)))


def _find_ramp_up(own: Sequence[Item], level: "LoadLevel") -> OpenLoop | None:
    """Return what comes before the counted part: the rate that a shape starts from, a window's own rate."""
    if level.replay_speed is not None:
        span_ns = ((own[-1].due_ns or 0) - (own[0].due_ns or 0)) / level.replay_speed
        rps = (len(own) - 1) / (span_ns / NS_PER_S) if span_ns > 0 else 0.0
        return OpenLoop(profile=Steady(rps=rps)) if rps > 0 else None
    if level.open_loop is None:
        return None
    rps = rate_at_start_rps(level.open_loop.profile)
    return OpenLoop(profile=Steady(rps=rps), spacing=level.open_loop.spacing) if rps > 0 else None
