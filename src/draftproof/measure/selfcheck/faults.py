"""A mix of faults of known number, and how many of each outcome the client counts. Needs no exact clock."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import msgspec
import uvloop

from draftproof.core.records import Outcome, RequestRecord
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.selfcheck.probing import ask_all

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
