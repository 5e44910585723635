"""The host is read in slices and around periods; what is found is told once, kept, and acted on."""

import asyncio
from typing import Any

import pytest
from tests.builders.host import ScriptedHost
from tests.builders.records import build_block_record, build_item

from draftproof.measure.load.period import Period
from draftproof.measure.run.host_watch import SLICE_S, HostWatch, OwnWork, wait_until_quiet
from draftproof.measure.run.progress import Interrupted, Patience, Progress
from draftproof.measure.run.progress_model import ProgressModel
from draftproof.measure.run.watching_host import make_watch
from draftproof.plan.loading import parse_plan

PLAN = """\
name = "p"
[[load]]
name = "low"
concurrency = 1
[arms.baseline]
{baseline}
[arms.candidate]
settings = {{ "speculation.method" = "ngram" }}
"""


class Hearing(Progress):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def noticed(self, notice):
        self.told.append(notice)

    def phase(self, text):
        self.told.append(text)


@pytest.fixture
def made():
    def make(host, **options):
        kept: list[Any] = []
        progress = Hearing()
        watch = HostWatch(host, progress, pause=host.pause, clock=lambda: 5, **options)
        watch.keep_in(kept.append)
        return watch, kept, progress

    return make


async def busy_for(watch, slices):
    """Stay in a span until the host has been read so many times."""
    async with watch.span() as span:
        for _ in range(200):
            await asyncio.sleep(0.001)
            if len(watch.reader.attached) > slices or watch.halt.is_set():
                break
    return span


async def measure_late(watch):
    """Measure three periods of the baseline in which the client was late."""
    periods = [
        Period(block=block, load="low", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=("a",))
        for block in range(3)
    ]
    board = ProgressModel(periods, {"a": build_item("a")}, client_lag_ms=50.0)
    for period in periods:
        board.begin_period(period)
        record = build_block_record(
            load="low", block=period.block, event_loop_lag_max_ns=80_000_000, arm="baseline"
        )
        await watch.period_ended(record, board.end_period(record))


def test_a_period_keeps_what_its_host_did(made):
    """The span is what was read at both ends; accelerators are sampled on the way."""
    host = ScriptedHost(foreign=0.0)
    watch, kept, _ = made(host)
    span = asyncio.run(busy_for(watch, 3))
    assert span.use is not None
    assert span.use.own_s == pytest.approx(span.use.span_s)
    assert span.use.accelerators[0].samples >= 2
    assert kept == []


def test_a_crowded_host_is_told_once_and_ends_the_run(made):
    """A note, then the end, each once; who takes the cores is told and not kept."""
    host = ScriptedHost(foreign=1.0)
    watch, kept, progress = made(host)
    asyncio.run(busy_for(watch, 60))
    assert [(one.code, one.severity, one.at_ns) for one in kept] == [
        ("host_busy", "note", 5),
        ("host_busy", "cannot_end_well", 5),
    ]
    assert watch.halt.is_set()
    assert watch.ending == kept[1] or watch.ending.text == kept[1].text
    assert "burn, pid 7" in progress.told[0].remedy
    assert "burn" not in str(kept)


def test_whoever_wants_to_go_on_is_told_and_not_stopped(made):
    """With keep_going nothing ends, and the record does not say so either."""
    watch, kept, _ = made(ScriptedHost(foreign=1.0), patience=Patience(keep_going=True))
    asyncio.run(busy_for(watch, 20))
    assert {one.severity for one in kept} == {"note"}
    assert (watch.halt.is_set(), watch.ending) == (False, None)


def test_a_quiet_host_is_told_nothing(made):
    """Own work on every core, however long."""
    watch, kept, progress = made(ScriptedHost(own=2.0))
    asyncio.run(busy_for(watch, 60))
    assert (kept, progress.told, watch.halt.is_set()) == ([], [], False)


def test_hidden_services_leave_own_work_unknown(made):
    """Then nobody is accused, and that is said."""
    host = ScriptedHost(foreign=1.0)
    watch, kept, _ = made(host, own=OwnWork(attached=None, hidden=("baseline",)))
    span = asyncio.run(busy_for(watch, 20))
    assert span.use.own_s is None
    assert [one.code for one in kept] == ["foreign_unknown"]
    assert set(host.attached) == {None}


def test_a_host_that_cannot_be_read_stops_nothing(made):
    """A period then has no evidence."""

    class Unreadable(ScriptedHost):
        def read(self, attached=()):
            raise OSError(attached)

    watch, kept, _ = made(Unreadable())

    async def one():
        async with watch.span() as span:
            pass
        return span.use

    assert (asyncio.run(one()), kept) == (None, [])


def test_periods_are_taken_in_with_the_forecast(made):
    """Three periods with an unfit client end a run of one load."""
    watch, kept, _ = made(ScriptedHost(), planned={"low": 60})
    asyncio.run(measure_late(watch))
    assert [(one.code, one.severity) for one in kept] == [("client_late", "cannot_end_well")]


def test_the_early_word_gives_the_forecast_of_the_live_view(made):
    """As it stands when the word is said, in the same words: not that of the last period, in minutes."""
    watch, kept, _ = made(ScriptedHost(foreign=1.0))
    watch.follow(lambda: 8.4)
    asyncio.run(busy_for(watch, 20))
    assert kept[0].text.endswith("; at this pace about 8 s are left.")


def test_a_run_that_may_wait_goes_on_when_the_host_is_quiet(made):
    """The others leave after a while: the wait is noted, and the watch begins anew."""
    host = ScriptedHost(foreign=1.0)
    watch, kept, progress = made(host, patience=Patience(wait_s=600.0))

    async def run():
        await busy_for(watch, 60)
        left_at_s = host.at_s + 60

        async def leaving(seconds, pause=host.pause):
            host.foreign = 0.0 if host.at_s >= left_at_s else host.foreign
            await pause(seconds)

        watch._pause = leaving
        return await watch.wait_for_quiet(asyncio.Event())

    assert asyncio.run(run()) is True
    assert (watch.ending, watch.halt.is_set()) == (None, False)
    assert kept[-1].text == "The run waited 1 min until the host was quiet."
    assert "Waiting for a quiet host, 10 min at most" in progress.told


def test_a_wait_has_an_end(made):
    """A host that never gets quiet ends the run at the limit; a run that may not wait ends at once."""
    host = ScriptedHost(foreign=1.0)
    watch, _, _ = made(host, patience=Patience(wait_s=60.0))
    asyncio.run(busy_for(watch, 60))
    before_s = host.at_s
    assert asyncio.run(watch.wait_for_quiet(asyncio.Event())) is False
    assert host.at_s - before_s == pytest.approx(60.0, abs=SLICE_S)
    watch, _, _ = made(ScriptedHost(foreign=1.0))
    asyncio.run(busy_for(watch, 60))
    assert asyncio.run(watch.wait_for_quiet(asyncio.Event())) is False


def test_no_wait_helps_a_client_that_is_unfit_by_itself(made):
    """Only a host that others use gets quiet."""
    watch, _, _ = made(ScriptedHost(), patience=Patience(wait_s=60.0), planned={"low": 60})
    asyncio.run(measure_late(watch))
    assert watch.ending.code == "client_late"
    assert asyncio.run(watch.wait_for_quiet(asyncio.Event())) is False


def test_whoever_leaves_ends_the_wait():
    """Ctrl-C does not wait for a quiet host."""
    stop, host = asyncio.Event(), ScriptedHost(foreign=1.0)
    stop.set()

    async def wait():
        await wait_until_quiet(host, 3600.0, Progress(), stop, pause=asyncio.sleep)

    with pytest.raises(Interrupted):
        asyncio.run(wait())


def test_a_stop_halts_the_run_and_the_reader_is_closed(made):
    """Whoever wants to leave is heeded as before."""
    host = ScriptedHost()
    watch, _, _ = made(host)

    async def run():
        stop = asyncio.Event()
        async with watch.heeding(stop):
            assert not watch.halt.is_set()
            stop.set()
            await asyncio.wait_for(watch.halt.wait(), 1.0)

    asyncio.run(run())
    assert (host.closed, watch.ending) == (True, None)


@pytest.mark.parametrize(
    ("baseline", "is_told"),
    [("", True), ('url = "http://127.0.0.1:9"', False), ('command = ["docker", "run", "x"]', False)],
)
def test_until_a_service_answers_nobody_knows_whose_work_is_whose(baseline, is_told):
    """Somebody else's service may be loading its model, on the cores that the others need: no neighbour."""
    plan = parse_plan(PLAN.format(baseline=baseline))
    watch = make_watch(plan, (build_item("a"),), Progress(), Patience())
    assert (watch._own.attached is not None, watch._own.serves_here) == (is_told, True)
    watch.reader.close()
