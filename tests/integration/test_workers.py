"""Load workers as processes: the same requests as one process, and nothing lost or counted twice."""

import asyncio
import collections
import contextlib
import os
import resource
import signal
import time

import numpy as np
import psutil
import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.core.errors import StoreError
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink
from draftproof.measure.load.workers.messages import WorkerDiedError
from draftproof.measure.load.workers.pool import WorkerPool
from draftproof.store.journal import load_journal
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady, times_within
from draftproof.workload.conversation import view_answer
from draftproof.workload.items import FollowUp

NAMES = tuple(f"i{number:02}" for number in range(24))
TALK = (FollowUp(content="And then?"), FollowUp(content="And at last?"))
ITEMS = {
    name: build_item(name, follow_ups=TALK if number % 5 == 0 else ()) for number, name in enumerate(NAMES)
}
QUICK = LoadSettings(stagger_s=0.002, failure_pause_s=0.0, request_timeout_s=20, ramp_up_s=1.0)
DUE_NS = times_within(Steady(rps=120.0), Spacing(), seed=3, duration_s=0.25)[: len(NAMES)]
SECRET = "sk-very-secret"  # noqa: S105 - made up


def closed(concurrency=6, *, block=1):
    return Period(
        block=block, load="l", concurrency=concurrency, repeat=0, arm="baseline", order=2, item_ids=NAMES
    )


def open_period(ramp_up=None, *, block=1):
    return Period(
        block=block, load="l", concurrency=None, repeat=0, arm="baseline", order=0,
        item_ids=NAMES[: len(DUE_NS)], due_ns=tuple(DUE_NS), ramp_up=ramp_up,
    )  # fmt: skip


def endpoint(server):
    return Endpoint(
        url=server.url, served_model="scripted", engine="generic", headers=(("Authorization", SECRET),)
    )


def run_alone(period, server, answered=None):
    sink = MemorySink()

    async def main():
        transport = HttpTransport()
        try:
            return await run_period(
                period, endpoint(server), ITEMS, transport=transport, sink=sink, settings=QUICK,
                done=answered or {}, answered=answered,
            )  # fmt: skip
        finally:
            await transport.close()

    return sink.records, asyncio.run(main())


def run_shared(period, server, folder, *, answered=None, meanwhile=None, at_once=False):
    """Return the records of all workers, the period's outcome, and the pool, which is closed."""
    pool = WorkerPool(2, tuple(ITEMS.values()), journal=folder, secrets=(SECRET,))

    async def main():
        stop = asyncio.Event()
        helper = asyncio.create_task(meanwhile(pool, stop)) if meanwhile else None
        try:
            return await pool.run_period(
                period, endpoint(server), settings=QUICK, answered=answered or {}, stop=stop
            )
        finally:
            if helper is not None:
                await helper
            await pool.close(at_once=at_once)

    outcome = asyncio.run(main())
    return list(load_journal(folder).records), outcome, pool


def run_periods(workers, folder, *asked):
    """Return the records, the outcome and the server of each period, all of one pool, and the pool, closed.

    `asked`: periods of different blocks, each with the script of its own server.
    """
    pool, ended = WorkerPool(workers, tuple(ITEMS.values()), journal=folder, secrets=(SECRET,)), []

    async def main():
        try:
            for period, script in asked:
                with ScriptedServer(script) as server:
                    outcome = await pool.run_period(
                        period, endpoint(server), settings=QUICK, answered={}, stop=asyncio.Event()
                    )
                ended.append((period.block, outcome, server))
        finally:
            await pool.close(at_once=False)

    asyncio.run(main())
    records = list(load_journal(folder).records)
    return [([one for one in records if one.block == block], *rest) for block, *rest in ended], pool


@pytest.fixture(scope="module")
def conducted(tmp_path_factory):
    """Four periods of one pool of two workers: what `run_periods` returns, by name; the pool; its folder."""
    folder = tmp_path_factory.mktemp("journal")
    ramp_up = OpenLoop(profile=Steady(rps=100.0), spacing=Spacing(kind="even"))
    asked = {
        "quick": (closed(), Script(gaps_s=(0.002,))),
        "slots": (closed(block=2), Script(ttft_s=0.05)),
        "due": (open_period(block=3), Script()),
        "led": (open_period(ramp_up, block=4), Script(ttft_s=0.1)),
    }
    ended, pool = run_periods(2, folder, *asked.values())
    return dict(zip(asked, ended, strict=True)), pool, folder


def counted(records):
    return {
        one.request_id: (one.item_id, one.conversation_turn, one.order_in_block, one.seed)
        for one in records
        if one.phase == "measure"
    }


def assert_gone(pool):
    for worker in pool.workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            assert psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE


async def wait_for(holds, wait_s=20.0):
    deadline_s = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def test_two_workers_ask_what_one_process_asks(conducted):
    """Each request is counted once, with the same id, place and seed, and a conversation has one worker."""
    periods, pool, folder = conducted
    shared, outcome, _ = periods["quick"]
    with ScriptedServer(Script(gaps_s=(0.002,))) as server:
        alone, _ = run_alone(closed(), server)
    assert counted(shared) == counted(alone)
    ids = [one.request_id for one in shared]
    assert len(ids) == len(set(ids))
    assert {one.concurrency for one in shared} == {6}
    assert (outcome.error, outcome.block.completed, outcome.block.workers) == (None, True, 2)
    assert (outcome.block.arm, outcome.block.order) == ("baseline", 2)
    files = {path.name: load_one(path) for path in sorted(folder.iterdir())}
    assert set(files) == {"records-w0.jsonl", "records-w1.jsonl"}
    by_item = collections.defaultdict(set)
    for name, records in files.items():
        for one in records:
            if one.phase == "measure" and one.block == 1:
                by_item[one.item_id].add(name)
    assert all(len(names) == 1 for names in by_item.values())
    assert collections.Counter(next(iter(names)) for names in by_item.values()) == {
        name: len(NAMES) // 2 for name in files
    }
    assert_gone(pool)


def load_one(path):
    from draftproof.store.journal import iterate_records

    return list(iterate_records(path))


def test_the_load_is_that_of_all_slots_together(conducted):
    """Six slots over two workers start one stagger apart from one time on, and six requests are open."""
    records, outcome, server = conducted[0]["slots"]
    assert server.in_flight_max == 6
    block = outcome.block
    ramp_ups = sorted(one.scheduled_ns - block.started_ns for one in records if "#lead" in one.request_id)
    assert ramp_ups == [slot * 2_000_000 for slot in range(6)]
    measured = [one for one in records if one.phase == "measure"]
    assert min(one.scheduled_ns for one in measured) >= block.counted_from_ns
    assert block.client_cpu_s > 0
    assert block.conductor_cpu_s is not None


def test_due_times_are_the_same_whoever_sends(conducted):
    """Scheduled times of two workers, put together, are the plan's to the nanosecond, and they are kept."""
    records, outcome, _ = conducted[0]["due"]
    measured = sorted((one for one in records if one.phase == "measure" and not one.conversation_turn),
                      key=lambda one: one.order_in_block)  # fmt: skip
    assert [one.scheduled_ns - outcome.block.started_ns for one in measured] == list(DUE_NS)
    late_ns = [one.sent_ns - one.scheduled_ns - (one.connect_ns or 0) for one in measured]
    assert min(late_ns) >= 0
    assert np.median(late_ns) < 100_000_000
    assert outcome.block.completed


def test_a_lead_is_shared_and_ended_by_one_word(conducted):
    """Fills of both workers lead up at the pace of the plan, and counted due times have one base."""
    records, outcome, _ = conducted[0]["led"]
    ramp_ups = sorted(
        one.scheduled_ns for one in records if "#lead" in one.request_id and not one.conversation_turn
    )
    assert set(np.diff(ramp_ups).tolist()) == {10_000_000}
    assert len(ramp_ups) >= 10
    measured = sorted((one for one in records if one.phase == "measure" and not one.conversation_turn),
                      key=lambda one: one.order_in_block)  # fmt: skip
    assert np.diff([one.scheduled_ns for one in measured]).tolist() == np.diff(DUE_NS).tolist()
    assert 0 <= measured[0].scheduled_ns - DUE_NS[0] - ramp_ups[-1] < 100_000_000
    assert outcome.block.lead_end is not None
    assert ramp_ups[-1] < measured[0].scheduled_ns
    assert outcome.block.counted_from_ns > ramp_ups[0]


def test_a_resumed_period_asks_what_is_missing(tmp_path):
    """Two workers that go on where one process was broken off ask each missing request and no other."""
    with ScriptedServer(Script()) as server:
        alone, _ = run_alone(closed(), server)
        done = {one.request_id: None for one in alone if one.phase == "measure" and one.order_in_block < 9}
        shared, outcome, _ = run_shared(closed(), server, tmp_path, answered=done)
    blocked = {name for name, (_, period, *_) in counted(shared).items() if period}
    assert set(counted(shared)) == set(counted(alone)) - set(done)
    assert blocked
    assert outcome.block.completed


def test_secrets_are_masked_and_in_no_command_line(tmp_path):
    """A service that quotes the key finds it masked in a worker's journal; no process list shows it."""
    seen = []

    async def look(pool, _stop):
        await wait_for(lambda: all(worker.pid for worker in pool.workers))
        for worker in pool.workers:
            process = psutil.Process(worker.pid)
            seen.append((" ".join(process.cmdline()), process.environ()))

    with ScriptedServer(Script(status=401, refusal=f"no such key: {SECRET}")) as server:
        records, _, _ = run_shared(closed(), server, tmp_path, meanwhile=look)
        assert server.served[0].headers["authorization"] == SECRET
    assert len(seen) == 2
    assert all(SECRET not in line and SECRET not in environment.values() for line, environment in seen)
    assert all(SECRET not in path.read_text() for path in tmp_path.iterdir())
    assert any("no such key" in (one.error or "") for one in records)


def test_a_killed_worker_is_a_fault_of_the_client(tmp_path):
    """SIGKILL to one: no request fails for it, the period is incomplete and says so, and it can go on."""

    async def kill(pool, _stop):
        await wait_for(lambda: any(path.stat().st_size > 3000 for path in tmp_path.glob("*w1.jsonl")))
        os.kill(pool.workers[1].pid, signal.SIGKILL)

    with ScriptedServer(Script(gaps_s=(0.02,))) as server:
        records, outcome, pool = run_shared(closed(), server, tmp_path, meanwhile=kill)
        assert_gone(pool)
        assert isinstance(outcome.error, WorkerDiedError)
        assert not outcome.block.completed
        assert "load worker 1 was ended by SIGKILL" in outcome.block.note
        assert {one.outcome for one in records if one.phase == "measure"} == {"ok"}
        kept = counted(records)
        assert 0 < len(kept) < 33
        views = {one.request_id: view_answer(one) if one.outcome == "ok" else None for one in records}
        again, outcome, _ = run_shared(closed(), server, tmp_path, answered=views)
    assert outcome.block.completed
    ids = [one.request_id for one in again]
    assert len(ids) == len(set(ids))
    assert len(counted(again)) == 24 + 2 * 5


def test_stopping_reaches_every_worker(tmp_path):
    """What was in flight is written down as interrupted in each journal, under ids that claim nothing."""

    async def stop_soon(_pool, stop):
        await wait_for(lambda: len(list(tmp_path.glob("*.jsonl"))) == 2)
        await asyncio.sleep(0.3)
        stop.set()

    with ScriptedServer(Script(endless=True, gaps_s=(0.01,))) as server:
        records, outcome, pool = run_shared(closed(), server, tmp_path, meanwhile=stop_soon)
    assert (outcome.error, outcome.block.completed) == (None, False)
    assert outcome.block.note.count("stopped before every counted request had ended") == 2
    assert all(load_one(path) for path in tmp_path.iterdir())
    assert {one.phase for one in records} <= {"fill", "interrupted"}
    assert_gone(pool)


def test_workers_end_with_their_program(tmp_path):
    """A program that is gone without a word leaves none behind, and what they had is on disk."""

    async def abandon(pool, _stop):
        await wait_for(lambda: len(list(tmp_path.glob("*.jsonl"))) == 2)
        await asyncio.sleep(0.3)
        for worker in pool.workers:
            worker._process.stdin.close()  # what the end of the parent looks like from a worker

    with ScriptedServer(Script(endless=True, gaps_s=(0.01,))) as server:
        records, outcome, pool = run_shared(closed(), server, tmp_path, meanwhile=abandon)
    assert not outcome.block.completed
    assert records
    assert_gone(pool)


def test_a_full_disk_in_one_worker_ends_the_period_in_one_sentence(tmp_path):
    """The error is the disk's, the other worker's records are kept whole, and the period is incomplete."""

    async def fill_up(pool, _stop):
        await wait_for(lambda: pool.workers[0].pid is not None)
        resource.prlimit(pool.workers[0].pid, resource.RLIMIT_FSIZE, (6000, 6000))

    with ScriptedServer(Script(gaps_s=(0.005,))) as server:
        records, outcome, pool = run_shared(closed(), server, tmp_path, meanwhile=fill_up)
    assert isinstance(outcome.error, StoreError)
    assert "the disk is full" in outcome.error.message
    assert str(outcome.error.place).endswith("records-w0.jsonl")
    assert not outcome.block.completed
    assert all(path.read_bytes().endswith(b"\n") for path in tmp_path.glob("*.jsonl"))
    assert {one.outcome for one in records if one.phase == "measure"} <= {"ok"}
    assert_gone(pool)


def test_a_small_period_leaves_workers_at_rest(tmp_path):
    """A period has at most as many parts as slots: none of them is empty, and one slot needs no ramp."""
    slots = (1, 3)
    periods, _ = run_periods(4, tmp_path, *((closed(count, block=count), Script()) for count in slots))
    for count, (records, outcome, server) in zip(slots, periods, strict=True):
        assert server.in_flight_max == count
        assert outcome.block.workers == count
        assert len(counted(records)) == 24 + 2 * 5
