"""Conversations of an arm: how many came to their end, on time and with passing checks. Pure."""

from collections import defaultdict
from collections.abc import Sequence

from draftproof.metrics.service import is_on_time
from draftproof.stats.shares import share_interval
from draftproof.verdict.behaviour.results import ConversationSummary
from draftproof.verdict.figure import Figure
from draftproof.verdict.run_data import Observation, PreparedRun

Conversation = Sequence[Observation]


def summarise_conversations(prepared: PreparedRun) -> tuple[ConversationSummary, ...]:
    """Return every arm at every load."""
    return tuple(_summarise(prepared, arm, load) for load in prepared.loads for arm in prepared.arms)


def _summarise(prepared: PreparedRun, arm: str, load: str) -> ConversationSummary:
    found = _group(prepared.of_arm(arm, load))
    states = [_is_good(prepared, one) for one in found]
    completed, judged = sum(map(_is_completed, found)), [one for one in states if one is not None]
    level = prepared.plan.comparison.confidence
    return ConversationSummary(
        arm=arm,
        load=load,
        conversations=len(found),
        multi_turn=sum(one[0].item.turns > 1 for one in found),
        requests=sum(map(len, found)),
        completed=completed,
        completed_share=_to_share(completed, len(found), level),
        good=sum(judged),
        unjudged=len(states) - len(judged),
        good_share=_to_share(sum(judged), len(judged), level),
    )


def _group(seen: Sequence[Observation]) -> list[Conversation]:
    """Return the turns of each conversation; a repeated attempt at a turn never replaces a worse one."""
    turns: defaultdict[tuple[int, int, str], list[Observation]] = defaultdict(list)
    for one in seen:
        turns[one.record.block, one.record.repeat, one.record.item_id].append(one)
    return list(turns.values())


def _is_completed(conversation: Conversation) -> bool:
    asked = {one.record.conversation_turn for one in conversation}
    return len(asked) == conversation[0].item.turns and all(one.is_ok for one in conversation)


def _is_good(prepared: PreparedRun, conversation: Conversation) -> bool | None:
    """Tell whether a conversation is completed, on time and passes; one certain fault settles it."""
    if not _is_completed(conversation):
        return False
    parts: list[bool | None] = [one.is_passed for one in conversation if one.wanted_checks]
    parts += [
        is_on_time(one.record, one.metrics, prepared.plan.objectives) if one.timed else None
        for one in conversation
    ]
    return False if False in parts else None if None in parts else True


def _to_share(count: int, n: int, level: float) -> Figure:
    if n == 0:
        return Figure(value=None, level=level, reason="no conversation could be judged")
    share = share_interval(count, n, level)
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=n)
