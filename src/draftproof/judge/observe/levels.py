"""What one probe of a load asks: which prompts, in which order, due when, and which arm goes first.

Every probe is one block like any other, the same in all arms. One at a high load asks more requests than
there are prompts: a prompt then comes several times, each under a name of its own, `<item>~<n>`.
"""

from collections.abc import Sequence

import msgspec

from draftproof.judge.observe.observed import RunData
from draftproof.plan.load import name_level
from draftproof.plan.schema import Plan
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.blocks import Block, plan_blocks
from draftproof.workload.items import Item

_MARK = "~"


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a load by the arms of `block.arm_order`; `number` counts the trials at it from 0."""

    point: int
    load: float
    number: int
    block: Block


def list_arms(plan: Plan) -> tuple[str, ...]:
    """Return the arms of a plan, all of which are searched."""
    optional = (("alternative", plan.arms.alternative), ("baseline_null", plan.comparison.null_arm))
    return ("baseline", "candidate", *(name for name, wanted in optional if wanted))


def count_blocks(plan: Plan, items: Sequence[Item]) -> int:
    """Return how many blocks the ordinary levels have: those of the search count on from there."""
    return len(plan_blocks(items, plan.load, list_arms(plan), plan.seed, plan.workload.segment_by))


def plan_trial(
    plan: Plan, items: Sequence[Item], *, point: int, number: int, arms: Sequence[str], index: int
) -> Trial:
    """Return a trial at a point of the grid, asked `number` times before, as block `index` of the run."""
    knee = plan.knee
    assert knee is not None  # noqa: S101 - who asks for a trial has a search
    load = knee.grid[point]
    level = knee.level(load, repeats=number + 1)
    chosen = choose_items(items, number, knee.count_requests(load), plan.seed)
    blocks = plan_blocks(
        chosen, [level], tuple(arms), plan.seed, plan.workload.segment_by, last=plan.last_arms
    )
    return Trial(
        point=point,
        load=load,
        number=number,
        block=msgspec.structs.replace(blocks[number], index=index),
    )


def choose_items(items: Sequence[Item], number: int, count: int, seed: int) -> tuple[Item, ...]:
    """Return `count` items: the next ones of a drawn order, over and over, each time under another name.

    At every load the same, so that two loads differ in nothing but the load; another stretch of the order in
    every trial.
    """
    by_id = {item.id: item for item in items}
    order = order_by_seed(by_id, "knee", seed)
    ids = [order[(number * count + index) % len(order)] for index in range(count)]
    times: dict[str, int] = {}
    for item_id in ids:
        times[item_id] = times.get(item_id, 0) + 1
    return tuple(
        rename(by_id[item_id], copy) for item_id, most in times.items() for copy in range(1, most + 1)
    )


def list_items(plan: Plan, items: Sequence[Item]) -> tuple[Item, ...]:
    """Return every item that a trial of this plan may ask, under all its names."""
    if plan.knee is None:
        return ()
    most = plan.knee.count_requests(plan.knee.grid[-1])
    copies = -(-most // len(items)) + 1
    return tuple(rename(item, copy) for item in items for copy in range(1, copies + 1))


def rename(item: Item, copy: int) -> Item:
    """Return an item as it is asked for the `copy`-th time in one trial."""
    return msgspec.structs.replace(item, id=f"{item.id}{_MARK}{copy}")


def prompt_of(item_id: str) -> str:
    """Return the id of the workload's item behind a request of the search."""
    return item_id.rpartition(_MARK)[0]


def knee_levels(plan: Plan) -> frozenset[str]:
    """Return the names of all loads of the search, none without one."""
    return frozenset(map(name_level, plan.knee.grid)) if plan.knee else frozenset()


def without_knee(run: RunData) -> RunData:
    """Return a run without what belongs to the search: none of it enters a cell of the verdict."""
    if not (levels := knee_levels(run.plan)):
        return run
    return msgspec.structs.replace(
        run,
        plan=run.plan.model_copy(update={"knee": None}),
        records=tuple(one for one in run.records if one.load not in levels),
        blocks=tuple(one for one in run.blocks if one.load not in levels),
        warmups=tuple(one for one in run.warmups if one.load not in levels),
        telemetry=tuple(
            one
            for one in run.telemetry
            if (None if one.period is None else one.period.rpartition("/")[0]) not in levels
        ),
    )


def knee_only(run: RunData) -> RunData:
    """Return the search of a run as a run of its own, each load a level like any other."""
    knee, levels = run.plan.knee, knee_levels(run.plan)
    assert knee is not None  # noqa: S101 - who asks for the search has one
    seen = {record.load for record in run.records} | {block.load for block in run.blocks}
    loads = [load for load in knee.grid if name_level(load) in seen]
    return msgspec.structs.replace(
        run,
        plan=run.plan.model_copy(update={"knee": None, "load": tuple(map(knee.level, loads))}),
        records=tuple(one for one in run.records if one.load in levels),
        blocks=tuple(one for one in run.blocks if one.load in levels),
        warmups=(),
        telemetry=(),
        judgements=(),
        behaviours=(),
        notices=(),
        items=list_items(run.plan, run.items),
    )
