"""Nine lessons from other load tools, a test each: every one fails for a client that behaves as they do."""

import asyncio
import itertools
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.judge.metrics.client_error import TrueAnswer, compute_client_error
from draftproof.judge.metrics.request import compute_request_metrics, itl_arrival_ns
from draftproof.measure.client.connection import HttpConnection
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink
from draftproof.measure.selfcheck.client_check import FAULTS, run_fault_mix
from draftproof.measure.selfcheck.client_fitness import PRECISION, evaluate_stretch
from draftproof.measure.selfcheck.probing import Profile, run_profile

STALL_NS = 10**12


def ask(script, requests=1, concurrency=1, **settings):
    """Return the records and the block record of one period against a scripted server."""
    items = {f"i{index}": build_item(f"i{index}") for index in range(requests)}
    period = Period(
        block=0,
        load="low",
        concurrency=concurrency,
        repeat=0,
        arm="baseline",
        order=0,
        item_ids=tuple(items),
    )

    async def run(url):
        transport, sink = HttpTransport(), MemorySink()
        endpoint = Endpoint(url=url, served_model="scripted", engine="generic")
        chosen = LoadSettings(**{"failure_pause_s": 0.0} | settings)
        try:
            block = await run_period(period, endpoint, items, transport=transport, sink=sink, settings=chosen)
        finally:
            await transport.close()
        return sink.records, block

    with ScriptedServer(script) as server:
        return asyncio.run(run(server.url))


def ask_one(**script):
    """Return the one counted record of a script and its metrics."""
    records, _ = ask(Script(**script))
    (record,) = [one for one in records if one.phase == "measure"]
    return record, compute_request_metrics(record, STALL_NS)


def test_a_saturated_client_says_so(monkeypatch):
    """Lesson 1, no tool says that it is saturated: a client too slow for its load is unfit, in words."""
    take = HttpConnection._take

    def take_slowly(self, data, at_ns):
        time.sleep(0.001)
        take(self, data, at_ns)

    monkeypatch.setattr(HttpConnection, "_take", take_slowly)
    stretch = run_profile(Profile(name="too much", streams=16, chunks_per_s=2000.0, seconds=0.5))
    found = evaluate_stretch(stretch, PRECISION)
    assert any("chunks per second came through" in one.text and one.is_shown for one in found)


def test_the_first_chunk_of_several_tokens_is_taken_off_whole():
    """Lesson 2, tokens - 1 makes time per token too low: 5 tokens come after a first chunk of 4."""
    record, metrics = ask_one(tokens_per_chunk=(4, 3, 2), gaps_s=(0.02,))
    spent_ns = record.chunks[-1].arrival_ns - record.chunks[0].arrival_ns
    assert metrics.tpot_ns == pytest.approx(spent_ns / 5)
    assert metrics.tpot_basis == "counted"


def test_gaps_of_chunks_and_of_tokens_have_their_own_names():
    """Lesson 3, "ITL" is three things: chunk gaps, token gaps and time per token have three names."""
    record, metrics = ask_one(tokens_per_chunk=(1, 4, 4), gaps_s=(0.03,))
    first_ns, second_ns, third_ns = (one.arrival_ns for one in record.chunks)
    assert metrics.icl_ns == (second_ns - first_ns, third_ns - second_ns)
    assert itl_arrival_ns(record) == (second_ns - first_ns, 0, 0, 0, third_ns - second_ns, 0, 0, 0)
    assert metrics.tpot_ns == pytest.approx((third_ns - first_ns) / 8)
    assert min(metrics.icl_ns) > 3 * metrics.tpot_ns  # which of them is meant matters


def test_an_empty_role_chunk_is_no_first_token():
    """Lesson 4, a role chunk as first token halves its time: the clock stops at the first text."""
    record, metrics = ask_one(role_chunk=True, ttft_s=0.2, tokens_per_chunk=(1, 1))
    assert metrics.ttft_ns >= 0.19e9
    assert len(record.chunks) == 2


@pytest.mark.parametrize("size", [7, 64, 301])
def test_events_cut_over_packets_are_whole_again(size):
    """Lesson 5, a quarter of a valid stream failed, text was lost: cuts change neither here."""
    script = {"tokens_per_chunk": (1, 3, 2, 4), "texts": ("ä", "bcd", "ef", "ghij")}
    record, _ = ask_one(**script, split_bytes=size)
    whole, _ = ask_one(**script)
    assert (record.outcome, record.text, record.error) == ("ok", "äbcdefghij", None)
    assert [one.cumulative_tokens for one in record.chunks] == [one.cumulative_tokens for one in whole.chunks]


def test_tokens_that_nobody_states_are_unknown():
    """Lesson 6, counts without usage are off without limit: neither chunks nor the limit stand in."""
    record, metrics = ask_one(tokens_per_chunk=(1, 3, 2), usage="none", token_ids=False)
    assert (record.outcome, len(record.chunks)) == ("ok", 3)
    assert (record.output_tokens, record.token_source, metrics.tpot_ns) == (None, None, None)


def test_the_start_of_a_closed_loop_is_spread_and_not_counted():
    """Lesson 7, the start burst makes the first-token tail: slots start one by one, uncounted."""
    records, block = ask(Script(gaps_s=(0.2,)), requests=12, concurrency=6, stagger_s=0.03)
    starts = sorted(record.scheduled_ns for record in records)[:6]
    assert min(after - before for before, after in itertools.pairwise(starts)) >= 0.02e9
    counted = [record for record in records if record.phase == "measure"]
    assert len(counted) == 12
    assert block.counted_from_ns >= starts[-1]
    assert all(record.scheduled_ns >= block.counted_from_ns for record in counted)


def test_a_connection_is_found_at_the_same_cost_among_a_thousand():
    """Lesson 8, a pool quadratic in connections eats the core: ours looks at one, with no HTTP library."""
    code = (
        "import draftproof.measure.client.transport, sys; "
        "print(sorted({'httpx', 'aiohttp', 'requests', 'urllib3'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
    assert count_looks(1000) == count_looks(10)


def count_looks(connections):
    """Return how often a transport asks a connection whether it may be used again, to find one."""
    asked = []

    class Resting:
        is_closed, is_drained, has_hung_up = False, True, False

        @property
        def is_reusable(self):
            asked.append(self)
            return True

    async def find():
        transport: Any = HttpTransport()
        for _ in range(connections):
            transport._park("origin", Resting())
        assert transport._take_parked("origin") is not None

    asyncio.run(find())
    return len(asked)


def test_an_error_in_mid_stream_is_a_failure():
    """Lesson 9, error events pass as successes: every kind of fault is counted as what it is.

    That failures stay in the percentiles of a cell is shown in tests/unit/judge/test_verdict_figures.py.
    """
    found = run_fault_mix(each=2)
    assert [(one.fault, one.counted) for one in found] == [
        (fault, {one.expected: 2}) for fault, one in FAULTS.items()
    ]
    assert {one.expected for one in found} >= {"http_error", "rejected", "cut", "malformed", "ok"}


def test_a_wrong_count_is_a_miscount_and_no_reading():
    """Lessons 1 and 6 as the check sees them: an answer short of a token is set apart, not averaged in."""
    record, _ = ask_one(tokens_per_chunk=(1, 2), usage="continuous")
    written = tuple(one.arrival_ns for one in record.chunks)
    true = TrueAnswer(text="x", received_ns=record.sent_ns, written_ns=written, cumulative_tokens=(1, 3))
    short = msgspec.structs.replace(record, output_tokens=2)
    texts = {record.item_id: "x"}
    assert compute_client_error([record], [true], texts).miscounted == 0
    error = compute_client_error([short], [true], texts)
    assert (error.miscounted, error.ttft_error_ms.n) == (1, 0)
