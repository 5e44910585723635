"""A period is sampled around and during it, whatever the metrics address does."""

import asyncio
import gzip
import os
from contextlib import asynccontextmanager

import aiohttp
import pytest

from draftproof.core.errors import StoreError
from draftproof.core.records import TelemetrySample
from draftproof.services.engines.facts import Series
from draftproof.services.telemetry import sampler as module
from draftproof.services.telemetry.sampler import MOST_TRIES, Sampler, Target

SERIES = Series(generation_tokens=("tokens_total",), running=("running",))


class Service:
    """Answers GET by the first part of the path, and remembers what was asked and with which key."""

    def __init__(self):
        self.tokens, self.asked, self.keys = 0, [], []

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1]
        self.asked.append(path)
        self.keys += [line.partition(": ")[2] for line in head.splitlines() if line.startswith("X-Key")]
        if path == "/hang":
            await reader.read()  # until the client has had enough
        writer.write(self.answer(path))
        await writer.drain()
        writer.close()

    def answer(self, path):
        text = f"# TYPE tokens_total counter\ntokens_total {self.tokens}\nrunning 1\nnoise 7\n".encode()
        status, extra, body = {
            "/gzip": ("200 OK", "Content-Encoding: gzip\r\n", gzip.compress(text)),
            "/denied": ("401 Unauthorized", "", b"no"),
            "/html": ("200 OK", "", b"<html>Sign in</html>"),
            "/gpu": ("200 OK", "", b'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 200\n'),
        }.get(path, ("200 OK", "", text))
        head = f"HTTP/1.1 {status}\r\n{extra}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + body


class Samples(list[TelemetrySample]):
    """Keeps samples and lets a test wait for a number of them."""

    def __init__(self):
        super().__init__()
        self.more = asyncio.Event()

    def keep(self, sample):
        self.append(sample)
        self.more.set()

    async def wait(self, mark, count):
        while len(self.of(mark)) < count:
            self.more.clear()
            await asyncio.wait_for(self.more.wait(), 30)

    def of(self, mark):
        return [one for one in self if one.mark == mark]


@asynccontextmanager
async def started(*paths, **options):
    """Yield (service, samples, sampler, target) for a service that answers at these paths."""
    service, samples = Service(), Samples()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession() as session:
        write = options.pop("write", samples.keep)
        target = Target(
            arm="candidate",
            urls=tuple(base + path for path in paths),
            series=SERIES,
            headers=(("X-Key", "k"),),
            pid=options.pop("pid", None),
        )
        try:
            yield service, samples, Sampler(session, write, interval_s=0.01, **options), target
        finally:
            server.close()
            await server.wait_closed()


def test_a_period_is_sampled_at_its_ends_and_in_between():
    """The first sample is from before the body, the last from after it, all under the period's name."""

    async def scenario():
        async with started("/ok") as (service, samples, sampler, target):
            async with sampler.period(target, "low/7"):
                service.tokens = 40
                await samples.wait("during", 2)
            return samples, service

    samples, service = asyncio.run(scenario())
    assert [one.mark for one in samples if one.mark != "during"] == ["start", "end"]
    assert {(one.arm, one.period, one.replica, one.source) for one in samples} == {
        ("candidate", "low/7", 0, "engine")
    }
    assert samples[0].values == {"tokens_total": 0.0, "running": 1.0}
    assert samples[-1].values == {"tokens_total": 40.0, "running": 1.0}
    assert sorted(samples, key=lambda one: one.at_ns) == samples
    assert set(service.keys) == {"k"}


def test_replicas_are_sampled_under_their_numbers():
    """Two addresses are two replicas, read at the same time."""

    async def scenario():
        async with started("/ok", "/other") as (_, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                pass
            return samples

    samples = asyncio.run(scenario())
    assert [(one.mark, one.replica) for one in samples] == [
        ("start", 0),
        ("start", 1),
        ("end", 0),
        ("end", 1),
    ]
    assert samples[0].at_ns == samples[1].at_ns


def test_a_compressed_answer_is_unpacked():
    """A gzip body reads like any other."""

    async def scenario():
        async with started("/gzip") as (_, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                pass
            return samples

    assert [one.values["tokens_total"] for one in asyncio.run(scenario())] == [0.0, 0.0]


@pytest.mark.parametrize("path", ["/denied", "/html"])
def test_an_address_without_metrics_leaves_no_sample_and_no_error(path):
    """A 401 or a page for people is no reading, and the other replica is read all the same."""

    async def scenario():
        async with started(path, "/ok") as (_, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                await samples.wait("during", 1)
            return samples

    assert {one.replica for one in asyncio.run(scenario())} == {1}


def test_a_hanging_address_delays_only_the_first_edge(monkeypatch):
    """It is given up at the start, asked again during the period, and not waited for at the end."""
    monkeypatch.setattr(module, "EDGE_S", 1.5)
    waits = []
    wait = asyncio.wait

    async def scenario():
        async with started("/hang", "/ok") as (_, samples, sampler, target):

            async def recorded(tasks, **options):
                waits.append(len(tasks))
                return await wait(tasks, **options)

            monkeypatch.setattr(asyncio, "wait", recorded)
            async with sampler.period(target, "low/0"):
                await samples.wait("during", 1)
            return samples

    samples = asyncio.run(scenario())
    assert {one.replica for one in samples} == {1}
    assert [one.mark for one in samples if one.mark != "during"] == ["start", "end"]
    # the machine's reading and two addresses at the start, one address fewer at the end
    assert (waits[0], waits[-1]) == (3, 2)


def test_a_dead_address_is_not_asked_for_ever():
    """Nobody is asked more than a few times who has never answered."""

    async def scenario():
        async with started("/denied", "/ok") as (service, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                await samples.wait("during", MOST_TRIES + 3)
            return service.asked

    assert asyncio.run(scenario()).count("/denied") == MOST_TRIES


def test_an_end_is_read_until_the_counters_rest():
    """A service that counts an answer a moment later is read again, and the settled value is kept."""

    async def scenario():
        async with started("/ok") as (service, samples, sampler, target):

            async def count_late(_seconds):
                service.tokens = 12

            sampler.pause = count_late
            sampler.interval_s = 1e6
            watch = module._Watch(sampler, target, "low/0")
            await watch.read_edge("end")
            return samples, service.asked

    samples, asked = asyncio.run(scenario())
    assert [one.values["tokens_total"] for one in samples] == [12.0]
    assert len(asked) == 3


def test_a_gpu_exporter_among_the_addresses_is_the_machine():
    """DCGM's values are of source host and are no engine's sample."""

    async def scenario():
        async with started("/ok", "/gpu") as (_, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                pass
            return samples

    found = [one for one in asyncio.run(scenario()) if one.replica == 1]
    assert {one.source for one in found} == {"host"}
    assert found[0].values == {'DCGM_FI_DEV_POWER_USAGE{gpu="0"}': 200.0}


def test_the_machine_is_read_for_launched_arms_only():
    """Of a service that ran already this machine says nothing."""

    class Machine:
        def __init__(self):
            self.families = []

        def read(self, family):
            self.families.append(tuple(one.pid for one in family))
            return {"host_x": 1.0}

    async def scenario(pid):
        machine = Machine()
        async with started(pid=pid, host=machine) as (_, samples, sampler, target):
            async with sampler.period(target, "low/0"):
                pass
            return samples, machine.families

    samples, families = asyncio.run(scenario(os.getpid()))
    assert [(one.source, one.mark) for one in samples] == [("host", "start"), ("host", "end")]
    assert families[0][0] == os.getpid()
    assert asyncio.run(scenario(None)) == ([], [])


def test_whoever_wants_to_leave_is_not_kept():
    """After a stop there is no reading at the end."""

    async def scenario():
        stop = asyncio.Event()
        async with started("/ok") as (_, samples, sampler, target):
            async with sampler.period(target, "low/0", stop):
                stop.set()
            return samples.of("end")

    assert asyncio.run(scenario()) == []


def test_a_full_disk_is_told_after_the_period():
    """A sample that cannot be kept does not end the period, and is not hidden either."""
    done = []

    async def scenario():
        failed = asyncio.Event()

        def fail(sample):
            if sample.mark == "during":
                failed.set()
                raise StoreError("the disk is full.")

        async with (
            started("/ok", write=fail) as (_, _samples, sampler, target),
            sampler.period(target, "low/0"),
        ):
            await asyncio.wait_for(failed.wait(), 30)
            done.append("the period")

    with pytest.raises(StoreError, match="disk is full"):
        asyncio.run(scenario())
    assert done == ["the period"]


def test_an_error_of_the_period_is_raised_as_it_is():
    """What ends a period is not replaced by anything of the sampling."""

    async def scenario():
        async with started("/ok") as (_, samples, sampler, target):
            with pytest.raises(RuntimeError, match="the period failed"):
                await fail_in(sampler.period(target, "low/0"))
            return samples.of("end")

    async def fail_in(period):
        async with period:
            raise RuntimeError("the period failed")

    assert asyncio.run(scenario()) == []
