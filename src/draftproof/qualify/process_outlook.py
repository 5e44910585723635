"""How many processes each arm of a plan will have, and what starting them takes, said before a run. Pure."""

from collections.abc import Sequence

from draftproof.load.turn import Turn
from draftproof.plan.schema import Plan
from draftproof.qualify.restarting import SHARE, choose_blocks, list_boundaries
from draftproof.verdict.order.doubts import LEAST_PROCESSES


def describe_processes(plan: Plan, periods: Sequence[Turn], start_s: float | None) -> tuple[str, ...]:
    """Return a sentence on the arms that are started, and one on those that are attached to, where there are.

    Args:
        plan: the plan.
        periods: every measurement period, in order.
        start_s: how long all arms that the run starts took to start; None where it starts none, or each for
            its own periods.
    """
    attached = [name for name in ("baseline", "candidate", "alternative") if _is_attached(plan, name)]
    told = [] if len(attached) == len(_sections(plan)) else [_describe_started(plan, periods, start_s)]
    return (*told, *([_describe_attached(plan, attached)] if attached else []))


def _describe_started(plan: Plan, periods: Sequence[Turn], start_s: float | None) -> str:
    if plan.placement == "one_at_a_time":
        return "processes: each arm is started anew for its periods"
    boundaries, wanted = len(list_boundaries(periods)), plan.limits.restarts
    cost_s = start_s or 0.0
    if wanted != "auto":
        count = len(choose_blocks(periods, wanted))
        return (
            f"processes: {count + 1} of each arm that the run starts (limits.restarts = {wanted}); their "
            f"starts take {_seconds((count + 1) * cost_s)} and warm-ups"
        )
    if not boundaries:
        return "processes: 1 of each arm that the run starts: no load has a second block to start anew before"
    least = min(LEAST_PROCESSES, boundaries + 1)
    measured_s = (least - 1) * cost_s * (1 - SHARE) / SHARE
    return (
        f"processes: up to {boundaries + 1} of each arm that the run starts (limits.restarts = auto); a "
        f"start of all takes {_seconds(cost_s)} and warm-ups, at most a quarter of the run: {least} of each "
        f"from about {_seconds(measured_s)} of measuring on"
    )


def _describe_attached(plan: Plan, attached: Sequence[str]) -> str:
    arms = plan.arms
    if {"baseline", "candidate"} <= set(attached) and arms.baseline.url == arms.candidate.url:
        return "processes: baseline and candidate share one, whose luck is in no ratio of the two"
    several = len(attached) > 1
    return (
        f"processes: {' and '.join(attached)} {'are' if several else 'is'} attached to and cannot be started "
        f"anew: one process{' each' if several else ''}, unless it is started anew between parts of the run "
        "(Ctrl-C, then --resume)"
    )


def _sections(plan: Plan) -> list[str]:
    return ["baseline", "candidate", *(["alternative"] if plan.arms.alternative is not None else [])]


def _is_attached(plan: Plan, name: str) -> bool:
    arm = getattr(plan.arms, name)
    return arm is not None and arm.url is not None


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"
