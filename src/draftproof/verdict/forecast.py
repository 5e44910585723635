"""What a plan can show at best, said before anything is measured. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

from draftproof.plan.schema import Plan
from draftproof.stats.quantile_ratio import tail_floor
from draftproof.stats.turns import MINIMUM_BLOCKS
from draftproof.verdict.guardrails import pairs_needed_for_margin
from draftproof.verdict.tails import tail_share
from draftproof.workload.items import Item
from draftproof.workload.segments import segment_key


def forecast_shortfalls(plan: Plan, items: Sequence[Item]) -> tuple[str, ...]:
    """Return in words why a run of these items could credit no gain, however fast the candidate is."""
    return (
        *_too_few_prompts(plan, items),
        *_too_few_pairs(plan, items),
        *_too_short_a_tail(plan, items),
        *_too_few_blocks(plan, items),
    )


def _too_few_prompts(plan: Plan, items: Sequence[Item]) -> Iterator[str]:
    floor = plan.comparison.minimum_prompts
    counts = Counter(segment_key(item, plan.workload.segment_by) for item in items)
    for segment, count in sorted(counts.items()):
        if count < floor:
            yield f"{segment} has {count} prompts and needs {floor - count} more to be judged at all."


def _too_short_a_tail(plan: Plan, items: Sequence[Item]) -> Iterator[str]:
    """Only representative evidence lets a tail that is not shown withhold a gain."""
    quantile = plan.thresholds.tail_quantile
    floor = tail_floor(tail_share(plan.thresholds), plan.comparison.confidence)
    if plan.evidence == "representative" and len(items) < floor:
        yield (
            f"{len(items)} prompts cannot show {quantile} to be within tail_margin at any load: at least "
            f"{floor - len(items)} more are needed, so no gain can be credited."
        )


def _too_few_blocks(plan: Plan, items: Sequence[Item]) -> Iterator[str]:
    """Only representative evidence lets turns that nobody can tell from prompts withhold a gain."""
    for level in plan.load:
        blocks = level.repeats * -(-len(items) // level.block_size)
        if plan.evidence == "representative" and 0 < blocks < MINIMUM_BLOCKS:
            yield (
                f"Load {level.name} has {blocks} of at least {MINIMUM_BLOCKS} blocks, so what a turn does "
                "to all of its prompts cannot be told and no gain can be credited: set a smaller block_size."
            )


def _too_few_pairs(plan: Plan, items: Sequence[Item]) -> Iterator[str]:
    checked = sum(bool(item.checks) for item in items)
    if not checked:
        yield "No item has a check: quality cannot be compared, so no gain can be credited."
    confidence = plan.comparison.confidence
    for level in plan.load:
        shares = (
            ("failure_margin", plan.thresholds.failure_margin, len(items)),
            ("quality_margin", plan.thresholds.quality_margin, checked),
        )
        for name, margin, count in shares:
            needed = pairs_needed_for_margin(margin, confidence) if margin > 0 else None
            if count and needed is not None and count < needed:
                yield (
                    f"At load {level.name} {count} prompts cannot show {name} = {margin:g}, even without one "
                    f"difference: {needed - count} more are needed, so no gain can be credited."
                )
