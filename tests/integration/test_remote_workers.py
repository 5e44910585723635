"""Workers on hosts with clocks of their own, without any cluster: calls go to the actors in this process."""

import asyncio
import contextlib
import itertools

import msgspec
import numpy as np
import pytest
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.core.clock import monotonic_ns
from draftproof.core.errors import StoreError, UsageError
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.ray.actor import LoadActor
from draftproof.measure.load.ray.cluster import RemoteWorker
from draftproof.measure.load.ray.hosts import read_facts
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.workers.messages import WorkerDiedError
from draftproof.measure.load.workers.pool import WorkerPool
from draftproof.store.journal import load_journal
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady, times_within
from draftproof.workload.conversation import view_answer

NAMES = tuple(f"i{number:02}" for number in range(24))
ITEMS = tuple(build_item(name) for name in NAMES)
QUICK = LoadSettings(stagger_s=0.002, failure_pause_s=0.0, request_timeout_s=20, ramp_up_s=0.5)
DUE_NS = times_within(Steady(rps=120.0), Spacing(), seed=3, duration_s=0.25)[: len(NAMES)]
SECRET = "sk-very-secret"  # noqa: S105 - made up
HOUR_NS = 3600 * 10**9
AHEAD_NS = (HOUR_NS, -2 * HOUR_NS, 12_345_678)


def closed():
    return Period(block=1, load="l", concurrency=6, repeat=0, arm="baseline", order=2, item_ids=NAMES)


def open_period(ramp_up=None):
    return Period(
        block=1, load="l", concurrency=None, repeat=0, arm="baseline", order=0,
        item_ids=NAMES[: len(DUE_NS)], due_ns=tuple(DUE_NS), ramp_up=ramp_up,
    )  # fmt: skip


class Link:
    """The way to an actor whose clock is ahead: each way takes its time, and it can be cut."""

    def __init__(self, ahead_ns, *, there_s=0.0005, back_s=0.004, alone_s=30.0, network=None):
        self.actor = LoadActor(clock=lambda: monotonic_ns() + ahead_ns, alone_s=alone_s)
        self.there_s, self.back_s, self.network = there_s, back_s, network
        self.is_cut = False
        self.seen = []

    async def call(self, method, *arguments, wait_s=0.0):
        del wait_s  # silence is told at once
        self.seen.append(arguments)
        await asyncio.sleep(self.there_s)
        if self.is_cut:
            raise WorkerDiedError("gave no sign of life for 15 s")
        answer = await getattr(self.actor, method)(*arguments)
        await asyncio.sleep(self.back_s)
        return answer

    async def set_up(self, secrets):
        await self.call("set_up", msgspec.msgpack.encode(ITEMS), secrets)
        facts = read_facts()
        return msgspec.structs.replace(facts, network=self.network) if self.network else facts

    def kill(self):
        """Nothing is left of it to end."""


def run(period, server, folder, links, *, answered=None, meanwhile=None):
    """Return what the journal here holds, and the period's outcome; actors are closed whatever happens."""

    async def main():
        made = iter(links := [link() for link in links_of])
        pool = WorkerPool(
            len(links), ITEMS, journal=folder, secrets=(SECRET,),
            make=lambda setup: RemoteWorker(setup, next(made)),
        )  # fmt: skip
        stop = asyncio.Event()
        helper = asyncio.create_task(meanwhile(links, stop, pool)) if meanwhile else None
        endpoint = Endpoint(
            url=server.url, served_model="scripted", engine="generic", headers=(("Authorization", SECRET),)
        )
        try:
            return links, await pool.run_period(
                period, endpoint, settings=QUICK, answered=answered or {}, stop=stop
            )
        finally:
            if helper is not None:
                await helper
            await pool.close()
            for link in links:
                with contextlib.suppress(ValueError):
                    await link.actor.close()

    links_of = links
    made_links, outcome = asyncio.run(main())
    return list(load_journal(folder).records), outcome, made_links


def far(ahead_ns, **options):
    return lambda: Link(ahead_ns, **options)


def counted(records):
    return sorted((one for one in records if one.phase == "measure"), key=lambda one: one.order_in_block)


async def wait_until(holds):
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - a file is no event
            await asyncio.sleep(0.01)


def test_three_clocks_make_one_period(tmp_path):
    """Hours apart, with uneven ways: due times are the plan's, and offsets are within their errors."""
    with ScriptedServer(Script(gaps_s=(0.002,))) as server:
        records, outcome, _ = run(open_period(), server, tmp_path, [far(one) for one in AHEAD_NS])
    block = outcome.block
    assert (outcome.error, block.completed, block.workers) == (None, True, 3)
    measured = counted(records)
    assert [one.scheduled_ns - block.started_ns for one in measured] == list(DUE_NS)
    assert [clock.worker.split()[0] for clock in block.clocks] == ["w0", "w1", "w2"]
    for clock, ahead_ns in zip(block.clocks, AHEAD_NS, strict=True):
        assert abs(clock.offset_ns - ahead_ns) <= clock.error_ns
        assert 2_000_000 < clock.error_ns < 100_000_000
    for one in measured:  # the server saw it when the record says so, within the uneven way
        assert one.scheduled_ns - 10**8 < one.sent_ns < one.headers_ns <= one.chunks[0].arrival_ns
        assert one.end_ns <= block.ended_ns + 10**8
    assert block.started_ns <= block.counted_from_ns < block.ended_ns


def test_a_lead_has_one_end_on_all_clocks(tmp_path):
    """Fills of all workers keep the plan's pace, and counted due times have one base."""
    ramp_up = OpenLoop(profile=Steady(rps=100.0), spacing=Spacing(kind="even"))
    with ScriptedServer(Script(ttft_s=0.05)) as server:
        records, _, _ = run(open_period(ramp_up), server, tmp_path, [far(one) for one in AHEAD_NS])
    ramp_ups = sorted(one.scheduled_ns for one in records if "#lead" in one.request_id)
    assert set(np.diff(ramp_ups).tolist()) == {10_000_000}
    measured = counted(records)
    assert np.diff([one.scheduled_ns for one in measured]).tolist() == np.diff(DUE_NS).tolist()
    assert 0 <= measured[0].scheduled_ns - DUE_NS[0] - ramp_ups[-1] <= 10_000_000


def test_one_worker_elsewhere_is_the_whole(tmp_path):
    """A single worker on another host runs a period as this process would."""
    with ScriptedServer(Script()) as server:
        records, outcome, _ = run(closed(), server, tmp_path, [far(HOUR_NS)])
    assert (outcome.block.completed, outcome.block.workers, len(outcome.block.clocks)) == (True, 1, 1)
    assert [one.order_in_block for one in counted(records)] == list(range(24))


def test_headers_and_secrets_travel_apart_and_are_masked(tmp_path):
    """No order holds the key, what a service quotes of it is masked before it leaves the worker."""
    with ScriptedServer(Script(status=401, refusal=f"no such key: {SECRET}")) as server:
        records, _, links = run(closed(), server, tmp_path, [far(0), far(0)])
        assert server.served[0].headers["authorization"] == SECRET
    assert any("no such key" in (one.error or "") for one in records)
    assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())
    sent = [one for link in links for arguments in link.seen for one in arguments if isinstance(one, bytes)]
    assert sent
    assert all(SECRET.encode() not in one for one in sent)


def test_a_cut_link_is_a_fault_of_the_client(tmp_path):
    """No sign of life: no request fails for it, and a resumed period asks exactly what is missing."""

    async def cut(links, _stop, _pool):
        await wait_until(lambda: any(path.stat().st_size > 2000 for path in tmp_path.glob("*w1.jsonl")))
        links[1].is_cut = True

    with ScriptedServer(Script(gaps_s=(0.02,))) as server:
        records, outcome, _ = run(closed(), server, tmp_path, [far(HOUR_NS), far(5)], meanwhile=cut)
        assert isinstance(outcome.error, WorkerDiedError)
        assert "load worker 1 on" in outcome.block.note
        assert "gave no sign of life for 15 s: its requests in flight have no records" in outcome.block.note
        assert not outcome.block.completed
        assert {one.outcome for one in counted(records)} == {"ok"}
        done = {one.request_id: view_answer(one) for one in records}
        assert 0 < len(counted(records)) < 24
        again, outcome, _ = run(closed(), server, tmp_path, [far(0), far(9)], answered=done)
    assert outcome.block.completed
    ids = [one.request_id for one in again]
    assert len(ids) == len(set(ids))
    assert [one.order_in_block for one in counted(again)] == list(range(24))


def test_a_worker_that_nobody_asks_ends_its_period(tmp_path):
    """The program is gone: a worker that hears nothing stops asking the service."""

    async def cut(links, _stop, _pool):
        await wait_until(lambda: any(path.stat().st_size > 500 for path in tmp_path.glob("*w0.jsonl")))
        links[0].is_cut = True
        async with asyncio.timeout(20):
            await asyncio.wait({links[0].actor._worker._period})

    with ScriptedServer(Script(gaps_s=(0.02,) * 40)) as server:
        _, outcome, _ = run(closed(), server, tmp_path, [far(0, alone_s=0.4)], meanwhile=cut)
        assert server.in_flight == 0
    assert not outcome.block.completed


def test_stopping_writes_down_what_was_in_flight(tmp_path):
    """Interrupted requests of every worker come home before the period's record does."""

    async def stop_soon(_links, stop, _pool):
        await wait_until(lambda: len(list(tmp_path.glob("*.jsonl"))) == 2)
        await asyncio.sleep(0.3)
        stop.set()

    with ScriptedServer(Script(endless=True, gaps_s=(0.01,))) as server:
        records, outcome, _ = run(closed(), server, tmp_path, [far(0), far(HOUR_NS)], meanwhile=stop_soon)
    assert (outcome.error, outcome.block.completed) == (None, False)
    assert {one.phase for one in records} <= {"fill", "interrupted"}
    assert len(records) >= 6
    by_time = sorted(one.end_ns for one in records)
    assert by_time[-1] - by_time[0] < 10 * 10**9


def test_a_journal_that_cannot_be_written_here_ends_the_period(tmp_path):
    """The disk that fills up is ours: one sentence of it, and whole lines in the file."""

    async def break_disk(_links, _stop, pool):
        await wait_until(lambda: hasattr(pool.workers[0], "_lines"))
        kept = itertools.count()
        append = pool.workers[0]._lines.append

        def fail(line):
            if next(kept) == 3:
                raise StoreError("the disk is full", place="records-w0.jsonl")
            append(line)

        pool.workers[0]._lines.append = fail

    with ScriptedServer(Script(gaps_s=(0.005,))) as server:
        _, outcome, _ = run(closed(), server, tmp_path, [far(0), far(0)], meanwhile=break_disk)
    assert isinstance(outcome.error, StoreError)
    assert not outcome.block.completed
    assert all(path.read_bytes().endswith(b"\n") for path in tmp_path.glob("*.jsonl"))


def test_a_service_that_a_worker_cannot_reach_is_found_before_it_is_asked(tmp_path):
    """Loopback from another network is refused in one sentence, with nothing recorded."""
    with ScriptedServer(Script()) as server:
        with pytest.raises(UsageError, match=r"arm baseline: it answers at http://127\.0\.0\.1"):
            run(closed(), server, tmp_path, [far(0, network="elsewhere")])
        assert not server.served
