"""The whole check of a client: precision at an ordinary load, capacity of one core, faults counted.

A mix of faults of known number, and how many of each outcome the client counts. Needs no exact clock.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import uvloop

from draftproof.core.records import Outcome, RequestRecord
from draftproof.judge.metrics.client_error import ErrorSpread
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.driver import LoadSettings, MemorySink, run_turn
from draftproof.measure.load.period import Endpoint, Turn
from draftproof.measure.selfcheck.client_check import Profile, measure_floor, run_profile
from draftproof.measure.selfcheck.client_fitness import CAPACITY, PRECISION, Stretch, judge_stretch
from draftproof.measure.selfcheck.scripted_server import ScriptedServer
from draftproof.measure.selfcheck.scripts import Script
from draftproof.services.engines import adapter_for
from draftproof.workload.items import Item, Message

_PATIENCE_S = 0.5

# What a service may do, what that is to be called, and how the server is told to do it.
FAULTS: dict[str, tuple[Outcome, Script]] = {
    "answered": ("ok", Script()),
    "slow headers": ("ok", Script(headers_delay_s=0.1)),
    "status 500": ("http_error", Script(status=500)),
    "status 429": ("rejected", Script(status=429)),
    "cut": ("cut", Script(cut_before=1)),
    "no end marker": ("cut", Script(end_marker=False)),
    "error in mid-stream": ("http_error", Script(error_before=1)),
    "malformed event": ("malformed", Script(malformed_before=1)),
    "stall": ("timeout", Script(stall_before=1, stall_s=10.0)),
    "endless stream": ("timeout", Script(endless=True, gaps_s=(0.01,))),
    "no answer": ("timeout", Script(never_answer=True)),
}


class FaultCount(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met one fault: how many there were, what they are to be called, what they were called."""

    fault: str
    requests: int
    expected: Outcome
    counted: dict[str, int]

    @property
    def is_exact(self) -> bool:
        """Whether every one of them was called what it was."""
        return self.counted == {self.expected: self.requests}


def run_fault_mix(each: int = 4, concurrency: int = 8) -> tuple[FaultCount, ...]:
    """Send `each` requests into every fault, mixed, and return how they were counted."""
    items = {f"{fault}-{index}": _item(f"{fault}-{index}") for index in range(each) for fault in FAULTS}
    turn = Turn(
        block=0,
        load="faults",
        concurrency=concurrency,
        repeat=0,
        arm="baseline",
        order=0,
        item_ids=tuple(items),
    )
    with ScriptedServer(_choose) as server:
        records = uvloop.run(_drive(turn, server.url, items))
    return tuple(_count(fault, each, records) for fault in FAULTS)


def _item(name: str) -> Item:
    return Item(id=name, messages=(Message(role="user", content=name),), segments={}, max_tokens=8)


def _choose(payload: Mapping[str, Any]) -> Script:
    return FAULTS[payload["messages"][-1]["content"].rpartition("-")[0]][1]


def _count(fault: str, each: int, records: list[RequestRecord]) -> FaultCount:
    own = [one for one in records if one.phase == "measure" and one.item_id.rpartition("-")[0] == fault]
    return FaultCount(
        fault=fault,
        requests=each,
        expected=FAULTS[fault][0],
        counted=dict(sorted(Counter(record.outcome for record in own).items())),
    )


async def _drive(turn: Turn, url: str, items: dict[str, Item]) -> list[RequestRecord]:
    transport, sink = HttpTransport(), MemorySink()
    endpoint = Endpoint(url=url, served_model="scripted", adapter=adapter_for("generic"))
    settings = LoadSettings(request_timeout_s=_PATIENCE_S, failure_pause_s=0.0)
    try:
        await run_turn(turn, endpoint, items, transport=transport, sink=sink, settings=settings)
    finally:
        await transport.close()
    return sink.records


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

    Raises:
        EngineError: the server of known timing did not start.
    """
    profiles, kinds = [], list_profiles(streams, chunks_per_s, seconds)
    tell("the host, by the barest reader")
    floor = measure_floor(kinds[0])
    for profile in kinds:
        tell(f"{profile.name}: {streams} streams, {chunks_per_s:,.0f} chunks a second")
        profiles.append(_judge(run_profile(profile), is_capacity=False))
    capacity = search_capacity(capacity_streams, min(seconds / 2, _CAPACITY_SECONDS), tell)
    tell("faults of known number")
    faults = run_fault_mix()
    first = profiles[0].stretch
    is_exact = all(one.is_exact for one in faults)
    is_fit = is_exact and all(one.is_fit for one in profiles)
    return ClientCheck(
        ttft_error_ms=first.error.ttft_error_ms,
        gap_error_ms=first.error.gap_error_ms,
        tpot_relative_error=first.error.tpot_relative_error,
        host_floor_ms=floor,
        cpu_s_per_1000_chunks=first.cpu_s_per_1000_chunks,
        max_chunks_per_s=_highest(capacity),
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
        return _judge(run_profile(profile), is_capacity=True)

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


def _judge(stretch: Stretch, *, is_capacity: bool) -> Judged:
    limits = CAPACITY if is_capacity else PRECISION
    found = judge_stretch(stretch, limits)
    return Judged(
        stretch=stretch,
        beyond=tuple(one.text for one in found if one.is_shown),
        not_shown=tuple(one.text for one in found if not one.is_shown),
    )


def _highest(capacity: tuple[Judged, ...]) -> float | None:
    reached = [one.stretch.achieved_chunks_per_s or 0.0 for one in capacity if one.is_fit]
    return max(reached, default=None)
