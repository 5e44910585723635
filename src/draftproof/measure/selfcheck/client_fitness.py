"""Whether a client kept its limits in a stretch of known load. Pure.

The limits say how far a reading may lie from the truth before it is no reading any more: a median first token
and gap within 0.3 ms, 99 of 100 within 2 ms, time per token within half a per cent, every token counted. At
capacity the median gap has to lie within 0.05 ms: one core is full when chunks begin to wait for each other.

A stretch shows that a limit was kept, shows that it was not, or was too short to show either: the 99th
percentile of a hundred requests is its second worst one, and that is chance.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from draftproof.core.clock import NS_PER_MS, NS_PER_S
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.metrics.client_error import (
    ClientError,
    ErrorBounds,
    ErrorSpread,
    TrueAnswer,
    compute_client_error,
)


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
    stream has started to the last request's sending, which is `steady_s` long. `cpu_s_per_1000_chunks` is CPU
    time of the whole load process, `cpu_share` the part of one core that it used.
    """

    profile: str
    streams: int
    offered_chunks_per_s: float
    achieved_chunks_per_s: float | None
    error: ClientError
    cpu_s_per_1000_chunks: float | None
    cpu_share: float | None
    event_loop_lag_ms: float | None
    steady_s: float | None = None

    @property
    def requests_per_s(self) -> float | None:
        """Requests that were sent in a second of the steady part."""
        return self.error.requests / self.steady_s if self.steady_s else None


class FitnessFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What was not within its limit, in words; `is_shown`: False where a stretch was too short to tell."""

    text: str
    is_shown: bool


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
        steady_s=(end_ns - start_ns) / NS_PER_S if end_ns > start_ns else None,
    )


def find_steady_part(records: Sequence[RequestRecord], streams: int) -> tuple[int, int]:
    """Return from when to when every stream was busy with counted requests, in ns of the client's clock."""
    counted = sorted(record.scheduled_ns for record in records if record.phase == "measure")
    if len(counted) <= streams:
        return 0, 0
    return counted[streams - 1], counted[-1]


def evaluate_stretch(stretch: Stretch, limits: Limits) -> tuple[FitnessFinding, ...]:
    """Return what was beyond its limit or is undetermined; empty for a client that may judge there."""
    error = stretch.error
    return (
        *_evaluate_times(
            "first-token errors",
            error.ttft_error_ms,
            error.ttft_bounds_ms,
            p50_ms=limits.ttft_p50_ms,
            p99_ms=limits.ttft_p99_ms,
            stretch=stretch,
        ),
        *_evaluate_times(
            "gap errors",
            error.gap_error_ms,
            error.gap_bounds_ms,
            p50_ms=limits.gap_p50_ms,
            p99_ms=limits.gap_p99_ms,
            stretch=stretch,
        ),
        *_evaluate_tpot(error.tpot_relative_error, limits.tpot_relative),
        *(FitnessFinding(text=text, is_shown=True) for text in _find_losses(error)),
        *_evaluate_rate(stretch, limits.rate_shortfall),
    )


def _evaluate_times(
    what: str,
    spread: ErrorSpread,
    bounds: ErrorBounds | None,
    *,
    p50_ms: float,
    p99_ms: float | None,
    stretch: Stretch,
) -> Iterator[FitnessFinding]:
    if spread.p50 is None or spread.p99 is None or bounds is None:
        yield FitnessFinding(text=f"{what} are not known", is_shown=False)
        return
    if spread.p50 > p50_ms:
        is_shown = bounds.p50_low is not None and bounds.p50_low > p50_ms
        yield _beyond(f"the median of {what}", spread.p50, p50_ms, is_shown=is_shown)
    if p99_ms is not None:
        yield from _evaluate_tail(what, spread.p99, bounds, p99_ms, stretch)


def _evaluate_tail(
    what: str, p99: float, bounds: ErrorBounds, limit: float, stretch: Stretch
) -> Iterator[FitnessFinding]:
    """Judge a 99th percentile by its bounds, and only from as many requests on as the first token needs.

    One stall reaches the gaps of every stream at once: thousands of gaps of two seconds are few stalls.
    """
    first = stretch.error.ttft_bounds_ms
    missing = first.missing if first is not None else bounds.missing
    low, high = bounds.p99_low, bounds.p99_high
    if missing or low is None or high is None:
        more = _more_requests(missing or stretch.error.requests, stretch)
        yield FitnessFinding(text=f"the 99th percentile of {what} needs {more}", is_shown=False)
    elif low > limit:
        yield _beyond(f"the 99th percentile of {what}", p99, limit, is_shown=True)
    elif high > limit:
        more = _more_requests(stretch.error.requests, stretch)
        text = (
            f"the 99th percentile of {what} lies between {low:.3g} and {high:.3g} ms, {limit:g} is allowed: "
            f"to tell needs {more}"
        )
        yield FitnessFinding(text=text, is_shown=False)


def _more_requests(count: int, stretch: Stretch) -> str:
    """Return how much more must be measured, in requests, chunks and, where it is known, seconds."""
    error, rate = stretch.error, stretch.requests_per_s
    chunks = f" ({count * error.chunks // error.requests:,} chunks)" if error.requests else ""
    seconds = "" if rate is None else f", {math.ceil(count / rate)} s more at this load"
    return f"{count} more requests{chunks}{seconds}"


def _evaluate_tpot(relative: float | None, limit: float) -> Iterator[FitnessFinding]:
    if relative is None:
        yield FitnessFinding(text="the error of time per token is not known", is_shown=False)
    elif relative > limit:
        text = f"the error of time per token is {relative:.3g}, {limit:g} is allowed"
        yield FitnessFinding(text=text, is_shown=True)


def _find_losses(error: ClientError) -> list[str]:
    counts = {
        "failed": error.failed,
        "miscounted": error.miscounted,
        "unknown to the server": error.unmatched,
    }
    return [f"{count} of {error.requests} requests {name}" for name, count in counts.items() if count]


def _evaluate_rate(stretch: Stretch, allowed: float) -> Iterator[FitnessFinding]:
    """Judge the rate, which is known to about one chunk a stream: so many come or not at its two ends."""
    reached, offered = stretch.achieved_chunks_per_s, stretch.offered_chunks_per_s
    if reached is None:
        yield FitnessFinding(text="the stretch was too short for a rate", is_shown=False)
        return
    least = (1 - allowed) * offered
    if reached < least:
        blur = stretch.streams / stretch.steady_s if stretch.steady_s else 0.0
        text = f"{reached:,.0f} of {offered:,.0f} chunks per second came through"
        yield FitnessFinding(text=text, is_shown=reached + blur < least)


def _beyond(what: str, value: float, limit: float, *, is_shown: bool) -> FitnessFinding:
    doubt = "" if is_shown else ", by too few requests to tell"
    return FitnessFinding(text=f"{what} is {value:.3g} ms, {limit:g} is allowed{doubt}", is_shown=is_shown)


def _rate(records: Iterable[RequestRecord], start_ns: int, end_ns: int) -> float | None:
    if end_ns <= start_ns:
        return None
    inside = sum(start_ns <= chunk.arrival_ns < end_ns for record in records for chunk in record.chunks)
    return inside / ((end_ns - start_ns) / NS_PER_S)
