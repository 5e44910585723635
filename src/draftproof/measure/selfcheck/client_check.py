"""The whole check of a client: precision at an ordinary load, capacity of one core, faults counted."""

from collections.abc import Callable

import msgspec

from draftproof.judge.metrics.client_error import ErrorSpread
from draftproof.measure.selfcheck.client_fitness import CAPACITY, PRECISION, Limits, Stretch, judge_stretch
from draftproof.measure.selfcheck.faults import FaultCount, run_fault_mix
from draftproof.measure.selfcheck.probing import Profile, measure_floor, run_profile

Tell = Callable[[str], None]

# Tokens of the chunks of a service that verifies drafts of up to four tokens.
_STEPS = (1, 4, 2, 5, 1, 3)
_CAPACITY_START = 8_000.0
_CAPACITY_FACTOR = 1.25
_CAPACITY_LIMIT = 200_000.0
_CLOSER = (1.08, 1.16)  # times the highest rate that was within the limits
_FAILURES_TO_STOP = 2
# What the first profiles need to show a 99th percentile at the ordinary load, one late request allowed for.
DEFAULT_SECONDS = 16.0
_CAPACITY_SECONDS = 2.0  # of each rate that is tried, at most: no tail is judged there


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch, what was beyond its limits, and what it was too short to show.

    Both are empty where the client may judge at that load.
    """

    stretch: Stretch
    beyond: tuple[str, ...]
    not_shown: tuple[str, ...] = ()

    @property
    def is_fit(self) -> bool:
        """Whether the client was shown to keep every limit."""
        return not self.beyond and not self.not_shown


class ClientCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What this client can do on this machine.

    `ttft_error_ms`, `gap_error_ms`, `tpot_relative_error` and `cpu_s_per_1000_chunks` are of the first
    profile, one token a chunk. `host_floor_ms` are the gap errors of the barest reader at that load, which
    reads its own clock: where they are large, the host is late and not the client. `max_chunks_per_s` is the
    highest rate reached within the limits of capacity, None where not even the lowest was. `is_too_short`:
    nothing was beyond its limit, and not every limit was shown to be kept.
    """

    ttft_error_ms: ErrorSpread
    gap_error_ms: ErrorSpread
    tpot_relative_error: float | None
    host_floor_ms: ErrorSpread
    cpu_s_per_1000_chunks: float | None
    max_chunks_per_s: float | None
    is_fit: bool
    is_too_short: bool
    profiles: tuple[Judged, ...]
    capacity: tuple[Judged, ...]
    faults: tuple[FaultCount, ...]


def list_profiles(streams: int, chunks_per_s: float, seconds: float) -> tuple[Profile, ...]:
    """Return the kinds of stream a service may send, at one load."""
    ordinary = Profile(name="one token a chunk", streams=streams, chunks_per_s=chunks_per_s, seconds=seconds)
    return (
        ordinary,
        msgspec.structs.replace(ordinary, name="verification steps", tokens=_STEPS),
        msgspec.structs.replace(ordinary, name="two events a write", coalesce=2, tokens=_STEPS),
        msgspec.structs.replace(ordinary, name="events in two packets", split=True),
    )


def check_client(
    *,
    streams: int = 64,
    chunks_per_s: float = 2000.0,
    seconds: float = DEFAULT_SECONDS,
    capacity_streams: int = 256,
    tell: Tell,
) -> ClientCheck:
    """Run every profile, search the capacity and send the fault mix; about three minutes.

    Raises EngineError: the server of known timing did not start.
    """
    profiles, kinds = [], list_profiles(streams, chunks_per_s, seconds)
    tell("the host, by the barest reader")
    floor = measure_floor(kinds[0])
    for profile in kinds:
        tell(f"{profile.name}: {streams} streams, {chunks_per_s:,.0f} chunks a second")
        profiles.append(_judge(run_profile(profile), PRECISION))
    capacity = search_capacity(capacity_streams, min(seconds / 2, _CAPACITY_SECONDS), tell)
    tell("faults of known number")
    faults = run_fault_mix()
    first, fit = profiles[0].stretch, [one.stretch for one in capacity if one.is_fit]
    is_exact = all(one.is_exact for one in faults)
    is_fit = is_exact and all(one.is_fit for one in profiles)
    return ClientCheck(
        ttft_error_ms=first.error.ttft_error_ms,
        gap_error_ms=first.error.gap_error_ms,
        tpot_relative_error=first.error.tpot_relative_error,
        host_floor_ms=floor,
        cpu_s_per_1000_chunks=first.cpu_s_per_1000_chunks,
        max_chunks_per_s=max((one.achieved_chunks_per_s or 0.0 for one in fit), default=None),
        is_fit=is_fit,
        is_too_short=is_exact and not is_fit and not any(one.beyond for one in profiles),
        profiles=tuple(profiles),
        capacity=capacity,
        faults=faults,
    )


def search_capacity(streams: int, seconds: float, tell: Tell) -> tuple[Judged, ...]:
    """Raise the rate by a quarter until it was beyond a limit twice in a row, then close in; return all."""

    def attempt(rate: float) -> Judged:
        tell(f"capacity: {streams} streams, {rate:,.0f} chunks a second")
        profile = Profile(name="capacity", streams=streams, chunks_per_s=rate, seconds=seconds)
        return _judge(run_profile(profile), CAPACITY)

    tried: list[Judged] = []
    rate = _CAPACITY_START
    while rate < _CAPACITY_LIMIT:
        tried.append(attempt(rate))
        rate *= _CAPACITY_FACTOR
        if len(tried) >= _FAILURES_TO_STOP and not any(one.is_fit for one in tried[-_FAILURES_TO_STOP:]):
            break
    fit = [one.stretch.offered_chunks_per_s for one in tried if one.is_fit]
    if fit and not tried[-1].is_fit:
        tried.extend(attempt(max(fit) * share) for share in _CLOSER)
    return tuple(tried)


def _judge(stretch: Stretch, limits: Limits) -> Judged:
    found = judge_stretch(stretch, limits)
    return Judged(
        stretch=stretch,
        beyond=tuple(one.text for one in found if one.is_shown),
        not_shown=tuple(one.text for one in found if not one.is_shown),
    )
