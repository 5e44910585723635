"""What rolls speculation back in operation, in words with units: stated by the plan or derived. Pure."""

from collections.abc import Iterator

from draftproof.plan.rollback_limits import Limit, find_limits, floor_of_tail, tail_of
from draftproof.plan.schema import Plan

# A limit by what it limits, and the key that would give it where nothing does.
_TAILS = {
    "tail_ttft_s": ("first token", "rollback.max_ttft_ms or objectives.ttft_ms"),
    "tail_tpot_s": ("time per token", "rollback.max_tpot_ms or objectives.tpot_ms"),
}


def describe_rollback(plan: Plan) -> str:
    """Return what rolls back, what only asks for a look, and what has no limit, a sentence each."""
    limits = find_limits(plan)
    sentences = (
        f"Rolls back by the plan's [rollback]: {'; '.join(_list_triggers(plan, limits))}",
        f"Asks for a look: {'; '.join(_list_cautions(limits))}",
        _describe_window(plan),
        *(
            f"No limit on {words} at {tail_of(plan)}: neither {key.replace(' or ', ' nor ')} is set"
            for name, (words, key) in _TAILS.items()
            if name not in limits
        ),
    )
    return "".join(f" {sentence}." for sentence in sentences)


def _list_triggers(plan: Plan, limits: dict[str, Limit]) -> Iterator[str]:
    rollback = plan.rollback
    for name, (words, _) in _TAILS.items():
        if name in limits:
            value = f"{words} at {tail_of(plan)} above {1e3 * limits[name].value:.6g} ms"
            yield _sourced(value, limits[name])
    slowdown = limits["slowdown"]
    yield _sourced(f"time per token above {slowdown.value:.6g} times the hold-out's", slowdown)
    if "failed_share" in limits:
        yield f"failed requests above {_percent(limits['failed_share'].value)}"
    else:
        excess = limits["failed_excess"]
        yield _sourced(
            f"failed requests above the hold-out's share by {100 * excess.value:.6g} points", excess
        )
    yield (
        f"more than {rollback.critical_errors} critical errors of the application in {rollback.window_s} s"
    )
    yield f"key-value cache above {_percent(rollback.max_cache_usage)} for {rollback.cache_for_s} s"


def _list_cautions(limits: dict[str, Limit]) -> Iterator[str]:
    yield f"preemptions above {limits['preemptions'].value:.6g} per finished request"
    if "acceptance_length" in limits:
        yield f"acceptance below {limits['acceptance_length'].value:.6g} tokens a step"


def _describe_window(plan: Plan) -> str:
    rollback = plan.rollback
    return (
        f"Each is taken over {rollback.window_s} s, holds for {rollback.for_s} s where no other time stands, "
        f"and needs {rollback.minimum_requests} finished requests ({floor_of_tail(plan)} at the tail); "
        f"the hold-out is {_percent(rollback.holdout_share)} of the traffic inside the envelope"
    )


def _sourced(text: str, limit: Limit) -> str:
    """Say where a limit comes from that `[rollback]` leaves open."""
    return f"{text} (from {limit.source})" if limit.is_derived else text


def _percent(share: float) -> str:
    return f"{100 * share:.6g} %"
