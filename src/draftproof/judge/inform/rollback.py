"""What rolls speculation back in operation, in words with units: stated by the plan or derived. Pure.

A trigger counts as watched only where `draftproof rules` can write an alert of it: both read the same limits
and the same signals of the engine.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from draftproof.plan.limits import Limit, find_limits, floor_of_tail, tail_of
from draftproof.plan.schema import Plan
from draftproof.services.engines import adapter_for

# A limit by what it limits, and the key that would give it where nothing does.
_TAILS = {
    "tail_ttft_s": ("first token", "rollback.max_ttft_ms or objectives.ttft_ms"),
    "tail_tpot_s": ("time per token", "rollback.max_tpot_ms or objectives.tpot_ms"),
}
CRITICAL = "critical_errors"
_CAUTIONS = frozenset({"preemptions", "acceptance_length"})
# The signal of an engine that each limit is watched by.
_SIGNALS = {
    "tail_ttft_s": "tail_ttft_seconds",
    "tail_tpot_s": "tail_time_per_token_seconds",
    "slowdown": "time_per_token_seconds",
    "failed_share": "failed_share",
    "failed_excess": "failed_share",
    "cache_usage": "cache_usage",
    "preemptions": "preemptions_per_request",
    "acceptance_length": "acceptance_length",
}
_COMPARED = frozenset({"slowdown", "failed_excess"})


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that ends speculation or asks for a look; `unwatched` says why no rule watches it."""

    limit: str
    words: str
    unwatched: str | None

    @property
    def rolls_back(self) -> bool:
        """Whether it is a rollback trigger; else it asks for a look."""
        return self.limit not in _CAUTIONS


def list_triggers(plan: Plan) -> tuple[Trigger, ...]:
    """Return every trigger that the plan states or implies, with what keeps a rule from watching it."""
    limits = find_limits(plan)
    return tuple(
        Trigger(limit=name, words=words, unwatched=_find_blindness(plan, name))
        for name, words in _list_words(plan, limits)
    )


def describe_rollback(plan: Plan) -> str:
    """Return what rolls back, what nothing watches, what only asks for a look, and what has no limit."""
    triggers, limits = list_triggers(plan), find_limits(plan)
    watched = [one.words for one in triggers if one.rolls_back and not one.unwatched]
    looks = [one.words for one in triggers if not one.rolls_back and not one.unwatched]
    sentences = (
        f"Rolls back by the plan's [rollback]: {'; '.join(watched) or 'nothing that a rule can watch'}",
        *_list_blind(triggers),
        *((f"Asks for a look: {'; '.join(looks)}",) if looks else ()),
        *((_describe_window(plan),) if watched or looks else ()),
        *(
            f"No limit on {words} at {tail_of(plan)}: neither {key.replace(' or ', ' nor ')} is set"
            for name, (words, key) in _TAILS.items()
            if name not in limits
        ),
    )
    return "".join(f" {sentence}." for sentence in sentences)


def _list_blind(triggers: Iterable[Trigger]) -> Iterator[str]:
    """Yield what no rule watches, once for each cause."""
    causes: dict[str, list[str]] = {}
    for one in triggers:
        if one.unwatched:
            causes.setdefault(one.unwatched, []).append(one.words)
    for cause, words in causes.items():
        yield f"No rule watches, since {cause}: {'; '.join(words)}"


def _find_blindness(plan: Plan, limit: str) -> str | None:
    """Return why no rule watches a limit, None where one does."""
    if limit == CRITICAL:
        return "no engine judges its answers"
    missing = adapter_for(plan.arms.candidate.engine).signals.missing.get(_SIGNALS[limit])
    if missing is not None:
        return missing
    if limit in _COMPARED and "holdout_share" not in plan.rollback.model_fields_set:
        return "the plan states no rollback.holdout_share to compare with"
    if limit in _COMPARED and plan.arms.candidate.engine != plan.arms.baseline.engine:
        return "the hold-out runs another engine, whose numbers are other quantities"
    return None


def _list_words(plan: Plan, limits: Mapping[str, Limit]) -> Iterator[tuple[str, str]]:
    rollback = plan.rollback
    for name, (words, _) in _TAILS.items():
        if name in limits:
            value = f"{words} at {tail_of(plan)} above {1e3 * limits[name].value:.6g} ms"
            yield name, _sourced(value, limits[name])
    slowdown = limits["slowdown"]
    yield "slowdown", _sourced(f"time per token above {slowdown.value:.6g} times the hold-out's", slowdown)
    if "failed_share" in limits:
        yield "failed_share", f"failed requests above {_percent(limits['failed_share'].value)}"
    else:
        excess = limits["failed_excess"]
        words = f"failed requests above the hold-out's share by {100 * excess.value:.6g} points"
        yield "failed_excess", _sourced(words, excess)
    yield (
        CRITICAL,
        f"more than {rollback.critical_errors} critical errors of the application in {rollback.window_s} s",
    )
    yield (
        "cache_usage",
        f"key-value cache above {_percent(rollback.max_cache_usage)} for {rollback.cache_for_s} s",
    )
    yield "preemptions", f"preemptions above {limits['preemptions'].value:.6g} per finished request"
    if "acceptance_length" in limits:
        yield "acceptance_length", f"acceptance below {limits['acceptance_length'].value:.6g} tokens a step"


def _describe_window(plan: Plan) -> str:
    rollback = plan.rollback
    return (
        f"Each is taken over {rollback.window_s} s, holds for {rollback.for_s} s where no other time is "
        f"given, and needs {rollback.minimum_requests} finished requests ({floor_of_tail(plan)} at the "
        f"tail); the hold-out is {_percent(rollback.holdout_share)} of the traffic inside the envelope"
    )


def _sourced(text: str, limit: Limit) -> str:
    """Say where a limit comes from that `[rollback]` leaves open."""
    return f"{text} (from {limit.source})" if limit.is_derived else text


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
