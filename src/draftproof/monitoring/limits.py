"""The limits of alerts that no plan gives alone: the envelope's load, and those that nothing gives. Pure."""

from draftproof.monitoring.watch import Unwatched
from draftproof.plan.rollback_limits import Limit
from draftproof.plan.schema import Plan
from draftproof.verdict.results import Results

ADOPTING = ("adopt", "adopt_limited")


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
    count = f"{max(loads)} request{'' if max(loads) == 1 else 's'}"
    source = f"the envelope's highest load of {count}{widest}{part}"
    return Limit(value=max(loads) / replicas, source=source)


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
