"""The devices of each arm: what a plan grants, and that arms are compared within one budget. Pure.

The limits at which operation goes back: what `[rollback]` states, or what follows from the rest. Pure.

Owns the derivation of what `[rollback]` leaves open; the rules and the answers of a verdict read it here.

How large a load is: requests kept in flight, or requests per second. Pure.

A closed loop is as large as its concurrency, an open one as its rate; the two are axes of their own and never
compared. The rate of a shape (ramp, steps, bursts, a replayed trace) is the mean of its counted arrivals as
they were scheduled, which is the same in every arm.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.core.clock import NS_PER_S
from draftproof.core.errors import IncompatibleError
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.plan.load import LoadLevel
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


Axis = Literal["concurrency", "rate"]


class LoadSize(msgspec.Struct, frozen=True, kw_only=True):
    """One measured load: `concurrency` of a closed loop, or `offered_rps` of an open one.

    `offered_rps` is None too where too few arrivals tell the rate of a shape. `shape` names what is not
    steady: "bursts", "replay at 2×", or the time of thought of a closed loop; "" for none.
    """

    concurrency: int | None = None
    offered_rps: float | None = None
    shape: str = ""

    @property
    def axis(self) -> Axis:
        """Whether requests in flight or requests per second make it larger."""
        return "rate" if self.concurrency is None else "concurrency"

    @property
    def value(self) -> float | None:
        """The size on its axis, None for a rate that is not known."""
        return self.offered_rps if self.concurrency is None else self.concurrency

    @property
    def order(self) -> tuple[int, float]:
        """Key by which loads are ordered: closed ones by concurrency, then open ones by rate."""
        return (int(self.axis == "rate"), math.inf if self.value is None else self.value)

    @property
    def label(self) -> str:
        """Return "8 requests in flight", "4.2 requests/s" or "bursts, 4.2 requests/s on average"."""
        if self.concurrency is not None:
            return _add_shape(in_flight(self.concurrency), self.shape)
        return self._rate_label

    @property
    def short(self) -> str:
        """Return the label for a table: "8 in flight", "4.2 requests/s"."""
        if self.concurrency is not None:
            return _add_shape(f"{self.concurrency:,} in flight", self.shape)
        return self._rate_label

    @property
    def _rate_label(self) -> str:
        if self.offered_rps is None:
            return self.shape or "an unknown rate"
        rate = write_rate(self.offered_rps)
        return f"{self.shape}, {rate} on average" if self.shape else rate


class LoadLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Up to which load something holds: each limit that is stated has to hold; None is not stated."""

    concurrency: int | None = None
    rps: float | None = None

    def covers(self, size: LoadSize) -> bool:
        """Return whether a measured load lies within the limit on its own axis."""
        own = self.rps if size.axis == "rate" else self.concurrency
        return own is not None and size.value is not None and size.value <= own

    @property
    def order(self) -> tuple[float, float]:
        """Key by which limits are ordered, the wider last."""
        return (self.concurrency or 0, self.rps or 0.0)

    @property
    def label(self) -> str:
        """Return "8 requests in flight", "4.2 requests/s", or both."""
        return " and ".join(self._parts(in_flight))

    @property
    def short(self) -> str:
        """Return the label for a table: "8 in flight and 4.2 requests/s"."""
        return " and ".join(self._parts(lambda count: f"{count:,} in flight"))

    def _parts(self, write: Callable[[int], str]) -> list[str]:
        parts = [] if self.concurrency is None else [write(self.concurrency)]
        return parts + ([] if self.rps is None else [write_rate(self.rps)])


def measure_sizes(
    levels: Iterable[LoadLevel],
    openings: Mapping[tuple[str, int, str], Sequence[RequestRecord]],
    blocks: Iterable[BlockRecord],
) -> dict[str, LoadSize]:
    """Return the size of every load level.

    `openings`: load, block, arm -> the counted requests that an arrival process made due. `blocks`: the
    periods; arrivals count of those that ran in one go to their end.
    """
    rates = _measure_rates(openings, blocks)
    return {level.name: _size_of(level, rates.get(level.name)) for level in levels}


def read_sizes(loads: Iterable[tuple[str, int | None]], sizes: Mapping[str, LoadSize]) -> dict[str, LoadSize]:
    """Return the size of every load of results; those of earlier versions know only a concurrency."""
    return {load: sizes.get(load, LoadSize(concurrency=concurrency)) for load, concurrency in loads}


def widest_limit(limits: Iterable[LoadLimit]) -> LoadLimit | None:
    """Return the largest limit of each axis over several, None of none."""
    limits = list(limits)
    if not limits:
        return None
    return LoadLimit(
        concurrency=max((one.concurrency for one in limits if one.concurrency is not None), default=None),
        rps=max((one.rps for one in limits if one.rps is not None), default=None),
    )


def in_flight(concurrency: int) -> str:
    """Return "8 requests in flight"."""
    return f"{concurrency:,} request{'' if concurrency == 1 else 's'} in flight"


def write_rate(rps: float) -> str:
    """Return "4.2 requests/s", to three significant digits."""
    digits = max(0, 2 - math.floor(math.log10(rps))) if rps > 0 else 0
    text = f"{rps:,.{min(digits, 6)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} requests/s"


def _size_of(level: LoadLevel, measured_rps: float | None) -> LoadSize:
    shape = _shape_of(level)
    if level.concurrency is not None:
        return LoadSize(concurrency=level.concurrency, shape=shape)
    steady = level.arrivals.rps if level.arrivals is not None else None
    return LoadSize(offered_rps=measured_rps if steady is None else steady, shape=shape)


def _shape_of(level: LoadLevel) -> str:
    if level.replay is not None:
        return f"replay at {level.replay.speed:g}×"
    if level.arrivals is not None:
        shapes = ("ramp", "steps", "bursts")
        return next((name for name in shapes if getattr(level.arrivals, name) is not None), "")
    return f"{level.think_s:g} s of thought" if level.think_s else ""


def _add_shape(text: str, shape: str) -> str:
    return f"{text}, {shape}" if shape else text


def _measure_rates(
    openings: Mapping[tuple[str, int, str], Sequence[RequestRecord]], blocks: Iterable[BlockRecord]
) -> dict[str, float]:
    """Return the mean rate of arrivals: each period's arrivals but one, over the time they span."""
    parts: defaultdict[tuple[str, int, str], list[bool]] = defaultdict(list)
    for block in blocks:
        parts[block.load, block.block, block.arm].append(block.completed)
    gaps: defaultdict[str, int] = defaultdict(int)
    span_ns: defaultdict[str, int] = defaultdict(int)
    for key, found in openings.items():
        if parts.get(key) == [True]:
            times = [one.scheduled_ns for one in found]
            gaps[key[0]] += len(times) - 1
            span_ns[key[0]] += max(times) - min(times)
    return {load: gaps[load] * NS_PER_S / span for load, span in span_ns.items() if span > 0}
