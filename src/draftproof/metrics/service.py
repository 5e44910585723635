"""Where a request's time went on the server, and whether it came in time (docs/metrics.md, "Service")."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from draftproof.metrics.request import RequestMetrics
from draftproof.records import RequestRecord, ServerTimings

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


class ServiceShares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of end-to-end time, pooled over successful requests; None where the engine does not disclose.

    Each share covers the requests that disclose it. `other_share` is the rest (network, tokenising, waiting
    between rounds) over the requests that disclose all three.
    """

    queue_share: float | None
    prefill_share: float | None
    decode_share: float | None
    other_share: float | None
    requests: int


class OnTime(msgspec.Struct, frozen=True, kw_only=True):
    """On-time requests of those attempted; `unjudged` could not be told and are in neither count."""

    on_time: int
    judged: int
    unjudged: int

    @property
    def share(self) -> float | None:
        """On-time share of the judged requests, None where none was judged."""
        return self.on_time / self.judged if self.judged else None


def service_shares(records: Iterable[RequestRecord]) -> ServiceShares:
    """Return the shares of queueing, prefill, decoding and the rest in the time from send to end."""
    timed = [
        (record.server, record.end_ns - record.sent_ns)
        for record in records
        if record.outcome == "ok" and record.sent_ns is not None
    ]
    return ServiceShares(
        queue_share=_pooled_share(timed, lambda server, _: server.queue_ns),
        prefill_share=_pooled_share(timed, lambda server, _: server.prefill_ns),
        decode_share=_pooled_share(timed, lambda server, _: server.decode_ns),
        other_share=_pooled_share(timed, _rest),
        requests=len(timed),
    )


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


def count_on_time(requests: Iterable[tuple[RequestRecord, RequestMetrics]], objectives: Objectives) -> OnTime:
    """Count on-time requests; a failed request is judged and late."""
    judgements = [is_on_time(record, metrics, objectives) for record, metrics in requests]
    unjudged = judgements.count(None)
    return OnTime(on_time=judgements.count(True), judged=len(judgements) - unjudged, unjudged=unjudged)


def _nothing_to_wait_for(record: RequestRecord, metrics: RequestMetrics) -> bool:
    return len(record.chunks) == 1 or (metrics.output_tokens is not None and metrics.tpot_ns is None)


def _meets(value_ns: float | None, limit_ms: float | None, *, vacuous: bool) -> bool | None:
    if limit_ms is None:
        return True
    if value_ns is None:
        return True if vacuous else None
    return value_ns <= limit_ms * NS_PER_MS


def _pooled_share(
    timed: Sequence[tuple[ServerTimings, int]], part: Callable[[ServerTimings, int], int | None]
) -> float | None:
    known = [(spent, e2e) for server, e2e in timed if (spent := part(server, e2e)) is not None]
    total = sum(e2e for _, e2e in known)
    return sum(spent for spent, _ in known) / total if total > 0 else None


def _rest(server: ServerTimings, e2e_ns: int) -> int | None:
    if server.queue_ns is None or server.prefill_ns is None or server.decode_ns is None:
        return None
    return e2e_ns - server.queue_ns - server.prefill_ns - server.decode_ns
