"""Whether the load client itself was fit to judge a period: what it did beyond its limits, and how far. Pure.

A client that is late, stands still, holds requests back, sends fewer than are due or fills its core measures
itself and not the service. Facts that records of earlier versions lack are not judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from draftproof.core.clock import NS_PER_MS, NS_PER_S
from draftproof.core.records import BlockRecord, RequestRecord

RATE_SHORTFALL = 0.005  # and one request: the first and the last of a period may each be a little late
CORE_SHARE = 0.9
# Of a load's periods of baseline and candidate; with more of an unfit client nothing is concluded there.
LAGGED_PERIODS_LIMIT = 0.2
# Over less than this, CPU time tells of the start and the end of a period and not of its load.
CORE_WINDOW_S = 1.0

# A lag that is no larger than a fifth of the smallest gain cannot be what is claimed.
LAG_PART = 0.2

FaultKind = Literal["lag", "lag_share", "gc_pause", "send_lag", "held_back", "rate", "core", "slept"]


class ClientFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a client did beyond its limit in a period.

    `amount`: ms late (lag, gc_pause, send_lag), share of the measured time (lag_share), requests (held_back),
    share of the offered rate that was sent (rate), share of a core (core), seconds for which the host slept
    (slept).
    """

    kind: FaultKind
    amount: float


class LagBound(msgspec.Struct, frozen=True, kw_only=True):
    """How late a client may be for what a period measures: mean of the deciding time, and the share of it.

    `reads`: its lateness in reading is in the time, since the kernel stamps no arrival. `sends`: its lateness
    in sending is, since the time counts from the schedule.
    """

    span_ns: float
    share: float
    reads: bool
    sends: bool


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast an open loop was to send and how fast it sent: `gaps` between requests over two times."""

    gaps: int
    offered_s: float
    achieved_s: float

    @property
    def offered_rps(self) -> float:
        """Requests that were due per second."""
        return self.gaps / self.offered_s

    @property
    def achieved_rps(self) -> float:
        """Requests that were sent per second."""
        return self.gaps / self.achieved_s

    @property
    def is_missed(self) -> bool:
        """Whether the client sent fewer requests than were due, beyond what is allowed."""
        return self.achieved_rps < (1 - RATE_SHORTFALL) * self.offered_rps - 1 / self.offered_s


def find_client_faults(
    parts: Sequence[BlockRecord],
    openings: Sequence[RequestRecord],
    lag_limit_ms: float,
    *,
    is_open: bool,
    bound: LagBound | None = None,
) -> tuple[ClientFault, ...]:
    """Return what a client did beyond its limits in one period.

    `parts`: its records, several where it was resumed. `openings`: its counted requests that an arrival
    process made due (`is_open`). `bound`: how late the client may be for what the period measures, None where
    that is not known.
    """
    return (
        *_find_late(parts, lag_limit_ms),
        *(_find_lag_share(parts, bound) if bound else ()),
        *_find_held_back(parts),
        *(_find_missed(parts, openings) if is_open else ()),
        *_find_full_core(parts),
        *_find_sleep(parts),
    )


def measure_pace(openings: Iterable[RequestRecord]) -> Pace | None:
    """Return the rates of one uninterrupted period, None where fewer than two times of sending are known.

    Connecting is the service's part, so a request counts as sent when the client began it; one that the
    service never took is in neither rate.
    """
    sent = [
        (one.scheduled_ns, one.sent_ns - (one.connect_ns or 0)) for one in openings if one.sent_ns is not None
    ]
    if len(sent) < 2:
        return None
    due_ns, began_ns = [due for due, _ in sent], [began for _, began in sent]
    offered_ns, achieved_ns = max(due_ns) - min(due_ns), max(began_ns) - min(began_ns)
    if offered_ns <= 0 or achieved_ns <= 0:
        return None
    return Pace(gaps=len(sent) - 1, offered_s=offered_ns / NS_PER_S, achieved_s=achieved_ns / NS_PER_S)


def pool_paces(paces: Iterable[Pace]) -> Pace | None:
    """Return the pace of several periods together, None of none."""
    found = list(paces)
    if not found:
        return None
    return Pace(
        gaps=sum(one.gaps for one in found),
        offered_s=sum(one.offered_s for one in found),
        achieved_s=sum(one.achieved_s for one in found),
    )


def share_of_core(part: BlockRecord) -> float | None:
    """Return the part of one core that the busiest load process used, None where it is not known.

    Of records that do not tell the busiest, what each used on average.
    """
    window_s = (part.ended_ns - part.started_ns) / NS_PER_S
    if part.client_cpu_s is None or window_s < CORE_WINDOW_S:
        return None
    if part.client_cpu_max_s is not None:
        return part.client_cpu_max_s / window_s
    return part.client_cpu_s / window_s / max(part.workers, 1)


def _find_late(parts: Sequence[BlockRecord], limit_ms: float) -> Iterator[ClientFault]:
    readings: dict[FaultKind, Iterable[int | None]] = {
        "lag": (one.event_loop_lag_max_ns for one in parts),
        "gc_pause": (one.gc_pause_max_ns for one in parts),
        "send_lag": (one.send_lag_p99_ns for one in parts),
    }
    for kind, values in readings.items():
        worst_ms = max((one for one in values if one is not None), default=0) / NS_PER_MS
        if worst_ms > limit_ms:
            yield ClientFault(kind=kind, amount=worst_ms)


def _find_lag_share(parts: Sequence[BlockRecord], bound: LagBound) -> Iterator[ClientFault]:
    """The 99th percentile of what is in the measured time against that time."""
    lags_ns = [one.lag_p99_ns for one in parts] if bound.reads else []
    lags_ns += [one.send_lag_p99_ns for one in parts] if bound.sends else []
    worst_ns = max((lag_ns for lag_ns in lags_ns if lag_ns is not None), default=0)
    if worst_ns > bound.share * bound.span_ns:
        yield ClientFault(kind="lag_share", amount=worst_ns / bound.span_ns)


def _find_held_back(parts: Sequence[BlockRecord]) -> Iterator[ClientFault]:
    held = sum(one.held_back or 0 for one in parts)
    if held:
        yield ClientFault(kind="held_back", amount=held)


def _find_missed(parts: Sequence[BlockRecord], openings: Sequence[RequestRecord]) -> Iterator[ClientFault]:
    """A period that was resumed is not judged: between its parts nothing was due."""
    pace = measure_pace(openings) if len(parts) == 1 else None
    if pace is not None and pace.is_missed:
        yield ClientFault(kind="rate", amount=pace.achieved_rps / pace.offered_rps)


def _find_full_core(parts: Sequence[BlockRecord]) -> Iterator[ClientFault]:
    shares = [
        share for one in parts if one.held_back is not None and (share := share_of_core(one)) is not None
    ]
    if shares and max(shares) > CORE_SHARE:
        yield ClientFault(kind="core", amount=max(shares))


def _find_sleep(parts: Sequence[BlockRecord]) -> Iterator[ClientFault]:
    """While the client's host slept its clock stood and the service went on: times came out too short."""
    slept_ns = sum(one.suspended_ns or 0 for one in parts)
    if slept_ns:
        yield ClientFault(kind="slept", amount=slept_ns / NS_PER_S)
