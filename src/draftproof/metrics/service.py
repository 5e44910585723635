"""Whether a request came in time (docs/metrics.md, "Service")."""

from typing import Protocol

from draftproof.metrics.request import RequestMetrics
from draftproof.records import RequestRecord

NS_PER_MS = 1_000_000


class Objectives(Protocol):
    """Deadlines in ms, None for no deadline; the plan's own type fits."""

    @property
    def ttft_ms(self) -> float | None:
        """Latest first content chunk after the scheduled time."""
        ...

    @property
    def tpot_ms(self) -> float | None:
        """Longest time per output token."""
        ...

    @property
    def e2e_ms(self) -> float | None:
        """Latest end after the scheduled time."""
        ...


def is_on_time(record: RequestRecord, metrics: RequestMetrics, objectives: Objectives) -> bool | None:
    """Tell whether the request succeeded and met every objective; None where that cannot be told.

    First token and end count from the scheduled time: a late send is the user's wait too. An answer that
    came whole in its first chunk leaves no further token to wait for and meets any time per token.
    """
    if record.outcome != "ok":
        return False
    met = (
        _meets(metrics.ttft_from_schedule_ns, objectives.ttft_ms, vacuous=False),
        _meets(metrics.tpot_ns, objectives.tpot_ms, vacuous=_nothing_to_wait_for(record, metrics)),
        _meets(metrics.e2e_from_schedule_ns, objectives.e2e_ms, vacuous=False),
    )
    if False in met:
        return False
    return None if None in met else True


def _nothing_to_wait_for(record: RequestRecord, metrics: RequestMetrics) -> bool:
    return len(record.chunks) == 1 or (metrics.output_tokens is not None and metrics.tpot_ns is None)


def _meets(value_ns: float | None, limit_ms: float | None, *, vacuous: bool) -> bool | None:
    if limit_ms is None:
        return True
    if value_ns is None:
        return True if vacuous else None
    return value_ns <= limit_ms * NS_PER_MS
