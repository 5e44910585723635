"""Whether a client kept its limits in a stretch of known load. Pure.

The limits say how far a reading may lie from the truth before it is no reading any more: a median first token
and gap within 0.3 ms, 99 of 100 within 2 ms, time per token within half a per cent, every token counted. At
capacity the median gap has to lie within 0.05 ms: one core is full when chunks begin to wait for each other.
"""

from collections.abc import Iterable, Sequence

import msgspec

from draftproof.metrics.client_error import ClientError, TrueAnswer, compute_client_error
from draftproof.records import BlockRecord, RequestRecord

NS_PER_S = 1e9
NS_PER_MS = 1e6


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The largest errors of a client that may judge; times in ms, None is no limit."""

    ttft_p50_ms: float = 0.3
    ttft_p99_ms: float | None = 2.0
    gap_p50_ms: float = 0.3
    gap_p99_ms: float | None = 2.0
    tpot_relative: float = 0.005
    rate_shortfall: float = 0.02


PRECISION = Limits()
CAPACITY = Limits(ttft_p99_ms=None, gap_p50_ms=0.05, gap_p99_ms=None)


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of load on the client.

    Rates are chunks per second over all streams, the achieved one over the steady part: from the moment every
    stream has started to the last request's sending. `cpu_s_per_1000_chunks` is CPU time of the whole load
    process, `cpu_share` the part of one core that it used.
    """

    profile: str
    streams: int
    offered_chunks_per_s: float
    achieved_chunks_per_s: float | None
    error: ClientError
    cpu_s_per_1000_chunks: float | None
    cpu_share: float | None
    event_loop_lag_ms: float | None


def make_stretch(
    profile: str,
    records: Sequence[RequestRecord],
    truth: Iterable[TrueAnswer],
    block: BlockRecord,
    *,
    streams: int,
    offered_chunks_per_s: float,
    cpu_s: float,
) -> Stretch:
    """Return a stretch from what was read and what was written; ramp and end count for CPU time alone."""
    start_ns, end_ns = find_steady_part(records, streams)
    steady = [record for record in records if start_ns <= record.scheduled_ns <= end_ns]
    chunks = sum(len(record.chunks) for record in records)
    lag_ns = block.event_loop_lag_max_ns
    return Stretch(
        profile=profile,
        streams=streams,
        offered_chunks_per_s=offered_chunks_per_s,
        achieved_chunks_per_s=_rate(records, start_ns, end_ns),
        error=compute_client_error(steady, truth, {record.item_id: record.item_id for record in records}),
        cpu_s_per_1000_chunks=1000 * cpu_s / chunks if chunks else None,
        cpu_share=cpu_s * NS_PER_S / (block.ended_ns - block.started_ns),
        event_loop_lag_ms=None if lag_ns is None else lag_ns / NS_PER_MS,
    )


def find_steady_part(records: Sequence[RequestRecord], streams: int) -> tuple[int, int]:
    """Return from when to when every stream was busy with counted requests, in ns of the client's clock."""
    counted = sorted(record.scheduled_ns for record in records if record.phase == "measure")
    if len(counted) <= streams:
        return 0, 0
    return counted[streams - 1], counted[-1]


def judge_stretch(stretch: Stretch, limits: Limits) -> tuple[str, ...]:
    """Return what was beyond its limit, in words; empty for a client that may judge at this load."""
    error = stretch.error
    ttft, gap = error.ttft_error_ms, error.gap_error_ms
    found = [
        _beyond("median first-token error", ttft.p50, limits.ttft_p50_ms, "ms"),
        _beyond("99th percentile of first-token errors", ttft.p99, limits.ttft_p99_ms, "ms"),
        _beyond("median gap error", gap.p50, limits.gap_p50_ms, "ms"),
        _beyond("99th percentile of gap errors", gap.p99, limits.gap_p99_ms, "ms"),
        _beyond("error of time per token", error.tpot_relative_error, limits.tpot_relative, ""),
        *_find_losses(error),
        _find_shortfall(stretch, limits.rate_shortfall),
    ]
    return tuple(text for text in found if text is not None)


def _find_losses(error: ClientError) -> list[str]:
    counts = {
        "failed": error.failed,
        "miscounted": error.miscounted,
        "unknown to the server": error.unmatched,
    }
    return [f"{count} of {error.requests} requests {name}" for name, count in counts.items() if count]


def _find_shortfall(stretch: Stretch, allowed: float) -> str | None:
    reached = stretch.achieved_chunks_per_s
    if reached is None:
        return "the stretch was too short for a rate"
    if reached >= (1 - allowed) * stretch.offered_chunks_per_s:
        return None
    return f"{reached:,.0f} of {stretch.offered_chunks_per_s:,.0f} chunks per second came through"


def _beyond(what: str, value: float | None, limit: float | None, unit: str) -> str | None:
    if limit is None:
        return None
    if value is None:
        return f"the {what} is not known"
    return (
        None
        if value <= limit
        else f"the {what} is {value:.3g} {unit}, {limit:g} is allowed".replace(" ,", ",")
    )


def _rate(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> float | None:
    if end_ns <= start_ns:
        return None
    inside = sum(start_ns <= chunk.arrival_ns < end_ns for record in records for chunk in record.chunks)
    return inside / ((end_ns - start_ns) / NS_PER_S)
