"""The limits of alerts that no plan gives alone: the envelope's load, and those that nothing gives. Pure."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TypeVar

from draftproof.monitoring.watch import Unwatched
from draftproof.plan.rollback_limits import Limit
from draftproof.plan.schema import Plan
from draftproof.verdict.load_size import write_rate
from draftproof.verdict.results import Results

T = TypeVar("T", int, float)

ADOPTING = ("adopt", "adopt_limited")


def find_load_limits(results: Results, plan: Plan) -> dict[str, Limit]:
    """Return the most requests in flight ("load") and per second ("rate") of one replica inside the envelope.

    The run's load went to all replicas of the candidate together, so a replica's part is taken. None of what
    no entry of the envelope states.
    """
    entries = results.verdict.envelope if results.verdict.decision in ADOPTING else ()
    counts = {one.max_concurrency for one in entries if one.max_concurrency is not None}
    rates = {one.max_rps for one in entries if one.max_rps is not None}
    load = _share(counts, plan, lambda most: f"load of {most:,} request{'' if most == 1 else 's'}")
    rate = _share(rates, plan, lambda most: f"rate of {write_rate(most)}")
    return {name: limit for name, limit in (("load", load), ("rate", rate)) if limit is not None}


def _share(values: AbstractSet[T], plan: Plan, write: Callable[[T], str]) -> Limit | None:
    if not values:
        return None
    replicas = max(len(plan.arms.candidate.metrics_urls), 1)
    most = max(values)
    widest = "" if len(values) == 1 else " of its widest segment"
    part = "" if replicas == 1 else f" over {replicas} replicas"
    return Limit(value=most / replicas, source=f"the envelope's highest {write(most)}{widest}{part}")


def list_unset(limits: dict[str, Limit]) -> list[Unwatched]:
    """Return the alerts that no key of the plan gives a limit for."""
    keys = {
        "tail_ttft_s": ("first token at the tail", "rollback.max_ttft_ms or objectives.ttft_ms"),
        "tail_tpot_s": ("time per token at the tail", "rollback.max_tpot_ms or objectives.tpot_ms"),
        "acceptance_length": ("low acceptance length", "rollback.min_acceptance_length"),
    }
    return [
        Unwatched(what=what, why=f"the plan sets no limit: give {key}")
        for name, (what, key) in keys.items()
        if name not in limits
    ]


def list_unrated(limits: dict[str, Limit], known: AbstractSet[str]) -> list[Unwatched]:
    """Return the envelope's rate where the engine counts no requests to hold against it."""
    if "rate" not in limits or "arm:draftproof_request_rate" in known:
        return []
    why = "the engine counts no requests: limit the rate where requests come in"
    return [Unwatched(what="rate beyond the envelope", why=why)]
