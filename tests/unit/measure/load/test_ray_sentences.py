"""What is said of a cluster that is not there, too small, or fails, with a stand-in for Ray."""

import asyncio
import sys
from types import SimpleNamespace

import msgspec
import pytest
from pydantic import ValidationError

from draftproof.core.errors import UsageError
from draftproof.measure.load.ray.cluster import ActorRemote, Cluster, load_ray
from draftproof.measure.load.ray.hosts import read_facts
from draftproof.measure.load.workers.messages import WorkerDiedError
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Limits


class RayError(Exception):
    """Stands for the root of Ray's errors."""


class GetTimeoutError(RayError, TimeoutError):
    """Stands for an answer that took too long."""


class StandIn:
    """As much of Ray as a cluster is asked for."""

    __version__ = "9.9"

    def __init__(self, get, cpus=4):
        self.exceptions = SimpleNamespace(RayError=RayError, GetTimeoutError=GetTimeoutError)
        self.cpus, self.get, self.killed = cpus, get, []

    def cluster_resources(self):
        return {"CPU": float(self.cpus)}

    def available_resources(self):
        return {"CPU": 1.0}

    def nodes(self):
        return [{"Alive": True}, {"Alive": True}, {"Alive": False}]

    def remote(self, _kind):
        return self

    def options(self, **asked):
        assert (asked["max_restarts"], asked["max_task_retries"]) == (0, 0)
        facts = SimpleNamespace(remote=lambda: "reference")
        return SimpleNamespace(remote=lambda: SimpleNamespace(facts=facts))

    def kill(self, actor):
        self.killed.append(actor)


LEVELS = (LoadLevel(name="peak", concurrency=4),)
URLS = {"baseline": "http://127.0.0.1:8000"}


def answer(references, timeout):
    assert timeout == 60.0
    return [msgspec.msgpack.encode(read_facts("n0de")) for _ in references]


def fail(error):
    def get(_references, timeout):
        raise error if timeout else AssertionError("it would wait for ever")

    return get


def test_what_there_is_is_told_and_nothing_is_kept():
    """A summary and a line for each host; the workers that were placed for it are ended."""
    ray = StandIn(answer)
    lines = Cluster(ray, "auto").check(LEVELS, 3, URLS)
    assert lines[0] == "Ray 9.9 at auto: 2 nodes with 4 CPUs"
    assert len(lines) == 2
    assert lines[1].startswith("3 load workers on ")
    assert len(ray.killed) == 3


MISSING = RayError(
    "The actor died because of an error\nTraceback\nModuleNotFoundError: No module named 'draftproof'"
)


@pytest.mark.parametrize(
    ("ray", "said"),
    [
        (StandIn(answer, cpus=2), "3 load workers need 3 CPUs, and the Ray cluster has 2 on 2 nodes"),
        (StandIn(fail(GetTimeoutError())), "did not all start within 60 s; the Ray cluster has 1 CPUs free"),
        (StandIn(fail(MISSING)), "could not be started .*No module named 'draftproof'.*Fix: install"),
    ],
    ids=["small", "busy", "bare"],
)  # fmt: skip
def test_a_cluster_that_cannot_do_it_is_one_sentence(ray, said):
    """Place, reason and fix, before a service is started."""
    with pytest.raises(UsageError, match=said):
        Cluster(ray, "auto").check(LEVELS, 3, URLS)


@pytest.mark.parametrize(
    ("wait_s", "said"),
    [(None, r"^is gone \(The actor died\)\.$"), (5.0, r"^gave no sign of life for 0\.05 s\.$")],
)
def test_a_call_that_fails_says_that_the_worker_is_gone(wait_s, said):
    """Ray's error in its first line, and silence as long as it was waited for."""

    async def work():
        if wait_s is None:
            raise RayError("The actor died.\n\tclass_name: X")
        await asyncio.sleep(wait_s)

    actor = SimpleNamespace(ping=SimpleNamespace(remote=work))
    remote = ActorRemote(StandIn(answer), actor, items=None, levels=LEVELS, workers=1, silent_s=0.05)
    with pytest.raises(WorkerDiedError, match=said):
        asyncio.run(remote.call("ping"))


def test_without_the_package_the_extra_is_named(monkeypatch):
    """One sentence with the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        UsageError, match=r'limits\.ray: .* need the package ray\. Fix: .*"draftproof\[ray\]"'
    ):
        load_ray()


@pytest.mark.parametrize("address", ["auto", "head:6379", "10.0.0.1:6379", "ray://head.local:10001"])
def test_addresses_of_clusters(address):
    """What Ray itself prints and takes."""
    assert Limits(ray=address).ray == address


@pytest.mark.parametrize("address", ["", "head", "http://head:8265", "ray://head", "local"])
def test_other_addresses_are_refused(address):
    """A dashboard's address or a bare name would only fail later."""
    with pytest.raises(ValidationError, match="ray"):
        Limits(ray=address)
