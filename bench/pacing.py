"""How exactly an open loop keeps its due times, and what ten thousand open streams cost: `make bench-pacing`.

The client is the one that measures: worker processes, connections, parser and journal. The server is
`draftproof.measure.selfcheck.paced_server`, a process of its own on the same machine, so that its work is
in the figures too. Writes bench/pacing.json; figures of lag are medians over repeats, the worst beside them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import psutil
import uvloop

from draftproof.core.records import RequestRecord
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.sockets import count_descriptors
from draftproof.measure.load.workers.pool import Outcome, WorkerPool
from draftproof.measure.selfcheck.paced_server import Pace
from draftproof.store.journal import load_journal
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady, times_within
from draftproof.workload.items import Item, Message

OUT = Path(__file__).with_name("pacing.json")
NS_PER_MS = 1e6


def main() -> None:
    """Measure and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rps", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": {"cores": psutil.cpu_count(), "load_before": round(os.getloadavg()[0], 2)}
    }
    for workers in (1, 2):
        runs = [measure_pacing(options.rps, options.seconds, workers) for _ in range(options.repeats)]
        found[f"pacing_{workers}_workers"] = summarise(runs)
        print(workers, json.dumps(found[f"pacing_{workers}_workers"]))
    if options.streams:
        found["streams"] = measure_streams(options.streams, workers=2)
        print(json.dumps(found["streams"]))
    options.out.write_text(json.dumps(found, indent=1) + "\n")


def measure_pacing(rps: float, seconds: float, workers: int) -> dict[str, Any]:
    """Send at a steady rate and return how late requests left, connecting left out."""
    due_ns = times_within(Steady(rps=rps), Spacing(kind="even"), seed=1, duration_s=seconds)
    items = make_items(len(due_ns))
    lead = OpenLoop(profile=Steady(rps=rps), spacing=Spacing(kind="even"))
    period = make_period(items, concurrency=None, due_ns=tuple(due_ns), lead=lead)
    pace = Pace(ttft_ns=20_000_000, gap_ns=5_000_000, chunks=4)
    with HostFloor(rps) as floor:
        outcome, records, _ = drive(period, items, pace, workers)
    counted = sorted((one for one in records if one.phase == "measure"), key=lambda one: one.scheduled_ns)
    late_ms = [
        (one.sent_ns - one.scheduled_ns - (one.connect_ns or 0)) / NS_PER_MS for one in counted if one.sent_ns
    ]
    sent_ns = sorted(one.sent_ns for one in counted if one.sent_ns)
    achieved = (len(sent_ns) - 1) / ((sent_ns[-1] - sent_ns[0]) / 1e9)
    block = outcome.block
    window_s = (block.ended_ns - block.started_ns) / 1e9
    return {
        "requests": len(counted),
        "failed": sum(one.outcome != "ok" for one in counted),
        "late_p50_ms": float(np.quantile(late_ms, 0.5)),
        "late_p99_ms": float(np.quantile(late_ms, 0.99)),
        "late_max_ms": max(late_ms),
        "host_late_p50_ms": floor.quantile_ms(0.5),
        "host_late_p99_ms": floor.quantile_ms(0.99),
        "achieved_over_offered": achieved / rps,
        "worker_cpu_cores": (block.client_cpu_s or 0.0) / window_s,
        "conductor_cpu_cores": (block.conductor_cpu_s or 0.0) / window_s,
    }


class HostFloor:
    """How late this machine wakes a thread that does nothing but wait for the same due times."""

    def __init__(self, rps: float) -> None:
        self._gap_ns, self._late_ns, self._over = round(1e9 / rps), list[int](), threading.Event()
        self._thread = threading.Thread(target=self._wait)

    def quantile_ms(self, level: float) -> float:
        """Return a quantile of its lateness."""
        return float(np.quantile(self._late_ns, level)) / NS_PER_MS

    def _wait(self) -> None:
        due_ns = time.monotonic_ns()
        while not self._over.is_set():
            due_ns += self._gap_ns
            time.sleep(max(due_ns - time.monotonic_ns(), 0) / 1e9)
            self._late_ns.append(max(time.monotonic_ns() - due_ns, 0))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure_streams(streams: int, workers: int) -> dict[str, Any]:
    """Hold so many streams open at once and return memory a stream, lag and failures."""
    items = make_items(streams)
    period = make_period(items, concurrency=streams)
    pace = Pace(ttft_ns=3_000_000_000, gap_ns=6_000_000_000, chunks=4)
    settings = LoadSettings(stagger_s=15.0 / streams)
    outcome, records, rss = drive(period, items, pace, workers, settings)
    block = outcome.block
    counted = [one for one in records if one.phase == "measure"]
    window_s = (block.ended_ns - block.started_ns) / 1e9
    return {
        "streams": streams,
        "workers": workers,
        "in_flight_max": block.in_flight_max,
        "requests": len(counted),
        "outcomes": dict(Counter(one.outcome for one in records)),
        "errors": dict(Counter(one.error for one in records if one.outcome not in {"ok", "cancelled"})),
        "completed": block.completed,
        "note": block.note,
        "lag_max_ms": (block.event_loop_lag_max_ns or 0) / NS_PER_MS,
        "lag_p99_ms": (block.lag_p99_ns or 0) / NS_PER_MS,
        "connect_p50_ms": quantile_ms([one.connect_ns for one in records], 0.5),
        "connect_p99_ms": quantile_ms([one.connect_ns for one in records], 0.99),
        "worker_cpu_cores": (block.client_cpu_s or 0.0) / window_s,
        "conductor_cpu_cores": (block.conductor_cpu_s or 0.0) / window_s,
        "worker_rss_before_mib": round(sum(rss[0]) / 2**20, 1),
        "worker_rss_peak_mib": round(sum(rss[1]) / 2**20, 1),
        "rss_kib_per_stream": round((sum(rss[1]) - sum(rss[0])) / 1024 / streams, 1),
    }


def quantile_ms(values: list[int | None], level: float) -> float | None:
    """Return a quantile of the known values in ms."""
    known = [value / NS_PER_MS for value in values if value is not None]
    return float(np.quantile(known, level)) if known else None


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the repeats, and the worst of those that have a limit."""
    found = {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
    found["late_p99_ms_worst"] = round(max(run["late_p99_ms"] for run in runs), 4)
    found["rate_error_worst"] = round(max(abs(run["achieved_over_offered"] - 1) for run in runs), 5)
    return found | {"repeats": len(runs)}


def make_items(count: int) -> list[Item]:
    """Return items that ask the paced server for one answer each."""
    return [
        Item(id=f"r{n}", messages=(Message(role="user", content=f"r{n}"),), segments={}, max_tokens=4096)
        for n in range(count)
    ]


def make_period(items: list[Item], **load: Any) -> Period:
    """Return a period over all items."""
    ids = tuple(item.id for item in items)
    return Period(block=0, load="bench", repeat=0, arm="baseline", order=0, item_ids=ids, **load)


def drive(
    period: Period, items: list[Item], pace: Pace, workers: int, settings: LoadSettings | None = None
) -> tuple[Outcome, list[RequestRecord], tuple[list[int], list[int]]]:
    """Run a period over workers; return how it went, its records, and the workers' memory, first and most."""
    streams = period.concurrency or period.max_in_flight
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count_descriptors(streams)), hard))
    with serving(pace) as url, tempfile.TemporaryDirectory() as folder:
        endpoint = Endpoint(url=url, served_model="paced", engine="generic")
        outcome, rss = uvloop.run(
            _drive(period, items, endpoint, workers=workers, settings=settings, folder=Path(folder))
        )
        return outcome, list(load_journal(Path(folder)).records), rss


async def _drive(
    period: Period,
    items: list[Item],
    endpoint: Endpoint,
    *,
    workers: int,
    settings: LoadSettings | None,
    folder: Path,
) -> tuple[Outcome, tuple[list[int], list[int]]]:
    pool = WorkerPool(workers, items, journal=folder)
    before, peak = [0] * workers, [0] * workers

    def look() -> None:
        for place, worker in enumerate(pool.workers):
            with contextlib.suppress(psutil.Error):
                now = psutil.Process(worker.pid).memory_info().rss
                before[place] = before[place] or now
                peak[place] = max(peak[place], now)

    async def watch() -> None:
        while period.concurrency:
            await asyncio.sleep(1.0)
            look()

    watching = asyncio.create_task(watch())
    try:
        outcome = await pool.run_period(
            period,
            endpoint,
            settings=settings or LoadSettings(),
            answered={},
            stop=asyncio.Event(),
        )
        return outcome, (before, peak)
    finally:
        watching.cancel()
        await pool.close()


@contextlib.contextmanager
def serving(pace: Pace) -> Iterator[str]:
    """Yield the address of a paced server; it is gone afterwards."""
    command = [sys.executable, "-m", "draftproof.measure.selfcheck.paced_server"]
    command += ["--pace", msgspec.json.encode(pace).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: S603 - our own module
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
