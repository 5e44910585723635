"""What the client's host did to a measurement period, by the evidence that is stored with the period. Pure.

The arm's own latency is no evidence: a candidate that stalls by itself would lose its slow periods and be
credited with the rest. A late client is evidence only where our own processes did not fill the host, for a
service that takes every core makes the client late by itself.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from draftproof.metrics.host_use import (
    find_throttled,
    foreign_cores,
    is_disturbed,
    is_filled_by_own,
    join_uses,
    stolen_cores,
    taken_cores,
)
from draftproof.records import BlockRecord, HostUse
from draftproof.verdict.client_limits import NS_PER_MS, NS_PER_S

_LEAST_NAMED_CORES = 0.05  # beside what others took, less is written as none
EventKind = Literal["foreign", "stolen", "late", "slept", "throttled"]


class HostEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the host did to a period.

    `amount`: cores (foreign, stolen), ms (late), seconds (slept), index of the accelerator (throttled).
    """

    kind: EventKind
    amount: float

    def __str__(self) -> str:
        return _WORDS[self.kind].format(self.amount)


_WORDS: dict[EventKind, str] = {
    "foreign": "other programs used {:.1f} cores",
    "stolen": "the hypervisor took {:.1f} cores",
    "late": "the client was {:,.0f} ms late",
    "slept": "the host slept for {:.1f} s",
    "throttled": "heat or its supply slowed accelerator {:.0f} down",
}


def find_host_events(parts: Sequence[BlockRecord], lag_limit_ms: float) -> tuple[HostEvent, ...]:
    """Return what the host did to one period, none where it was quiet or nothing is known.

    Args:
        parts: the period's records, several where it was resumed.
        lag_limit_ms: how late the client may be.
    """
    use = join_uses([one.host for one in parts if one.host is not None])
    return (*(_find_taken(use) if use else ()), *_find_late(parts, use, lag_limit_ms), *_find_sleep(parts))


def _find_taken(use: HostUse) -> Iterator[HostEvent]:
    if is_disturbed(use):
        stolen, foreign = stolen_cores(use), foreign_cores(use)
        is_foreign = foreign is not None and taken_cores(use) > stolen
        if is_foreign and foreign is not None:
            yield HostEvent(kind="foreign", amount=foreign)
        if stolen >= _LEAST_NAMED_CORES or not is_foreign:
            yield HostEvent(kind="stolen", amount=stolen)
    for one in find_throttled(use):
        yield HostEvent(kind="throttled", amount=one.index)


def _find_late(parts: Sequence[BlockRecord], use: HostUse | None, limit_ms: float) -> Iterator[HostEvent]:
    late_ms = max((one.event_loop_lag_max_ns or 0 for one in parts), default=0) / NS_PER_MS
    if late_ms > limit_ms and use is not None and is_filled_by_own(use) is False:
        yield HostEvent(kind="late", amount=late_ms)


def _find_sleep(parts: Sequence[BlockRecord]) -> Iterator[HostEvent]:
    slept_ns = sum(one.suspended_ns or 0 for one in parts)
    if slept_ns:
        yield HostEvent(kind="slept", amount=slept_ns / NS_PER_S)
