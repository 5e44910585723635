"""Loads with too few blocks to credit a gain: how many it takes, why they lack, and what to do. Pure."""

from collections.abc import Iterator

import numpy as np

from draftproof.judge.observe.pairs import DECISIVE, Pairs
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.plan.load import LoadLevel
from draftproof.workload.blocks import ENOUGH_BLOCKS, FEWEST_BLOCKS, choose_items, size_block


def blocks_needed(*, is_representative: bool) -> int:
    """Return the blocks of a load without which no gain is credited there."""
    return ENOUGH_BLOCKS if is_representative else FEWEST_BLOCKS


def count_blocks(level: LoadLevel, asked: int) -> int:
    """Return the blocks that a plan makes of a level that asks `asked` items in each repeat."""
    return level.repeats * -(-asked // size_block(level, asked))


def describe_few_planned(level: LoadLevel, asked: int, least: int) -> str | None:
    """Return why a plan's load credits no gain, and what to do; None with the `least` blocks it takes.

    `asked`: items that it asks in each repeat.
    """
    blocks = count_blocks(level, asked)
    if not 0 < blocks < least:
        return None
    is_divisible = level.repeats * asked >= least
    how = "set a smaller block_size, or more repeats," if is_divisible else "add prompts, or repeats,"
    return _describe(level.name, blocks, least, f"{how} for this load")


def find_few_blocks(prepared: PreparedRun, pairs: Pairs, least: int) -> Iterator[tuple[str, str]]:
    """Yield the loads of a run in which too few blocks have times that count, and why."""
    columns, plan = prepared.columns, prepared.plan
    for (segment, load), inside in pairs.cells.items():
        timed = inside.is_ok & columns.timed[inside.mine] & columns.timed[inside.theirs]
        blocks = len(np.unique(columns.blocks[inside.mine[timed]]))
        if segment == ALL_SEGMENTS and 0 < blocks < least:
            level = prepared.level(load)
            asked = len(choose_items(prepared.run.items, level, 0, plan.seed, plan.workload.segment_by))
            planned = describe_few_planned(level, asked, least)
            yield load, planned or _describe(load, blocks, least, _explain(prepared, level, asked))


def _describe(load: str, blocks: int, least: int, why: str) -> str:
    return (
        f"Load {load} has {blocks} of at least {least} blocks, so what a period did to all of its prompts "
        f"cannot be told from an effect, and no gain can be credited: {why}."
    )


def _explain(prepared: PreparedRun, level: LoadLevel, asked: int) -> str:
    """Say what happened to the blocks of a load that a plan has enough of."""
    planned = count_blocks(level, asked)
    own = {block for load, block, _ in prepared.turns if load == level.name}
    turns = {block: [prepared.turns.get((level.name, block, arm)) for arm in DECISIVE] for block in own}
    whole = {block: pair for block, pair in turns.items() if all(one and one.completed for one in pair)}
    if len(whole) < planned:
        return f"{planned - len(whole)} of the plan's {planned} were not measured; go on with --resume"
    late = sum(any(one and not one.is_timed for one in pair) for pair in whole.values())
    if late:
        return (
            f"in {late} of the plan's {planned} the client was late or the host disturbed a period, whose "
            "times do not count; measure on a quieter host or plan more blocks"
        )
    return f"in the others of the plan's {planned} no prompt was answered by both arms"
