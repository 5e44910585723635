"""Load workers as actors of a Ray cluster that runs already: joining it, placing them, calling them.

Ray is imported when a plan names a cluster and not before. Secrets go as arguments of calls from process to
process: Ray keeps constructor arguments in its control store and large arguments in shared memory, so neither
holds one.

The coordinator's end of a worker on another host: words there, records and replies back, clocks compared.

Nothing here knows a cluster: `Remote` is the seam, and what it raises is that the worker is gone.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError, UsageError
from draftproof.core.records import BlockRecord, WorkerClock
from draftproof.measure.load.ray.actor import POLL_S, LoadActor
from draftproof.measure.load.ray.hosts import (
    HostFacts,
    Offset,
    Ping,
    check_reachable,
    check_same_program,
    check_sockets,
    describe_workers,
    estimate_offset,
    read_facts,
    widen_error,
)
from draftproof.measure.load.workers.messages import (
    REPLIES,
    Done,
    Failed,
    PeriodOrder,
    Reply,
    Setup,
    Stop,
    Word,
    WorkerDiedError,
)
from draftproof.measure.load.workers.process import CLOSE_S
from draftproof.plan.load import LoadLevel
from draftproof.store.journal import open_sound_lines

PINGS = 16


class Remote(Protocol):
    """The way to a `LoadActor`; raises WorkerDiedError where the worker, its host or the way is gone."""

    async def set_up(self, secrets: tuple[str, ...]) -> HostFacts:
        """Hand over what holds for all periods; return what the worker is."""
        ...

    async def call(self, method: str, *arguments: Any, wait_s: float = 0.0) -> Any:
        """Call a method of the actor that may wait so long by itself."""
        ...

    def kill(self) -> None:
        """End the worker's process, whatever it does; harmless when it is gone."""
        ...


class RemoteWorker:
    """A worker on another host.

    `setup`: its number, its journal here, and the secrets that it masks. `remote`: how it is reached.
    `clock`: the clock that records are kept in.
    """

    def __init__(self, setup: Setup, remote: Remote, clock: Clock = monotonic_ns) -> None:
        self._setup, self._remote, self._clock = setup, remote, clock
        self._words: asyncio.Queue[Word] = asyncio.Queue()
        self._heard = list[Reply]()
        self._sending: asyncio.Task[None] | None = None
        self._facts: HostFacts | None = None
        self._offset = Offset(0, 0)
        self._is_busy = False

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        at = "" if self._facts is None else f" on {self._facts.host} (process {self._facts.pid})"
        return f"load worker {self._setup.index}{at}"

    async def start(self) -> None:
        """Hand over what holds for all periods.

        Raises WorkerDiedError: it is gone; StoreError: its journal cannot be opened.
        """
        with self._named():
            facts = await self._remote.set_up(self._setup.secrets)
        self._lines = open_sound_lines(Path(self._setup.journal))
        self._facts, self._sending = facts, asyncio.create_task(self._send())

    def tell(self, word: Word) -> None:
        """Send a word, after those before it.

        Raises UsageError: the arm of a period answers where this worker cannot reach it.
        """
        if isinstance(word, PeriodOrder) and self._facts is not None:
            check_reachable({word.period.arm: word.endpoint.url}, read_facts(), [self._facts])
            self._is_busy = True
        self._words.put_nowait(word)

    async def hear(self) -> Reply:
        """Return the next reply; what ended before it is in the journal, and at `Done` on the device.

        Raises WorkerDiedError: the worker is gone, or gives no sign of life; StoreError: its journal cannot
        be written.
        """
        with self._named():
            while not self._heard:
                lines, replies = await self._remote.call("poll", wait_s=POLL_S)
                for line in lines.split(b"\n")[:-1]:
                    self._lines.append(line)
                for body in replies:
                    self._heard.append(await self._finish(REPLIES.decode(body)))
        return self._heard.pop(0)

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker; what it has of a period in progress is written down first unless `at_once`."""
        try:
            if not at_once and self._facts is not None:
                async with asyncio.timeout(CLOSE_S):
                    await self._drain()
        except (DraftproofError, TimeoutError):  # why the run ends has been said already
            pass
        finally:
            self._remote.kill()
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.wait({self._sending})
                self._lines.close()

    async def _drain(self) -> None:
        if self._is_busy:
            self.tell(Stop())
            while not isinstance(await self.hear(), Done | Failed):
                pass
        await self._remote.call("close")

    async def _send(self) -> None:
        """Send word after word: calls of an actor that run side by side have no order."""
        with contextlib.suppress(WorkerDiedError):  # `hear` finds the same
            while True:
                word = await self._words.get()
                beside: tuple[Any, ...] = ()
                if isinstance(word, PeriodOrder):
                    self._offset = await self._compare_clocks()
                    beside = (word.endpoint.headers, self._offset.offset_ns)
                    endpoint = msgspec.structs.replace(word.endpoint, headers=())
                    word = msgspec.structs.replace(word, endpoint=endpoint)
                await self._remote.call("take", msgspec.msgpack.encode(word), *beside)

    async def _compare_clocks(self) -> Offset:
        pings = []
        for _ in range(PINGS):
            sent_ns = self._clock()
            answered_ns = await self._remote.call("ping")
            pings.append(Ping(sent_ns, answered_ns, self._clock()))
        return estimate_offset(pings)

    async def _finish(self, reply: Reply) -> Reply:
        """Note the clocks of a part that is over, and put its records on the device."""
        if isinstance(reply, Done | Failed):
            self._is_busy = False
        if isinstance(reply, Done):
            self._lines.sync()
            return Done(self._note_clock(reply.block, await self._compare_clocks()))
        return reply

    def _note_clock(self, block: BlockRecord, after: Offset) -> BlockRecord:
        offset = widen_error(self._offset, after)
        at = "?" if self._facts is None else f"{self._facts.host}/{self._facts.pid}"
        clock = WorkerClock(f"w{self._setup.index} {at}", offset.offset_ns, offset.error_ns)
        return msgspec.structs.replace(block, clocks=(clock,))

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except WorkerDiedError as error:
            raise WorkerDiedError(f"{self.name} {error.message}") from error


PLACE = "limits.ray"
PLACE_S = 60.0
SILENT_S = 15.0
_REACH_S = 5.0
# What the two errors mean that every lost worker ends in; others say it themselves.
_ENDS = {
    "ActorDiedError": "its process or its node ended",
    "ActorUnavailableError": "its node cannot be reached",
}
# Of this process only: no report to Ray's makers, and no advice on devices that load workers do not have.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class ClusterActor(LoadActor):
    """A worker that also knows the cluster's name of its host."""

    async def facts(self) -> bytes:
        """Return what this process and its host are."""
        ray = importlib.import_module("ray")
        return msgspec.msgpack.encode(read_facts(ray.get_runtime_context().get_node_id()))


class Cluster:
    """A Ray cluster, by the package, that this process is part of; `join` it."""

    def __init__(self, ray: Any, address: str) -> None:
        self._ray, self.address = ray, address

    @classmethod
    def join(cls, address: str) -> "Cluster":
        """Join a cluster; joining it again is harmless.

        Ray puts a handler of its own on SIGTERM, so this comes before a run's. Raises UsageError: Ray is not
        installed, or no cluster answers there.
        """
        ray = load_ray()
        if not ray.is_initialized():
            _check_listening(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                raise UsageError(
                    f"no Ray cluster can be joined at {address} ({first_line(error)})",
                    place=PLACE,
                    fix="start one with `ray start --head`, on more hosts `ray start --address=HEAD:6379`, "
                    "with the same Ray and Python everywhere.",
                ) from error
        return cls(ray, address)

    @property
    def cpus(self) -> int:
        """CPUs of all nodes, taken or free."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def check(
        self, levels: Sequence[LoadLevel], workers: int, urls: dict[str, str], wait_s: float = PLACE_S
    ) -> tuple[str, ...]:
        """Place so many workers, look at them, let them go; return what there is, one line a host.

        `workers`: how many workers share a period. `urls`: an arm's name -> the address by which it is asked.
        `wait_s`: longest wait for their processes. Raises UsageError: the cluster is too small, or a worker
        there could not do its part.
        """
        nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
        if self.cpus < workers:
            raise UsageError(
                f"{workers} load workers need {workers} CPUs, and the Ray cluster has {self.cpus} on "
                f"{nodes} nodes",
                place="limits.workers",
                fix="add nodes with `ray start --address=HEAD:6379`, or lower limits.workers.",
            )
        own, facts = read_facts(), self._ask_facts(workers, wait_s)
        check_same_program(own, facts)
        check_sockets(levels, facts)
        check_reachable(urls, own, facts)
        summary = f"Ray {self._ray.__version__} at {self.address}: {nodes} nodes with {self.cpus} CPUs"
        return (summary, *describe_workers(facts))

    def make_factory(
        self, items: bytes, levels: Sequence[LoadLevel], workers: int
    ) -> Callable[[Setup], RemoteWorker]:
        """Return what makes a run's workers; `items`: the workload as msgpack, which each node gets once."""
        shared = self._ray.put(items)
        return lambda setup: RemoteWorker(
            setup, ActorRemote(self._ray, self.place(), items=shared, levels=levels, workers=workers)
        )

    def place(self) -> Any:
        """Return the handle of a new actor, on the node that has the fewest; Ray makes it meanwhile."""
        return (
            self._ray.remote(ClusterActor)
            .options(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")
            .remote()
        )

    def _ask_facts(self, workers: int, wait_s: float) -> list[HostFacts]:
        ray, actors = self._ray, [self.place() for _ in range(workers)]
        try:
            answers = ray.get([actor.facts.remote() for actor in actors], timeout=wait_s)
            return [msgspec.msgpack.decode(answer, type=HostFacts) for answer in answers]
        except ray.exceptions.RayError as error:
            raise _make_unfit(ray, error, wait_s) from error
        finally:
            for actor in actors:
                ray.kill(actor)


class ActorRemote:
    """The way to an actor; see `Remote`.

    `items`: a reference to the workload in the cluster's memory. `workers`: how many workers share a period.
    `silent_s`: a call that takes longer, beside what it waits for itself, says that the worker is gone.
    """

    def __init__(
        self,
        ray: Any,
        actor: Any,
        *,
        items: Any,
        levels: Sequence[LoadLevel],
        workers: int,
        silent_s: float = SILENT_S,
    ) -> None:
        self._ray, self.actor, self._items = ray, actor, items
        self._levels, self._workers, self._silent_s = levels, workers, silent_s

    async def set_up(self, secrets: tuple[str, ...]) -> HostFacts:
        """Hand over what holds for all periods; return what the worker is.

        Raises WorkerDiedError: it is gone, or could not be placed; UsageError: it cannot do its part.
        """
        placed_s = PLACE_S - self._silent_s
        facts = msgspec.msgpack.decode(await self.call("facts", wait_s=placed_s), type=HostFacts)
        check_same_program(read_facts(), [facts])
        descriptors = check_sockets(self._levels, [facts] * self._workers)[0]
        await self.call("set_up", self._items, secrets, descriptors, wait_s=placed_s)
        return facts

    async def call(self, method: str, *arguments: Any, wait_s: float = 0.0) -> Any:
        """Call a method of the actor that may wait so long by itself. Raises WorkerDiedError: it is gone."""
        wait_s += self._silent_s
        try:
            async with asyncio.timeout(wait_s):
                return await getattr(self.actor, method).remote(*arguments)
        except self._ray.exceptions.RayError as error:
            said = _ENDS.get(type(error).__name__) or first_line(error)
            raise WorkerDiedError(f"is gone ({said})") from error
        except TimeoutError as error:
            raise WorkerDiedError(f"gave no sign of life for {wait_s:g} s") from error

    def kill(self) -> None:
        """End the worker's process."""
        self._ray.kill(self.actor)


def load_ray() -> Any:
    """Return the package. Raises UsageError: it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"load workers on a Ray cluster need the package {error.name}",
            place=PLACE,
            fix='install it with: pip install "draftproof[ray]"',
        ) from error


def first_line(error: BaseException) -> str:
    """Return what an error of Ray says first: the rest is for those who mend Ray."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def _check_listening(address: str) -> None:
    """Ray takes a minute to say that nothing listens."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except OSError as error:
        raise UsageError(
            f"nothing answers at {address} ({error.strerror or error})",
            place=PLACE,
            fix="start the cluster with `ray start --head`, or give the address that it prints.",
        ) from error


def _make_unfit(ray: Any, error: BaseException, wait_s: float) -> UsageError:
    """Return why the workers could not be looked at: they were not placed in time, or could not start."""
    if isinstance(error, ray.exceptions.GetTimeoutError):
        free = int(ray.available_resources().get("CPU", 0))
        return UsageError(
            f"the load workers did not all start within {wait_s:g} s; the Ray cluster has {free} CPUs free",
            place="limits.workers",
            fix="end other jobs of the cluster, add nodes, or lower limits.workers.",
        )
    missing = [line for line in str(error).splitlines() if "ModuleNotFoundError" in line]
    said = missing[-1].strip() if missing else first_line(error)
    return UsageError(
        f"a load worker could not be started on the Ray cluster ({said})",
        place=PLACE,
        fix="install the same draftproof, with the extra ray, in the Python of every node.",
    )
