"""A whole period against the scripted server: load kept up, resume, warm-up, stopping, a full disk."""

import asyncio
import collections
import errno
import functools
import time

import msgspec
import pytest
from tests.builders.load import run_period, run_warmup
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script
from tests.builders.transport import FakeTransport, Story

from draftproof.core.errors import StoreError
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.services.engines import ADAPTERS, REFERENCE

NAMES = ("a", "b", "c", "d", "e")
ITEMS = {name: build_item(name) for name in NAMES}
QUICK = LoadSettings(stagger_s=0.001, failure_pause_s=0.01, request_timeout_s=20)
ENDLESS = Script(endless=True, gaps_s=(0.01,))


class ListSink:
    """Keeps records in memory; `on_append` sees each one first."""

    def __init__(self, on_append=lambda _record: None):
        self.records = []
        self._on_append = on_append

    def append(self, record):
        self._on_append(record)
        self.records.append(record)


def period(concurrency=3, item_ids=NAMES):
    return Period(
        block=1, load="l", concurrency=concurrency, repeat=0, arm="baseline", order=2, item_ids=item_ids
    )


def endpoint(url):
    return Endpoint(url=url, served_model="scripted", engine="reference")


def slow_for(*names):
    """Scripts by prompt: the named items take long, the others are quick."""

    def script_for(payload):
        text = payload["messages"][0]["content"]
        slow = any(text.endswith(f"{name}.") for name in names)
        return Script(tokens_per_chunk=(1, 2), gaps_s=(0.3 if slow else 0.005,))

    return script_for


def run(server, sink, *, runner=run_period, this_period=None, **options):
    async def main():
        transport = HttpTransport()
        try:
            return await runner(
                this_period or period(), endpoint(server.url), ITEMS,
                **{"transport": transport, "sink": sink, "settings": QUICK} | options,
            )  # fmt: skip
        finally:
            await transport.close()

    return asyncio.run(main())


def wait_for_writes(server, requests):
    """Block until so many requests without a limit of their own have got their first chunk."""
    full = ITEMS["a"].max_tokens
    while (
        sum(bool(one.writes) and (one.payload or {})["max_tokens"] == full for one in server.served)
        < requests
    ):
        time.sleep(0.005)


def most_at_once(records):
    """Return how many requests were in flight together at most, by the client's own times."""
    return max(
        sum(one.scheduled_ns <= other.scheduled_ns < one.end_ns for one in records) for other in records
    )


def by_phase(sink):
    phases = collections.defaultdict(list)
    for record in sink.records:
        phases[record.phase].append(record)
    return phases


def test_the_load_is_kept_up_until_the_last_counted_request_ends():
    """Every item is counted once, fills run beside the last one and are cancelled when it ends."""
    sink = ListSink()
    with ScriptedServer(slow_for("e")) as server:
        block = run(server, sink)
        assert server.in_flight_max >= 3
    assert most_at_once(sink.records) == 3
    phases = by_phase(sink)
    assert sorted(record.item_id for record in phases["measure"]) == list(NAMES)
    assert {record.outcome for record in phases["measure"]} == {"ok"}
    assert {record.item_id: record.order_in_block for record in phases["measure"]} == {
        name: order for order, name in enumerate(NAMES)
    }
    fills = phases["fill"]
    last_end_ns = max(record.end_ns for record in phases["measure"])
    ramp_ups = [record for record in fills if "#lead" in record.request_id]
    assert sorted(record.scheduled_ns - block.started_ns for record in ramp_ups) == [0, 1_000_000, 2_000_000]
    assert min(record.scheduled_ns for record in phases["measure"]) >= block.counted_from_ns
    first_fill = min(set(fills) - set(ramp_ups), key=lambda record: record.order_in_block)
    assert (first_fill.item_id, first_fill.order_in_block) == ("a", 5)
    assert all(record.scheduled_ns <= last_end_ns for record in fills)
    assert {record.outcome for record in fills} <= {"ok", "cancelled"}
    assert fills[-1].outcome == "cancelled"
    assert len({record.request_id for record in sink.records}) == len(sink.records)
    assert (block.completed, block.note, block.arm, block.order) == (True, None, "baseline", 2)
    assert block.started_ns <= block.ended_ns
    assert block.client_cpu_s > 0
    assert block.event_loop_lag_max_ns >= 0


def test_one_slot_runs_one_request_at_a_time_without_fill():
    """At concurrency 1 each request is scheduled after the one before it has ended."""
    sink = ListSink()
    with ScriptedServer(Script()) as server:
        run(server, sink, this_period=period(concurrency=1))
    assert [record.request_id for record in sink.records] == [f"l/1/0/baseline/{name}" for name in NAMES]
    for before, after in zip(sink.records, sink.records[1:], strict=False):
        assert before.end_ns <= after.scheduled_ns <= after.sent_ns


def test_a_slot_is_free_when_its_answer_ended_not_when_the_client_noticed():
    """What the client takes between two requests counts from the answer's end, so none of it is lost."""
    sink = ListSink()
    with ScriptedServer(Script()) as server:
        run(server, sink, this_period=period(concurrency=1))
    ends = [record.end_ns for record in sink.records]
    assert [record.scheduled_ns for record in sink.records[1:]] == ends[:-1]


def test_the_first_wave_is_spread_out():
    """Slots start one stagger apart, and the schedule says so whatever the loop did."""
    sink = ListSink()
    with ScriptedServer(Script(ttft_s=0.2)) as server:
        block = run(server, sink, this_period=period(concurrency=3, item_ids=("a", "b", "c")))
    ramp_ups = sorted(
        record.scheduled_ns - block.started_ns for record in sink.records if "#lead" in record.request_id
    )
    assert ramp_ups == [0, 1_000_000, 2_000_000]


def test_the_burst_of_a_start_is_in_no_counted_first_token():
    """A service that queues gives the first wave a tail; nothing that counts is a part of it.

    The first request of each slot is a fill, and asks for a longer answer from slot to slot, so that slots
    end at different times. A loop that counted its first wave, or kept its slots in step, would fail here.
    """
    sink = ListSink()
    with ScriptedServer(Script(tokens_per_chunk=(1,) * 12, gaps_s=(0.01,))) as server:
        block = run(server, sink, this_period=period(concurrency=5), settings=LoadSettings(stagger_s=0.004))
    ramp_ups = [record for record in sink.records if "#lead" in record.request_id]
    assert len(ramp_ups) == 5
    assert {record.phase for record in ramp_ups} == {"fill"}
    assert all(record.scheduled_ns >= block.counted_from_ns for record in by_phase(sink)["measure"])
    asked = {}
    for served in server.served:
        payload = served.payload or {}
        if payload["max_tokens"] < ITEMS["a"].max_tokens:
            asked[payload["messages"][0]["content"]] = payload["max_tokens"]
    slots = sorted(ramp_ups, key=lambda record: record.scheduled_ns)
    lengths = [asked[ITEMS[record.item_id].messages[0].content] for record in slots]
    assert lengths == sorted(set(lengths))


def test_every_item_has_its_seed_and_it_is_sent():
    """The seed in the record is the one the service got, and does not depend on the arm."""
    sink = ListSink()
    with ScriptedServer(Script()) as server:
        run(
            server,
            sink,
            this_period=period(concurrency=1),
            seed_of=lambda item, repeat: ord(item.id) + repeat,
        )
        assert [(served.payload or {})["seed"] for served in server.served] == [97, 98, 99, 100, 101]
    assert [record.seed for record in sink.records] == [97, 98, 99, 100, 101]


def test_a_resumed_period_asks_only_what_is_missing():
    """Ids that are done are not sent again."""
    sink = ListSink()
    done = {f"l/1/0/baseline/{name}" for name in ("a", "c", "d")}
    with ScriptedServer(Script()) as server:
        block = run(server, sink, this_period=period(concurrency=1), done=done)
        assert len(server.served) == 2
    assert [record.item_id for record in sink.records] == ["b", "e"]
    assert block.completed


def test_a_period_that_is_done_sends_nothing():
    """Resuming behind a finished period costs no request."""
    sink = ListSink()
    transport = FakeTransport(Story())
    done = {f"l/1/0/baseline/{name}" for name in NAMES}
    block = asyncio.run(
        run_period(period(), endpoint("http://h"), ITEMS, transport=transport, sink=sink, done=done)
    )
    assert (transport.requests, sink.records, block.completed) == ([], [], True)


def test_warm_up_is_never_counted():
    """The asked number of requests at the level's concurrency, all of phase warmup."""
    sink = ListSink()
    with ScriptedServer(Script()) as server:
        block = run(server, sink, runner=functools.partial(run_warmup, count=7))
        assert len(server.served) == 7
    assert {record.phase for record in sink.records} == {"warmup"}
    assert block.completed


def test_no_warm_up_sends_nothing():
    """A count of zero is allowed."""
    sink = ListSink()
    transport = FakeTransport(Story())
    asyncio.run(run_warmup(period(), endpoint("http://h"), ITEMS, count=0, transport=transport, sink=sink))
    assert sink.records == []


def test_stopping_keeps_what_is_done_and_marks_what_was_in_flight():
    """Nothing is started after the stop; what was in flight is interrupted and not failed."""
    sink = ListSink()

    async def main(url):
        stop = asyncio.Event()
        sink._on_append = lambda record: stop.set() if record.phase == "measure" else None
        transport = HttpTransport()
        block = await run_period(
            period(), endpoint(url), ITEMS, transport=transport, sink=sink, settings=QUICK, stop=stop
        )
        await transport.close()
        return block

    def script_for(payload):
        is_lead = payload["max_tokens"] < ITEMS["a"].max_tokens
        is_quick = is_lead or payload["messages"][0]["content"].endswith("a.")
        return Script(ttft_s=0.05) if is_quick else ENDLESS

    with ScriptedServer(script_for) as server:
        block = asyncio.run(main(server.url))
    phases = by_phase(sink)
    assert [record.item_id for record in phases["measure"]] == ["a"]
    interrupted = phases["interrupted"]
    assert sorted(record.item_id for record in interrupted)[:2] == ["b", "c"]
    assert {record.outcome for record in interrupted} == {"cancelled"}
    assert all("#interrupted" in record.request_id for record in interrupted)
    assert (block.completed, block.note) == (False, "stopped before every counted request had ended")


def test_cancelling_the_period_records_what_was_in_flight():
    """Cancelled from outside, the period raises on, and no request is lost without a record."""
    sink = ListSink()

    async def main(url, server):
        transport = HttpTransport()
        task = asyncio.create_task(
            run_period(period(), endpoint(url), ITEMS, transport=transport, sink=sink, settings=QUICK)
        )
        await asyncio.to_thread(wait_for_writes, server, 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.close()

    def script_for(payload):
        return Script(ttft_s=0.05) if payload["max_tokens"] < ITEMS["a"].max_tokens else ENDLESS

    with ScriptedServer(script_for) as server:
        asyncio.run(main(server.url, server))
    phases = by_phase(sink)
    assert set(phases) == {"fill", "interrupted"}
    assert sorted(record.item_id for record in phases["interrupted"]) == ["a", "b", "c"]
    assert any(record.chunks for record in phases["interrupted"])


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "no space left"), StoreError("the journal is full")])
def test_a_sink_that_cannot_write_ends_the_period(fault):
    """The sink's error is raised as it is, and nothing is left in flight."""

    def fail(record):
        if record.item_id == "b" and record.phase == "measure":
            raise fault

    sink = ListSink(fail)
    with ScriptedServer(slow_for("a", "c")) as server, pytest.raises(type(fault)) as caught:
        run(server, sink)
    assert caught.value is fault
    assert "measure" not in by_phase(sink)
    assert {record.outcome for record in by_phase(sink)["interrupted"]} <= {"cancelled"}


def test_a_sink_that_fails_while_stopping_is_not_silent():
    """Records lost at the very end are an error as well."""

    def fail(record):
        if record.outcome == "cancelled":
            raise StoreError("the journal is full")

    with ScriptedServer(slow_for("e")) as server, pytest.raises(StoreError):
        run(server, ListSink(fail))


def test_a_rejecting_service_is_not_flooded():
    """Refusals are counted requests, and a slot rests after each, so that few fills run beside a slow one."""
    sink = ListSink()

    def script_for(payload):
        slow = payload["messages"][0]["content"].endswith("a.")
        return Script(ttft_s=0.3) if slow else Script(status=429)

    with ScriptedServer(script_for) as server:
        run(server, sink, settings=LoadSettings(stagger_s=0.0, failure_pause_s=0.1))
    phases = by_phase(sink)
    assert sorted(record.outcome for record in phases["measure"]) == ["ok", *["rejected"] * 4]
    assert len(phases["fill"]) <= 2 * 4  # two free slots, one request each 0.1 s, for 0.3 s


def test_an_error_of_our_own_is_not_booked_as_the_service_s(monkeypatch):
    """A fault inside the fold ends the run with that fault instead of counting as a failed request."""

    def read_blocks(_blocks):
        raise KeyError("a bug")

    monkeypatch.setitem(ADAPTERS, "broken", msgspec.structs.replace(REFERENCE, read_blocks=read_blocks))

    async def main(url):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        transport = HttpTransport()
        broken = Endpoint(url=url, served_model="m", engine="broken")
        try:
            await run_period(period(), broken, ITEMS, transport=transport, sink=ListSink(), settings=QUICK)
        finally:
            await transport.close()

    with ScriptedServer(Script()) as server, pytest.raises(KeyError, match="a bug"):
        asyncio.run(main(server.url))
