"""A mix of faults of known number, and how many of each outcome the client counts. Needs no exact clock."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import uvloop

from draftproof.client.transport import HttpTransport
from draftproof.engines import adapter_for
from draftproof.load.driver import LoadSettings, run_turn
from draftproof.load.memory_sink import MemorySink
from draftproof.load.turn import Endpoint, Turn
from draftproof.records import Outcome, RequestRecord
from draftproof.testing.scripted_server import ScriptedServer
from draftproof.testing.scripts import Script
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
