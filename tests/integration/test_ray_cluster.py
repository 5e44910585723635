"""Whole runs on a Ray cluster of three nodes: placed, compared with one process, and broken off."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import psutil
import pytest

from draftproof.store.journal import load_journal

pytest.importorskip("ray", reason="module needs Ray (make test-ray)")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("ray_cluster.py")
ARMS = ("baseline", "candidate")
SLOW = {
    "baseline": ("--gap-ms", "40"),
    "candidate": ("--acceptance", "active", "--tokens-per-chunk", "2", "--gap-ms", "60"),
}
HOST_ERROR_NS = 50_000_000
# A node ends itself when its agents take longer than 15 s to start, as they do on a busy machine.
CLUSTER_TRIES = 3


class LocalCluster:
    """A cluster of its own process, and what a test does to it."""

    def __init__(self, nodes: int, folder: Path) -> None:
        self._log = folder.with_suffix(".log")
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(nodes), str(folder)],
                env={name: value for name, value in os.environ.items() if name != "DRAFTPROOF_TEST_STAGE"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def last_words(self):
        """Return the last line that it wrote, which names why there is no cluster."""
        return (self._log.read_text().splitlines() or [""])[-1]

    def actors(self):
        """Return the processes of its load workers."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in found if _name(one).startswith("ray::ClusterActor")]

    def drop_node(self):
        self._say("drop\n")

    def close(self):
        self.process.communicate(timeout=60)
        self._log.unlink(missing_ok=True)

    def _say(self, line):
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()


def _name(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def cluster():
    # Ray's sockets lie in its folder, and a socket's path has at most 107 bytes.
    folder = Path("/tmp") / f"dp-ray-{os.getpid()}-{time.monotonic_ns() % 10**6}"  # noqa: S108
    cluster = LocalCluster(3, folder)
    for _ in range(CLUSTER_TRIES - 1):
        if not cluster.address and "timed out during startup" in cluster.last_words():
            cluster.close()
            cluster = LocalCluster(3, folder)
    assert cluster.address, cluster.last_words()
    yield cluster
    cluster.close()
    shutil.rmtree(folder, ignore_errors=True)


def write(stage, cluster, load="concurrency = 6", **changes):
    path = stage.plan(block_size=12, **changes)
    text = path.read_text().replace("concurrency = 1", load)
    if cluster is not None:
        text = text.replace("[limits]\n", f'[limits]\nworkers = 3\nray = "{cluster.address}"\n')
    path.write_text(text)
    return path


def contents(out):
    return load_journal(out / "journal")


def measured(out):
    return [one for one in contents(out).records if one.phase == "measure"]


def call(stage, *arguments, code=None):
    done = stage.call(*arguments)
    assert "Traceback" not in done.stderr, done.stderr
    if code is not None:
        assert done.returncode == code, done.stderr + done.stdout
    return done


def ask(records):
    """Return what was asked: an arm's request -> its place and seed."""
    return {one.request_id: (one.order_in_block, one.seed, one.phase) for one in records}


def due(records):
    """Return when each request was due, from the first of its arm and block on, in nanoseconds."""
    periods = defaultdict(list)
    for one in records:
        periods[one.block, one.arm].append((one.order_in_block, one.scheduled_ns))
    return {
        period: [at_ns - min(places)[1] for _, at_ns in sorted(places)] for period, places in periods.items()
    }


@pytest.mark.parametrize(
    "load", ["concurrency = 6", 'arrivals = { rps = 30.0, spacing = "poisson" }'], ids=["closed", "open"]
)
def test_three_nodes_ask_what_one_process_asks(stage, cluster, load):
    """The same requests, seeds and due times; each node has a worker, and one host's clocks agree."""
    stage.write_items(24)
    call(stage, "run", write(stage, None, load), "--out", stage.folder / "alone")
    done = call(stage, "run", write(stage, cluster, load), "--out", stage.out)
    assert done.stderr == ""
    alone, shared = measured(stage.folder / "alone"), measured(stage.out)
    assert ask(shared) == ask(alone)
    assert {one.outcome for one in shared} == {"ok"}
    blocks = contents(stage.out).blocks
    assert all(one.completed and one.workers == 3 and len(one.clocks) == 3 for one in blocks)
    if "arrivals" in load:
        assert due(shared) == due(alone)
    for block in blocks:
        for clock in block.clocks:
            assert abs(clock.offset_ns) <= clock.error_ns < HOST_ERROR_NS
            assert f" {socket.gethostname()}/" in clock.worker
    files = Counter(path.name for path in (stage.out / "journal").glob("records-w*"))
    assert set(files) == {"records-w0.jsonl", "records-w1.jsonl", "records-w2.jsonl"}
    findings = [one for one in msgspec.json.decode((stage.out / "manifest.json").read_bytes())["findings"]
                if "load worker" in one]  # fmt: skip
    assert len(findings) == 3
    stage.wait_until(lambda: not cluster.actors(), "the end of every actor", wait_s=30)
    stage.assert_no_orphans()


@pytest.mark.parametrize("what", ["actor", "node"])
def test_a_lost_worker_is_a_fault_of_the_client(stage, cluster, what):
    """Killed process or lost node: one sentence, no failure of an arm, resumed without asking twice."""
    stage.write_items(24)
    process = stage.start("run", write(stage, cluster, **SLOW), "--out", stage.out)
    stage.wait_until(
        lambda: (stage.out / "journal").is_dir() and len(measured(stage.out)) >= 5, "five counted requests"
    )
    if what == "actor":
        cluster.actors()[0].kill()
    else:
        cluster.drop_node()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "Traceback" not in err
    (sentence,) = [line for line in err.splitlines() if "load worker" in line]
    assert "is gone (its " in sentence
    assert f"draftproof run --resume {stage.out}" in sentence
    kept = measured(stage.out)
    assert {one.outcome for one in kept} == {"ok"}
    broken = [one for one in contents(stage.out).blocks if not one.completed]
    assert len(broken) == 1
    assert "have no records" in broken[0].note
    if what == "node":  # what is left is too small, which is said before an arm is started
        refused = call(stage, "run", "--resume", stage.out, code=2)
        assert "3 load workers need 3 CPUs, and the Ray cluster has 2 on 2 nodes" in refused.stderr
        return
    call(stage, "run", "--resume", stage.out)
    whole = measured(stage.out)
    assert {one.request_id for one in kept} <= {one.request_id for one in whole}
    asked = Counter((one.arm, one.item_id) for one in whole)
    assert set(asked.values()) == {1}
    assert len(asked) == 48
    stage.assert_no_orphans()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_ends_the_program_ends_its_workers(stage, cluster, number):
    """Stopped or killed: no actor is left on the cluster, and a resumed run asks the rest once."""
    stage.write_items(24)
    process = stage.start("run", write(stage, cluster, **SLOW), "--out", stage.out)
    stage.wait_until(
        lambda: (stage.out / "journal").is_dir() and len(measured(stage.out)) >= 5, "five counted requests"
    )
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), err
    assert "Traceback" not in err
    stage.wait_until(lambda: not cluster.actors(), "the end of every actor", wait_s=60)
    stage.assert_no_orphans()
    records = contents(stage.out).records
    kept = [one for one in records if one.phase == "measure"]
    assert any(one.phase == "interrupted" for one in records) == (number != signal.SIGKILL)
    call(stage, "run", "--resume", stage.out)
    whole = measured(stage.out)
    assert {one.request_id for one in kept} <= {one.request_id for one in whole}
    assert set(Counter((one.arm, one.item_id) for one in whole).values()) == {1}
    assert len(whole) == 48


def test_check_tells_of_the_cluster(stage, cluster):
    """How many nodes and workers there are; a cluster that is too small or away is one sentence."""
    stage.write_items(24)
    plan = write(stage, cluster)
    said = call(stage, "check", plan, code=0).stdout
    assert f"Ray {_version()} at {cluster.address}: 3 nodes with 3 CPUs" in said
    assert said.count("1 load worker on ") == 3
    text = plan.read_text()
    plan.write_text(text.replace("workers = 3", "workers = 5"))
    refused = call(stage, "check", plan, code=2)
    assert "5 load workers need 5 CPUs, and the Ray cluster has 3 on 3 nodes" in refused.stderr
    plan.write_text(text.replace(cluster.address, "127.0.0.1:1"))
    refused = call(stage, "check", plan, code=2)
    assert "limits.ray: nothing answers at 127.0.0.1:1" in refused.stderr


def _version():
    import ray

    return ray.__version__
