"""Conversations of an arm: how many came to their end, on time and with passing checks. Pure."""

import numpy as np

from draftproof.stats.resampling import Floats, Ints
from draftproof.stats.shares import share_interval
from draftproof.verdict.behaviour.results import ConversationSummary
from draftproof.verdict.conversations import all_of, group_conversations
from draftproof.verdict.figure import Figure
from draftproof.verdict.run_data import PreparedRun


def summarise_conversations(prepared: PreparedRun) -> tuple[ConversationSummary, ...]:
    """Return every arm at every load."""
    return tuple(_summarise(prepared, arm, load) for load in prepared.loads for arm in prepared.arms)


def _summarise(prepared: PreparedRun, arm: str, load: str) -> ConversationSummary:
    columns, places = prepared.columns, prepared.places_of(arm, load)
    found = group_conversations(columns, places)
    judged = found.all_of(_judge(prepared, places))
    states = np.where(found.is_completed, judged, 0.0)
    known, good = int((~np.isnan(states)).sum()), int((states == 1).sum())
    completed, level = int(found.is_completed.sum()), prepared.plan.comparison.confidence
    return ConversationSummary(
        arm=arm,
        load=load,
        conversations=found.size,
        multi_turn=int((columns.turns_of_item[found.first] > 1).sum()),
        requests=len(places),
        completed=completed,
        completed_share=_to_share(completed, found.size, level),
        good=good,
        unjudged=found.size - known,
        good_share=_to_share(good, known, level),
    )


def _judge(prepared: PreparedRun, places: Ints) -> Floats:
    """Return 1 where a request is on time and passes, 0 for one certain fault, NaN where one is not known."""
    columns = prepared.columns
    on_time = np.where(columns.timed, columns.on_time(prepared.plan.objectives), np.nan)[places]
    passed = np.where(columns.has_checks, columns.passed, 1.0)[places]
    return all_of(on_time, passed)


def _to_share(count: int, n: int, level: float) -> Figure:
    if n == 0:
        return Figure(value=None, level=level, reason="no conversation could be judged")
    share = share_interval(count, n, level)
    return Figure(value=share.value, low=share.low, high=share.high, level=level, n=n)
