"""What a plan can show at best, said before anything is measured, and which loads have too few blocks.

Counted level by level: a mix of classes asks at its level as many items as its shares allow, and no more.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from draftproof.judge.decide.guardrails import pairs_needed_for_margin
from draftproof.judge.decide.preceding import LEAST_PROCESSES
from draftproof.judge.decide.tails import tail_share
from draftproof.judge.observe.pairs import DECISIVE, Pairs
from draftproof.judge.observe.run_data import ALL_SEGMENTS, PreparedRun
from draftproof.judge.observe.run_data import ALL_SEGMENTS as ALL
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.samples import Shortfall
from draftproof.judge.stats.quantile_ratio import tail_floor
from draftproof.judge.stats.spending import repeated_level
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Plan, Sequential
from draftproof.workload.blocks import (
    choose_items,
    choose_over_repeats,
    least_blocks,
    size_block,
)
from draftproof.workload.items import Item
from draftproof.workload.segments import segment_key

_BLOCKS = 12
_NOT_COMPARED = {
    "checks": "No item has a check: quality cannot be compared, so no gain can be claimed; add checks, or "
    'hold greedy answers to the baseline\'s with comparison.quality = "agreement".',
    "agreement": "No item has a check and none is greedy: quality cannot be compared, so no gain can be "
    "claimed; add checks, ask at temperature 0, or ask of latency alone with comparison.quality = "
    '"latency_only".',
}


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The different items that a level asks over all its repeats, and how many it asks in one."""

    level: LoadLevel
    items: tuple[Item, ...]
    once: int

    def count_compared(self, quality: str) -> int:
        """How many have an answer whose quality can be compared."""
        return count_compared(self.items, quality)


def count_compared(items: Iterable[Item], quality: str) -> int:
    """Return how many items have a check or, with agreement, an answer that the baseline's can be held to."""
    return sum(bool(item.checks) or (quality == "agreement" and item.is_greedy) for item in items)


def forecast_shortfalls(plan: Plan, items: Sequence[Item]) -> tuple[Shortfall, ...]:
    """Return why a run of these items could claim no gain, however fast the candidate is; widest first.

    Raises:
        UsageError: a load level names a class that no item has.
    """
    asked = [_list_asked(plan, level, items) for level in plan.load]
    return (
        *_too_few_pairs(plan, items, asked),
        *_too_few_blocks(plan, asked),
        *_too_few_processes(plan),
        *_too_short_a_tail(plan, items, asked),
        *_too_few_prompts(plan, items),
        *_too_few_of_a_class(plan, items, asked),
    )


def _list_asked(plan: Plan, level: LoadLevel, items: Sequence[Item]) -> _Asked:
    dimensions = plan.workload.segment_by
    return _Asked(
        level=level,
        items=choose_over_repeats(items, level, plan.seed, dimensions),
        once=len(choose_items(items, level, 0, plan.seed, dimensions)),
    )


def _too_few_prompts(plan: Plan, items: Sequence[Item]) -> Iterator[Shortfall]:
    floor = plan.comparison.minimum_prompts
    for segment, count in _count_segments(plan, items):
        if count < floor:
            text = f"{segment} has {count} prompts and needs {floor - count} more to be judged at all."
            yield Shortfall(text=text, segment=segment, load=ALL, more=floor - count)


def _too_few_of_a_class(plan: Plan, items: Sequence[Item], asked: Iterable[_Asked]) -> Iterator[Shortfall]:
    """Say which segments have enough items, of which the shares of a level's classes leave too few."""
    floor, every = plan.comparison.minimum_prompts, dict(_count_segments(plan, items))
    for one in asked:
        for segment, count in _count_segments(plan, one.items):
            if count < floor <= every[segment]:
                lacking = _lacking(plan.workload.segment_by[0], items, one, floor / count)
                text = (
                    f"At load {one.level.name} the shares of its classes leave {segment} {count} of "
                    f"{every[segment]} prompts, and it needs {floor - count} more to be judged at all: give "
                    f"its class a larger share, or add {lacking}."
                )
                yield Shortfall(text=text, segment=segment, load=one.level.name, more=floor - count)


def _count_segments(plan: Plan, items: Iterable[Item]) -> list[tuple[str, int]]:
    return sorted(Counter(segment_key(item, plan.workload.segment_by) for item in items).items())


def _lacking(dimension: str, items: Sequence[Item], asked: _Asked, factor: float) -> str:
    """Return how many items of which classes a level lacks to ask `factor` times as many of each class."""
    there, kept = (Counter(item.segments.get(dimension) for item in some) for some in (items, asked.items))
    wanted = {name: math.ceil(factor * kept[name]) - there[name] for name in asked.level.classes}
    return " and ".join(
        f"{count:,} item{'' if count == 1 else 's'} of {dimension} = {name}"
        for name, count in wanted.items()
        if count > 0
    )


def _too_short_a_tail(plan: Plan, items: Sequence[Item], asked: Iterable[_Asked]) -> Iterator[Shortfall]:
    """Only representative evidence lets a tail that is not shown withhold a gain."""
    quantile = plan.thresholds.tail_quantile
    floor = tail_floor(tail_share(plan.thresholds), final_level(plan.comparison.confidence, plan.sequential))
    if plan.evidence != "representative":
        return
    if len(items) < floor:
        text = (
            f"{len(items)} prompts cannot show {quantile} to be within tail_margin at any load: at least "
            f"{floor - len(items)} more are needed, so no gain can be claimed."
        )
        yield Shortfall(text=text, segment=ALL, load=ALL, more=floor - len(items))
        return
    for one in asked:
        if (count := len(one.items)) < floor:
            yield _at_load(
                one,
                f"At load {one.level.name} the {count} prompts that the shares of its classes leave cannot "
                f"show {quantile} to be within tail_margin: at least {floor - count} more are needed, so no "
                "gain can be claimed.",
                floor - count,
            )


def _too_few_blocks(plan: Plan, asked: Iterable[_Asked]) -> Iterator[Shortfall]:
    least = least_blocks(is_representative=plan.evidence == "representative")
    for one in asked:
        if text := describe_few_planned(one.level, one.once, least):
            yield _at_load(one, text, key="load")


def _too_few_processes(plan: Plan) -> Iterator[Shortfall]:
    """Only representative evidence lets the luck of a start withhold a gain."""
    baseline, candidate = plan.arms.baseline.url, plan.arms.candidate.url
    wanted = plan.limits.restarts
    if plan.evidence != "representative" or (baseline is not None and baseline == candidate):
        return
    attached = [arm for arm, url in (("baseline", baseline), ("candidate", candidate)) if url is not None]
    if attached:
        text = (
            f"The run only attaches to {' and '.join(attached)}, and one process may be fast by chance: a "
            f"gain needs {LEAST_PROCESSES} processes of each arm. Give commands, or restart it between parts "
            "of the run (Ctrl-C, then --resume)."
        )
        yield Shortfall(text=text, segment=ALL, load=ALL, evidence=Reference("plan", name="arms"))
    elif plan.placement == "together" and wanted != "auto" and wanted + 1 < LEAST_PROCESSES:
        text = (
            f"With limits.restarts = {wanted} an arm may be fast by the chance of its start: a gain needs "
            f"{LEAST_PROCESSES} processes of each arm, so set {LEAST_PROCESSES - 1} or more, or auto."
        )
        yield Shortfall(text=text, segment=ALL, load=ALL, evidence=Reference("plan", name="limits"))


def _too_few_pairs(plan: Plan, items: Sequence[Item], asked: Iterable[_Asked]) -> Iterator[Shortfall]:
    quality = plan.comparison.quality
    is_compared = quality == "latency_only" or count_compared(items, quality) > 0
    if not is_compared:
        yield Shortfall(text=_NOT_COMPARED[quality], segment=ALL, load=ALL)
    for one in asked:
        if quality != "latency_only" and is_compared and not one.count_compared(quality):
            yield _at_load(
                one,
                f"At load {one.level.name} no item that the shares of its classes leave shows quality: it "
                "cannot be compared there, so no gain can be claimed.",
            )
        yield from _pairs_missing(plan, one)


def _pairs_missing(plan: Plan, asked: _Asked) -> Iterator[Shortfall]:
    thresholds = plan.thresholds
    shares = [
        ("failure_margin", thresholds.failure_margin, len(asked.items)),
    ]
    if plan.comparison.quality != "latency_only":
        compared = asked.count_compared(plan.comparison.quality)
        shares.append(("quality_margin", thresholds.quality_margin, compared))
    if plan.evidence == "representative":  # other evidence notes ends of answers that are not shown
        shares.append(("token_limit_margin", thresholds.token_limit_margin, len(asked.items)))
    for name, margin, count in shares:
        level = final_level(plan.comparison.confidence, plan.sequential)
        needed = pairs_needed_for_margin(margin, level) if margin > 0 else None
        if count and needed is not None and count < needed:
            yield _at_load(
                asked,
                f"At load {asked.level.name} {count} prompts cannot show {name} = {margin:g}, even without "
                f"one difference: {needed - count} more are needed, so no gain can be claimed.",
                needed - count,
            )


def _at_load(asked: _Asked, text: str, more: int | None = None, key: str = "workload") -> Shortfall:
    return Shortfall(
        text=text, segment=ALL, load=asked.level.name, more=more, evidence=Reference("plan", name=key)
    )


def final_level(confidence: float, sequential: Sequential | None, claims: int = 1) -> float:
    """Return the level of an interval after all analyses of a load, of which `claims` hold together.

    Of a load of twelve blocks: where analyses lie hardly moves the last one's level.
    """
    alpha = (1 - confidence) / max(1, claims)
    if sequential is None:
        return 1 - alpha
    points = sequential.list_points(_BLOCKS, least_blocks(is_representative=True))
    return repeated_level(alpha, tuple(point / _BLOCKS for point in points), sequential.spending)


def count_blocks(level: LoadLevel, asked: int) -> int:
    """Return the blocks that a plan makes of a level that asks `asked` items in each repeat."""
    return level.repeats * -(-asked // size_block(level, asked))


def describe_few_planned(level: LoadLevel, asked: int, least: int) -> str | None:
    """Return why a plan's load can claim no gain, and what to do; None with the `least` blocks it takes.

    `asked`: items that it asks in each repeat.
    """
    blocks = count_blocks(level, asked)
    if not 0 < blocks < least:
        return None
    is_divisible = level.repeats * asked >= least
    how = "set a smaller block_size or more repeats" if is_divisible else "add prompts or repeats"
    return _describe(level.name, blocks, least, f"{how} for it")


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
        f"Load {load} has {blocks} of at least {least} blocks, too few to tell a gain from what happened in "
        f"one period: {why}."
    )


def _explain(prepared: PreparedRun, level: LoadLevel, asked: int) -> str:
    """Say what happened to the blocks of a load that a plan has enough of."""
    planned = count_blocks(level, asked)
    own = {block for load, block, _ in prepared.periods if load == level.name}
    periods = {block: [prepared.periods.get((level.name, block, arm)) for arm in DECISIVE] for block in own}
    whole = {block: pair for block, pair in periods.items() if all(one and one.completed for one in pair)}
    if len(whole) < planned:
        return f"{planned - len(whole)} of the plan's {planned} were not measured; go on with --resume"
    late = sum(any(one and not one.is_timed for one in pair) for pair in whole.values())
    if late:
        return (
            f"in {late} of the plan's {planned} the client was late or the host disturbed a period, whose "
            "times do not count; measure on a quieter host or plan more blocks"
        )
    return f"in the others of the plan's {planned} no prompt was answered by both arms"
