"""Builders of records, manifests and run directories for the tests of the store."""

from pathlib import Path

import msgspec
from hypothesis import strategies as st

from draftproof.core.manifests import Manifest
from draftproof.core.records import (
    SCHEMA_VERSION,
    BlockRecord,
    Chunk,
    RequestRecord,
    Round,
    ServerTimings,
    SpecCounts,
    ToolCall,
)
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store import RunDirectory
from draftproof.workload.items import ContainsCheck, Item, Message

PLAN_TEXT = 'name = "t"\n[[load]]\nname = "single"\nconcurrency = 1\n[arms.baseline]\n[arms.candidate]\n'
ITEMS = (
    Item(
        id="a",
        messages=(Message(role="user", content="سؤال"),),
        segments={"task": "x"},
        checks=(ContainsCheck(all_of=("y",)),),
    ),
    Item(id="b", messages=(Message(role="user", content="two\nlines"),), segments={"task": "x"}),
)


def request(number: int = 0, **changes) -> RequestRecord:
    record = RequestRecord(
        request_id=f"r{number}",
        arm="baseline",
        load="single",
        block=0,
        repeat=0,
        item_id="a",
        phase="measure",
        order_in_block=number,
        concurrency=1,
        seed=None,
        scheduled_ns=1,
        sent_ns=2,
        headers_ns=None,
        end_ns=9,
        outcome="ok",
        chunks=(Chunk(3, 1), Chunk(5, None)),
        text="line\nbreak \u2028 …",
        rounds=(Round(4, 2, 3, 10, 20, 1, 1, 1, 0),),
        speculation=SpecCounts(1, 4, 2, (0, 0, 1)),
    )
    return msgspec.structs.replace(record, **changes)


def period(block: int = 0, arm: str = "baseline", *, completed: bool = True) -> BlockRecord:
    return BlockRecord(
        block=block,
        load="single",
        arm=arm,
        order=0,
        started_ns=0,
        ended_ns=10,
        completed=completed,
        event_loop_lag_max_ns=None,
        client_cpu_s=0.25,
    )


def manifest(**changes) -> Manifest:
    facts = Manifest(
        schema_version=SCHEMA_VERSION,
        draftproof_version="0",
        run_name="t",
        created_wall_ns=1,
        anchor_wall_ns=1,
        anchor_monotonic_ns=1,
        plan_sha256=plan_sha256(PLAN_TEXT),
        thresholds_sha256=thresholds_sha256(parse_plan(PLAN_TEXT)),
        workload_sha256="w",
        workload_name="w",
        workload_version="1",
        evidence="smoke",
        seed=1,
        host={"cores": 2},
        arms=(),
        contracts=(),
    )
    return msgspec.structs.replace(facts, **changes)


def create_run(path: Path) -> RunDirectory:
    return RunDirectory.create(path, PLAN_TEXT, parse_plan(PLAN_TEXT), manifest(), ITEMS)


_INT = st.integers(0, 2**62)
_MAYBE = st.none() | _INT
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)

requests = st.builds(
    RequestRecord,
    request_id=_TEXT,
    arm=st.sampled_from(["baseline", "candidate"]),
    load=_TEXT,
    block=st.integers(0, 3),
    repeat=_INT,
    item_id=_TEXT,
    phase=st.sampled_from(["warmup", "measure", "fill"]),
    order_in_block=st.integers(0, 3),
    concurrency=_INT,
    seed=_MAYBE,
    scheduled_ns=_INT,
    sent_ns=_MAYBE,
    headers_ns=_MAYBE,
    end_ns=_INT,
    outcome=st.sampled_from(["ok", "cut", "timeout", "http_error"]),
    http_status=_MAYBE,
    error=st.none() | _TEXT,
    chunks=st.lists(st.builds(Chunk, _INT, _MAYBE), max_size=3).map(tuple),
    token_source=st.none() | st.sampled_from(["token_ids", "engine"]),
    prompt_tokens=_MAYBE,
    output_tokens=_MAYBE,
    finish_reason=st.none() | _TEXT,
    text=_TEXT,
    token_ids=st.none() | st.lists(_INT, max_size=3).map(tuple),
    speculation=st.none()
    | st.builds(SpecCounts, _INT, _INT, _INT, *[st.lists(_INT, max_size=3).map(tuple)] * 3),
    rounds=st.none() | st.lists(st.builds(Round, *[_INT] * 9), max_size=2).map(tuple),
    server=st.builds(ServerTimings, _MAYBE, _MAYBE, _MAYBE),
    fallbacks=_MAYBE,
    malformed_raw=st.none() | _TEXT,
    reasoning_text=_TEXT,
    tool_calls=st.lists(st.builds(ToolCall, _TEXT, _TEXT), max_size=2).map(tuple),
    warnings=st.lists(_TEXT, max_size=2).map(tuple),
    decode_steps=_MAYBE,
)
