"""The limits that alerts compare with: the plan's, or what follows from thresholds and objectives. Pure."""

from draftproof.monitoring.watch import Limit, Unwatched
from draftproof.plan.schema import Plan
from draftproof.verdict.results import Results

TAIL_SHARES = {"p90": 0.9, "p95": 0.95, "p99": 0.99}
ADOPTING = ("adopt", "adopt_limited")


def find_limits(plan: Plan) -> dict[str, Limit]:
    """Return every limit that plan states or implies, by what it limits; one that neither gives is absent."""
    rollback, thresholds, objectives = plan.rollback, plan.thresholds, plan.objectives
    found = {
        "tail_ttft_s": _milliseconds("max_ttft_ms", rollback.max_ttft_ms, "ttft_ms", objectives.ttft_ms),
        "tail_tpot_s": _milliseconds("max_tpot_ms", rollback.max_tpot_ms, "tpot_ms", objectives.tpot_ms),
        "slowdown": _either(
            "net_slowdown_ratio",
            rollback.net_slowdown_ratio,
            Limit(value=1 + thresholds.harm_margin, source="1 + thresholds.harm_margin"),
        ),
        "failed_share": _own("max_failed_share", rollback.max_failed_share),
        "failed_excess": Limit(value=thresholds.failure_margin, source="thresholds.failure_margin"),
        "cache_usage": _own("max_cache_usage", rollback.max_cache_usage),
        "preemptions": _own("max_preemptions_per_request", rollback.max_preemptions_per_request),
        "acceptance_length": _own("min_acceptance_length", rollback.min_acceptance_length),
    }
    return {name: limit for name, limit in found.items() if limit is not None}


def find_load_limit(results: Results, plan: Plan) -> Limit | None:
    """Return the most requests in flight of one replica inside the envelope, None without an envelope.

    The run's load went to all replicas of the candidate together, so a replica's part is taken.
    """
    entries = results.verdict.envelope if results.verdict.decision in ADOPTING else ()
    if not entries:
        return None
    replicas = max(len(plan.arms.candidate.metrics_urls), 1)
    loads = {entry.max_concurrency for entry in entries}
    widest = "" if len(loads) == 1 else " of its widest segment"
    part = "" if replicas == 1 else f" over {replicas} replicas"
    source = f"the envelope's highest load of {max(loads)} requests{widest}{part}"
    return Limit(value=max(loads) / replicas, source=source)


def tail_of(plan: Plan) -> str:
    """Return the quantile of the tail objectives."""
    return plan.rollback.quantile or plan.thresholds.tail_quantile


def floor_of_tail(plan: Plan) -> int:
    """Return the requests a window needs for a tail: the plan's floor, and one beyond the quantile."""
    return max(plan.rollback.minimum_requests, round(1 / (1 - TAIL_SHARES[tail_of(plan)])))


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


def _own(key: str, value: float | None) -> Limit | None:
    return None if value is None else Limit(value=value, source=f"rollback.{key}")


def _either(key: str, value: float | None, implied: Limit) -> Limit:
    return _own(key, value) or implied


def _milliseconds(key: str, value: float | None, objective: str, implied: float | None) -> Limit | None:
    if value is not None:
        return Limit(value=value / 1e3, source=f"rollback.{key}")
    return None if implied is None else Limit(value=implied / 1e3, source=f"objectives.{objective}")
