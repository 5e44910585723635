"""A period over a transport that plays a script: every time and field of the record is known."""

import asyncio
import gc
import time

import msgspec
import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.transport import FakeTransport, Story

from draftproof.core.records import Chunk, RequestRecord, ToolCall
from draftproof.measure.client.exchange import WireRequest
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import ClientHealth, LoadSettings, RequestRunner

ENDPOINT = Endpoint(url="http://h:1", served_model="m", engine="reference", headers=(("X", "y"),))
TURN = Period(block=4, load="peak", concurrency=1, repeat=2, arm="candidate", order=1, item_ids=("a",))
CALL = b'"tool_calls":[{"index":0,"function":{"name":"find","arguments":"{}"}}]'
STREAM = Story(
    sent_ns=5,
    headers_ns=10,
    body=(
        (20, b'data: {"choices":[{"delta":{"content":"x y","reasoning":"r"},"token_ids":[1,2]}]}\n\n'),
        (30, b'data: {"choices":[{"delta":{' + CALL + b'},"token_ids":[3],"finish_reason":"stop"}]}\n\n'),
        (40, b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'),
        (50, b"data: [DONE]\n\n"),
    ),
    end_ns=60,
)


class Sink:
    """Keeps records in memory."""

    def __init__(self):
        self.records: list[RequestRecord] = []

    def append(self, record):
        self.records.append(record)


def run(story, *, settings=None, stop=None):
    sink, transport = Sink(), FakeTransport(story, start_ns=1000)
    items = {"a": build_item("a", max_tokens=40)}
    period = run_period(TURN, ENDPOINT, items, transport=transport, sink=sink, settings=settings, stop=stop)
    block = asyncio.run(period)
    return sink.records, block, transport.requests


def test_a_record_holds_what_the_stream_said_and_when():
    """Every field of the record is the script's, the end is that of the end marker."""
    (record,), block, (request,) = run(STREAM, settings=LoadSettings(max_tokens=30))
    assert record.request_id == "peak/4/2/candidate/a"
    assert (record.arm, record.load, record.block, record.repeat) == ("candidate", "peak", 4, 2)
    assert (record.phase, record.concurrency, record.order_in_block) == ("measure", 1, 0)
    assert (record.sent_ns, record.headers_ns, record.end_ns) == (1005, 1010, 1050)
    assert record.chunks == (Chunk(1020, 2), Chunk(1030, 3))
    assert (record.outcome, record.finish_reason, record.output_tokens) == ("ok", "stop", 4)
    assert (record.text, record.reasoning_text) == ("x y", "r")
    assert record.tool_calls == (ToolCall("find", "{}"),)
    assert record.warnings == ("chunks carry 3 tokens by token_ids, usage says 4",)
    assert block.completed
    assert isinstance(request, WireRequest)
    assert request.url == "http://h:1/v1/chat/completions"
    assert request.headers == (("X", "y"),)
    assert b'"max_tokens":30' in request.body


def test_a_period_notes_how_long_after_its_end_a_request_was_written():
    """The journal's order is judged by it: here the client comes to it 450 ns after the kernel had it."""
    items = {"a": build_item("a")}
    period = run_period(
        TURN,
        ENDPOINT,
        items,
        transport=FakeTransport(STREAM, start_ns=1000),
        sink=Sink(),
        clock=lambda: 1500,
    )
    assert asyncio.run(period).end_lag_max_ns == 450


@pytest.mark.parametrize("end", ["unreachable", "broken"])
def test_a_request_that_never_got_through_has_no_times_of_its_own(end):
    """What did not happen is None, and the failure is counted."""
    (record,), block, _ = run(Story(sent_ns=None, status=None, end=end, end_ns=7, detail="why"))
    assert (record.outcome, record.error) == ("http_error", "why")
    assert (record.sent_ns, record.headers_ns, record.http_status, record.end_ns) == (None, None, None, 1007)
    assert (record.chunks, record.output_tokens, record.token_ids) == ((), None, None)
    assert (block.unreached, block.broken) == (end == "unreachable", end == "broken")
    assert block.completed


def test_a_hanging_service_is_a_timeout():
    """The limit of the settings ends the wait."""
    (record,), _, _ = run(Story(hangs=True), settings=LoadSettings(request_timeout_s=0.01))
    assert (record.outcome, record.error) == ("timeout", "no end within 0.01 s")


def test_a_request_that_is_late_as_its_period_is_stopped_is_stopped(monkeypatch):
    """The limit and a stop meet in one pass of the loop: the period ends, and no slot goes on."""

    async def main():
        stop, sink, transport = asyncio.Event(), Sink(), FakeTransport(Story(hangs=True))
        own = RequestRunner._cancel_late

        def cancel_both(self, task):
            own(self, task)
            task.cancel()
            stop.set()

        monkeypatch.setattr(RequestRunner, "_cancel_late", cancel_both)
        items, settings = {"a": build_item("a")}, LoadSettings(request_timeout_s=0.01)
        await run_period(TURN, ENDPOINT, items, transport=transport, sink=sink, settings=settings, stop=stop)
        return sink.records

    (record,) = asyncio.run(main())
    assert (record.outcome, record.phase) == ("cancelled", "interrupted")


def test_a_period_stopped_before_it_began_sends_nothing_more():
    """With the stop already set nothing counts as done."""

    async def main():
        stop = asyncio.Event()
        stop.set()
        sink, transport = Sink(), FakeTransport(Story(hangs=True))
        items = {"a": build_item("a")}
        block = await run_period(TURN, ENDPOINT, items, transport=transport, sink=sink, stop=stop)
        return sink.records, block

    records, block = asyncio.run(main())
    assert [record.phase for record in records] in ([], ["interrupted"])
    assert not block.completed


def test_the_client_s_lag_is_the_lateness_of_its_loop():
    """A loop blocked by the clock's own leap shows it; before any sample the lag is unknown."""
    ticks = iter([0, 70_000_000, 70_000_000])

    async def main():
        health = ClientHealth(lambda: next(ticks, 70_000_000))
        before = health.read().event_loop_lag_max_ns
        async with health.watch():
            while health.read().event_loop_lag_max_ns is None:  # noqa: ASYNC110  (what is awaited is the sampler's own sleep)
                await asyncio.sleep(0.005)
        return before, health.read()

    before, reading = asyncio.run(main())
    assert (before, reading.event_loop_lag_max_ns, reading.lag_p99_ns) == (None, 50_000_000, 50_000_000)
    assert reading.client_cpu_s > 0


def test_a_pause_of_garbage_collection_is_told():
    """The collector's own pauses are timed, and the client stops listening when it no longer watches."""
    ticks = iter(range(0, 10**9, 1000))

    async def main():
        health = ClientHealth(lambda: next(ticks))
        async with health.watch():
            gc.collect()
            gc.collect()
        return health.read()

    callbacks = list(gc.callbacks)
    reading = asyncio.run(main())
    assert reading.gc_pause_max_ns == 1000
    assert reading.gc_pause_total_ns >= 2000
    assert gc.callbacks == callbacks


def test_what_was_spent_before_a_period_is_not_spent_in_it(monkeypatch):
    """CPU time is that of the period and not of the process, which may have run for hours."""
    spent_s = iter([1000.0, 1000.25])
    monkeypatch.setattr(time, "process_time", lambda: next(spent_s))

    async def main():
        async with ClientHealth(time.monotonic_ns).watch() as health:
            return health.read().client_cpu_s

    assert asyncio.run(main()) == 0.25


def test_garbage_that_was_set_aside_for_a_period_is_searched_again_after_it():
    """What is frozen while a period is watched is given back; garbage is collected as often as before."""

    async def main():
        async with ClientHealth(time.monotonic_ns).watch():
            return gc.get_freeze_count(), gc.get_threshold()

    before = gc.get_threshold()
    frozen, during = asyncio.run(main())
    assert frozen > 0
    assert gc.get_freeze_count() == 0
    assert during[0] > before[0]
    assert gc.get_threshold() == before


def test_periods_that_overlap_give_garbage_back_as_they_found_it():
    """The first to begin may be the first to end."""

    async def main():
        first, second = (ClientHealth(time.monotonic_ns).watch() for _ in range(2))
        await first.__aenter__()
        await second.__aenter__()
        await first.__aexit__(None, None, None)
        during = gc.get_threshold()
        await second.__aexit__(None, None, None)
        return during

    before = gc.get_threshold()
    during = asyncio.run(main())
    assert during[0] > before[0]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_a_timer_that_ends_early_never_makes_a_request_leave_before_it_is_due():
    """Where the loop wakes a slot before its time, the slot waits on."""
    sink, items = Sink(), {name: build_item(name, max_tokens=40) for name in "ab"}

    def slow_clock():
        return time.monotonic_ns() // 2  # at half speed every wait ends early

    async def run_until_both_hang():
        stop = asyncio.Event()
        transport = FakeTransport(Story(hangs=True, sent_ns=None))
        period = msgspec.structs.replace(TURN, concurrency=2, item_ids=("a", "b"))
        asyncio.get_running_loop().call_later(0.5, stop.set)
        return await run_period(
            period,
            ENDPOINT,
            items,
            transport=transport,
            sink=sink,
            settings=LoadSettings(stagger_s=0.05),
            stop=stop,
            clock=slow_clock,
        )

    block = asyncio.run(run_until_both_hang())
    assert {record.item_id for record in sink.records} == {"a", "b"}
    assert sorted(record.scheduled_ns - block.started_ns for record in sink.records) == [0, 50_000_000]
    assert block.counted_from_ns >= block.started_ns + 50_000_000


def test_a_watch_that_is_cancelled_twice_gives_garbage_back():
    """A cancellation that meets the end of a watch leaves the collector as it was."""

    async def watch(entered):
        async with ClientHealth(time.monotonic_ns).watch():
            entered.set()
            await asyncio.sleep(60)

    async def main():
        entered = asyncio.Event()
        task = asyncio.create_task(watch(entered))
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)  # the watch waits for its sampler
        task.cancel()
        await asyncio.wait({task})

    before = gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count()
    asyncio.run(main())
    assert (gc.get_threshold(), len(gc.callbacks), gc.get_freeze_count()) == before
