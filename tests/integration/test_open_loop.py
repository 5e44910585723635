"""A whole open-loop period against the scripted server: due times kept, whatever the service does."""

import asyncio

import numpy as np
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady, times_within

QUICK = LoadSettings(failure_pause_s=0.0, request_timeout_s=20, ramp_up_s=1.0)
STEADY = OpenLoop(profile=Steady(rps=100.0), spacing=Spacing(kind="even"))


def run(server, due_ns, *, ramp_up=None, items=None, settings=QUICK, **options):
    names = [f"i{number:03}" for number in range(len(due_ns))]
    asked = items or {name: build_item(name) for name in names}
    period = Period(
        block=1, load="peak", concurrency=None, repeat=0, arm="baseline", order=0,
        item_ids=tuple(names), due_ns=tuple(due_ns), ramp_up=ramp_up, **options,
    )  # fmt: skip
    sink = MemorySink()
    endpoint = Endpoint(url=server.url, served_model="scripted", engine="generic")

    async def main():
        transport = HttpTransport()
        try:
            return await run_period(
                period, endpoint, asked, transport=transport, sink=sink, settings=settings
            )
        finally:
            await transport.close()

    return sink.records, asyncio.run(main())


def measured(records):
    return sorted((one for one in records if one.phase == "measure"), key=lambda one: one.order_in_block)


def test_requests_are_due_when_the_schedule_says():
    """Differences of the recorded schedule are those of the plan, to the nanosecond."""
    due_ns = times_within(Steady(rps=200.0), Spacing(), seed=3, duration_s=0.3)
    with ScriptedServer(Script()) as server:
        records, block = run(server, due_ns)
    counted = measured(records)
    assert np.diff([one.scheduled_ns for one in counted]).tolist() == np.diff(due_ns).tolist()
    assert all(one.sent_ns >= one.scheduled_ns for one in counted)
    assert block.completed
    assert block.send_lag_p99_ns is not None


def test_a_slow_service_does_not_slow_the_arrivals():
    """Coordinated omission: while the service sleeps, what is due is sent and its wait counts."""
    due_ns = [number * 10_000_000 for number in range(30)]
    with ScriptedServer(Script(ttft_s=0.5)) as server:
        records, block = run(server, due_ns)
        assert server.in_flight_max >= 30
    counted = measured(records)
    assert counted[-1].scheduled_ns - counted[0].scheduled_ns == 290_000_000
    assert counted[-1].sent_ns < counted[0].end_ns
    assert block.in_flight_max >= 30
    assert [one.concurrency for one in counted] == sorted(one.concurrency for one in counted)


def test_what_is_held_back_keeps_its_schedule_and_is_told():
    """Beyond `max_in_flight` a request waits at the client: its wait counts, and the period says so."""
    due_ns = [number * 1_000_000 for number in range(6)]
    with ScriptedServer(Script(ttft_s=0.1)) as server:
        records, block = run(server, due_ns, max_in_flight=2)
        assert server.in_flight_max == 2
    counted = measured(records)
    assert counted[-1].scheduled_ns - counted[0].scheduled_ns == 5_000_000
    assert counted[-1].sent_ns - counted[-1].scheduled_ns > 150_000_000
    assert "held back: 2 were in flight" in block.note
    assert block.held_back is not None
    assert block.held_back > 0
    assert block.send_lag_max_ns > 150_000_000


def test_who_rests_or_thinks_holds_nothing_back():
    """A request that has failed is not in flight while its client pauses, so the next one has room."""
    settings = LoadSettings(failure_pause_s=1.5)
    with ScriptedServer(Script(status=500)) as server:
        records, block = run(server, [0, 500_000_000], max_in_flight=1, settings=settings)
    first, second = measured(records)
    assert block.held_back == 0
    assert second.sent_ns - first.end_ns < 1_400_000_000


def test_a_lead_fills_the_service_before_anything_counts():
    """Counted requests meet the load that the pace makes, and it is kept up behind them."""
    due_ns = [number * 10_000_000 for number in range(10)]
    with ScriptedServer(Script(ttft_s=0.1)) as server:
        records, block = run(server, due_ns, ramp_up=STEADY)
    counted = measured(records)
    ramp_ups = [one for one in records if "#lead" in one.request_id]
    assert len(ramp_ups) >= 10
    assert {one.phase for one in ramp_ups} == {"fill"}
    assert counted[0].concurrency >= 8
    assert counted[0].scheduled_ns - block.started_ns >= 90_000_000
    behind = [one for one in records if one.phase == "fill" and one.scheduled_ns > counted[-1].scheduled_ns]
    assert len(behind) >= 5
    assert len(counted) == 10


def test_a_lead_has_an_end_where_the_service_never_catches_up():
    """What is in flight only grows, so the lead ends at its limit."""
    with ScriptedServer(Script(ttft_s=3.0)) as server:
        records, block = run(
            server, [0], ramp_up=STEADY, settings=LoadSettings(request_timeout_s=1.0, ramp_up_s=0.3)
        )
    (counted,) = measured(records)
    assert counted.scheduled_ns - block.started_ns == 300_000_000
    assert counted.outcome == "timeout"


def test_an_error_of_the_sink_ends_the_period():
    """It is raised as it is, nothing is left in flight."""

    class Full(MemorySink):
        def append(self, record):
            if record.phase == "measure":
                raise OSError(28, "no space left")
            super().append(record)

    names = ("a", "b")
    period = Period(block=1, load="l", concurrency=None, repeat=0, arm="baseline", order=0, item_ids=names,
                due_ns=(0, 1_000_000))  # fmt: skip

    async def main(url):
        transport = HttpTransport()
        endpoint = Endpoint(url=url, served_model="scripted", engine="generic")
        try:
            await run_period(
                period, endpoint, {name: build_item(name) for name in names},
                transport=transport, sink=Full(), settings=QUICK,
            )  # fmt: skip
        except OSError as error:
            return error.errno
        finally:
            await transport.close()
        return None

    with ScriptedServer(Script()) as server:
        assert asyncio.run(main(server.url)) == 28
