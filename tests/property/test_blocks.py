"""Properties of the block plan: completeness, balance and determinism, for any items, levels and arms."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import UsageError
from draftproof.workload.arrivals import OpenLoop
from draftproof.workload.blocks import SEED_LIMIT, Block, plan_blocks, request_seed
from draftproof.workload.items import Item, Message, Sampling

ARMS = ("baseline", "candidate", "alternative", "baseline_null")


class _Level(msgspec.Struct, frozen=True):
    """A load level with just what the block plan reads."""

    name: str
    concurrency: int
    repeats: int
    block_size: int
    open_loop: OpenLoop | None = None
    replay_speed: float | None = None
    classes: dict[str, float] = msgspec.field(default_factory=dict)


Level: Any = _Level  # the plan's own has more


def make_items(tasks: list[str], seed: int | None = None) -> tuple[Item, ...]:
    return tuple(
        Item(
            id=f"{task}-{number}",
            messages=(Message(role="user", content="x"),),
            segments={"task": task},
            sampling=Sampling(seed=seed),
        )
        for number, task in enumerate(tasks)
    )


item_lists = st.lists(st.sampled_from("abc"), min_size=1, max_size=40).map(make_items)
level_lists = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=3
).map(lambda drawn: tuple(Level(f"load{number}", *values) for number, values in enumerate(drawn)))
arm_lists = st.integers(1, 4).map(lambda count: ARMS[:count])
seeds = st.integers(0, 2**32 - 1)
plans = st.tuples(item_lists, level_lists, arm_lists, seeds)


@settings(max_examples=60, deadline=None)
@given(plans)
def test_every_arm_sees_every_item_exactly_repeats_times(plan):
    """At each level, each arm answers each item as often as the level repeats."""
    items, levels, arms, seed = plan
    seen = Counter(
        (block.load, arm, item_id)
        for block in plan_blocks(items, levels, arms, seed)
        for arm in block.arm_order
        for item_id in block.item_ids
    )
    expected = {
        (level.name, arm, item.id): level.repeats for level in levels for arm in arms for item in items
    }
    assert seen == expected


@settings(max_examples=60, deadline=None)
@given(plans)
def test_arm_positions_are_balanced_within_one(plan):
    """Within a level, each arm stands at each place of the order equally often, within one."""
    items, levels, arms, seed = plan
    blocks = plan_blocks(items, levels, arms, seed)
    for level in levels:
        orders = [block.arm_order for block in blocks if block.load == level.name]
        counts = Counter((arm, place) for order in orders for place, arm in enumerate(order))
        every = [counts[arm, place] for arm in arms for place in range(len(arms))]
        assert max(every) - min(every) <= 1


@settings(max_examples=60, deadline=None)
@given(plans)
def test_blocks_are_balanced_over_segments(plan):
    """In one level and repeat, the blocks' sizes and their shares of each segment differ by at most one."""
    items, levels, arms, seed = plan
    blocks = plan_blocks(items, levels, arms, seed)
    for group in group_blocks(blocks).values():
        sizes = [len(block.item_ids) for block in group]
        assert max(sizes) - min(sizes) <= 1
        for task in {item.segments["task"] for item in items}:
            shares = [sum(item_id.startswith(f"{task}-") for item_id in block.item_ids) for block in group]
            assert max(shares) - min(shares) <= 1


@settings(max_examples=60, deadline=None)
@given(plans)
def test_blocks_respect_size_and_numbering(plan):
    """No block is empty or larger than the level allows, and indices count up from 0."""
    items, levels, arms, seed = plan
    blocks = plan_blocks(items, levels, arms, seed)
    limit = {level.name: level.block_size for level in levels}
    assert all(1 <= len(block.item_ids) <= limit[block.load] for block in blocks)
    assert [block.index for block in blocks] == list(range(len(blocks)))


@settings(max_examples=30, deadline=None)
@given(plans)
def test_plan_is_a_function_of_its_seed(plan):
    """The same inputs give the same plan, in whatever order the items and arms are listed."""
    items, levels, arms, seed = plan
    blocks = plan_blocks(items, levels, arms, seed)
    assert plan_blocks(items, levels, arms, seed) == blocks
    assert plan_blocks(items[::-1], levels, arms[::-1], seed) == blocks


def test_another_seed_gives_another_plan():
    """The seed changes the order of items, of arms, or both."""
    items, levels = make_items(["a"] * 12), (Level("low", 1, 1, 4),)
    assert len({plan_blocks(items, levels, ARMS, seed) for seed in range(5)}) == 5


def test_items_are_shuffled_anew_for_each_repeat():
    """Two repeats of a level do not use the same blocks."""
    blocks = plan_blocks(make_items(["a"] * 12), (Level("low", 1, 2, 4),), ARMS, 1)
    first, second = ([b.item_ids for b in blocks if b.repeat == repeat] for repeat in (0, 1))
    assert first != second


@pytest.mark.parametrize(
    ("items", "arms"), [((), ARMS), (make_items(["a"]), ()), (make_items(["a"]), ("x", "x"))]
)
def test_nothing_to_plan_is_an_error(items, arms):
    """No items, no arms or arms of one name are refused."""
    with pytest.raises(UsageError):
        plan_blocks(items, (Level("low", 1, 1, 4),), arms, 1)


@given(st.integers(0, 2**40), st.integers(0, 9))
def test_own_seed_counts_up_by_repeat(seed, repeat):
    """An item's own seed is used, plus the repeat, within a signed 32-bit number."""
    (item,) = make_items(["a"], seed)
    assert request_seed(item, repeat) == (seed + repeat) % SEED_LIMIT


def test_drawn_seeds_differ_by_item_and_repeat():
    """Items without a seed get distinct seeds that every arm can compute again."""
    items = make_items(["a"] * 20)
    drawn = [request_seed(item, repeat) for item in items for repeat in range(3)]
    assert len(set(drawn)) == len(drawn)
    assert drawn == [request_seed(item, repeat) for item in items for repeat in range(3)]


def group_blocks(blocks: tuple[Block, ...]) -> dict[tuple[str, int], list[Block]]:
    groups: dict[tuple[str, int], list[Block]] = {}
    for block in blocks:
        groups.setdefault((block.load, block.repeat), []).append(block)
    return groups
