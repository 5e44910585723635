"""The devices of each arm: what a plan grants, and that arms are compared within one budget. Pure.

The limits at which operation goes back: what `[rollback]` states, or what follows from the rest. Pure.

Owns the derivation of what `[rollback]` leaves open; the rules and the answers of a verdict read it here.
"""

import msgspec

from draftproof.core.errors import IncompatibleError
from draftproof.plan.schema import Arm, Plan


def list_budgets(plan: Plan) -> dict[str, int]:
    """Return the devices of every arm that the plan describes."""
    return {name: arm.devices for name, arm in plan.arms if isinstance(arm, Arm)}


def check_budgets(plan: Plan) -> None:
    """Do nothing if the arms have one budget, or the plan declares that they have not.

    Raises IncompatibleError: names the devices of every arm.
    """
    budgets = list_budgets(plan)
    if plan.comparison.unequal_budgets or len(set(budgets.values())) == 1:
        return
    listed = ", ".join(f"{name} {count}" for name, count in budgets.items())
    raise IncompatibleError(
        f"the arms have unequal budgets (devices: {listed}): a faster answer on more devices is no gain.",
        place="arms",
        fix="give every arm the same number of devices, or write comparison.unequal_budgets = true: figures "
        "per device then decide.",
    )


def describe_topology(arm: Arm, *, has_drafter: bool) -> str:
    """Return the devices of an arm in words, and where its drafter runs."""
    devices = f"{arm.devices} device{'s' if arm.devices > 1 else ''}"
    if not has_drafter:
        return devices
    if not arm.drafter_devices:
        return f"{devices}, the drafter on the target's"
    return f"{devices}, {arm.drafter_devices} of them for the drafter alone"


TAIL_SHARES = {"p90": 0.9, "p95": 0.95, "p99": 0.99}


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A value that an alert compares with, and which key of the plan it comes from."""

    value: float
    source: str

    @property
    def is_derived(self) -> bool:
        """Whether `[rollback]` leaves it open, so that it follows from another table."""
        return not self.source.startswith("rollback.")


def find_limits(plan: Plan) -> dict[str, Limit]:
    """Return every limit that plan states or implies, by what it limits; one that neither gives is absent."""
    rollback, thresholds, objectives = plan.rollback, plan.thresholds, plan.objectives
    found = {
        "tail_ttft_s": _milliseconds("max_ttft_ms", rollback.max_ttft_ms, "ttft_ms", objectives.ttft_ms),
        "tail_tpot_s": _milliseconds("max_tpot_ms", rollback.max_tpot_ms, "tpot_ms", objectives.tpot_ms),
        "slowdown": _own("net_slowdown_ratio", rollback.net_slowdown_ratio)
        or Limit(value=1 + thresholds.harm_margin, source="1 + thresholds.harm_margin"),
        "failed_share": _own("max_failed_share", rollback.max_failed_share),
        "failed_excess": Limit(value=thresholds.failure_margin, source="thresholds.failure_margin"),
        "cache_usage": _own("max_cache_usage", rollback.max_cache_usage),
        "preemptions": _own("max_preemptions_per_request", rollback.max_preemptions_per_request),
        "acceptance_length": _own("min_acceptance_length", rollback.min_acceptance_length),
    }
    return {name: limit for name, limit in found.items() if limit is not None}


def tail_of(plan: Plan) -> str:
    """Return the quantile of the tail objectives."""
    return plan.rollback.quantile or plan.thresholds.tail_quantile


def floor_of_tail(plan: Plan) -> int:
    """Return the requests a window needs for a tail: the plan's floor, and one beyond the quantile."""
    return max(plan.rollback.minimum_requests, round(1 / (1 - TAIL_SHARES[tail_of(plan)])))


def _own(key: str, value: float | None) -> Limit | None:
    return None if value is None else Limit(value=value, source=f"rollback.{key}")


def _milliseconds(key: str, value: float | None, objective: str, implied: float | None) -> Limit | None:
    if value is not None:
        return Limit(value=value / 1e3, source=f"rollback.{key}")
    return None if implied is None else Limit(value=implied / 1e3, source=f"objectives.{objective}")
