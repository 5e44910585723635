"""The whole check of a client: precision at an ordinary load, capacity of one core, faults counted.

A mix of faults of known number, and how many of each outcome the client counts. Needs no exact clock.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop

from draftproof.core.records import Outcome, RequestRecord
from draftproof.judge.metrics.client_error import ErrorSpread
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.selfcheck.client_fitness import CAPACITY, PRECISION, Limits, Stretch, evaluate_stretch
from draftproof.measure.selfcheck.probing import Profile, ask_all, measure_floor, run_profile

_PATIENCE_S = 0.5


class Fault(msgspec.Struct, frozen=True):
    """What a service does with one request, and what that is to be called.

    After `wait_s` it writes `said`; with `is_endless` its last event again and again. Then it hangs until the
    client leaves, or closes where it `hangs_up`.
    """

    expected: Outcome
    said: bytes = b""
    wait_s: float = 0.0
    hangs_up: bool = False
    is_endless: bool = False


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


def _event(data: bytes) -> bytes:
    """Return one event as one HTTP chunk."""
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)


def _refuse(status: int) -> bytes:
    return b"HTTP/1.1 %d Refused\r\nContent-Length: 2\r\n\r\n{}" % status


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_WORD = _event(b'{"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": null}]}')
_BEGUN = _HEAD + _WORD
_FINISH = _event(b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}')
_DONE, _END = _event(b"[DONE]"), b"0\r\n\r\n"
_REST = _WORD + _FINISH + _DONE + _END

FAULTS = {
    "answered": Fault("ok", _BEGUN + _REST),
    "slow headers": Fault("ok", _BEGUN + _REST, wait_s=0.1),
    "status 500": Fault("http_error", _refuse(500)),
    "status 429": Fault("rejected", _refuse(429)),
    "cut": Fault("cut", _BEGUN, hangs_up=True),
    "no end marker": Fault("cut", _BEGUN + _FINISH + _END),
    "error in mid-stream": Fault("http_error", _BEGUN + _event(b'{"error": {"message": "gave up"}}') + _REST),
    "malformed event": Fault("malformed", _BEGUN + _event(b'{"choices": [{"delta"') + _REST),
    "stall": Fault("timeout", _BEGUN),
    "endless stream": Fault("timeout", _BEGUN, is_endless=True),
    "no answer": Fault("timeout"),
}


def run_fault_mix(each: int = 4, concurrency: int = 8) -> tuple[FaultCount, ...]:
    """Send `each` requests into every fault, mixed, and return how they were counted."""
    names = [f"{fault}-{index}" for index in range(each) for fault in FAULTS]
    records = uvloop.run(_drive(names, concurrency))
    return tuple(_count(fault, each, records) for fault in FAULTS)


async def _drive(names: list[str], concurrency: int) -> list[RequestRecord]:
    talks = set[asyncio.Task[Any] | None]()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await _answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    settings = LoadSettings(request_timeout_s=_PATIENCE_S, failure_pause_s=0.0)
    async with await asyncio.start_server(attend, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        records, _ = await ask_all("faults", f"http://127.0.0.1:{port}", names, concurrency, settings)
        await asyncio.gather(*filter(None, talks))  # the client has left all of them
    return records


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection until the client leaves."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        text = msgspec.json.decode(await reader.readexactly(length))["messages"][-1]["content"]
        fault = FAULTS[text.rpartition("-")[0]]
        await asyncio.sleep(fault.wait_s)
        writer.write(fault.said)
        while fault.is_endless:
            await asyncio.sleep(0.01)
            if writer.is_closing():
                return
            writer.write(_WORD)
        if fault.hangs_up:
            return


def _count(fault: str, each: int, records: list[RequestRecord]) -> FaultCount:
    own = [one for one in records if one.phase == "measure" and one.item_id.rpartition("-")[0] == fault]
    return FaultCount(
        fault=fault,
        requests=each,
        expected=FAULTS[fault].expected,
        counted=dict(sorted(Counter(record.outcome for record in own).items())),
    )


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
    found = evaluate_stretch(stretch, limits)
    return Judged(
        stretch=stretch,
        beyond=tuple(one.text for one in found if one.is_shown),
        not_shown=tuple(one.text for one in found if not one.is_shown),
    )
