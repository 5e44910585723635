"""Samples an arm's services and their machine around and during its period, in a task of its own.

A metrics address that is slow, dead or no metrics at all never fails a period. The period waits only for the
two readings at its ends, at most `EDGE_S` each, and not for an address that let the last reading down.
Readings during a period are due at fixed times from its start; what does not answer by the next one is left
out.
"""

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import psutil

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.core.records import TelemetrySample
from draftproof.services.engines.facts import Series
from draftproof.services.telemetry.host import HostReader, find_family
from draftproof.services.telemetry.scrape import Selection, fetch_text, name_series_of, select_values

EDGE_S = 2.0
# A service may count an answer a moment after its last byte: an end is read until its numbers rest.
SETTLE_S, SETTLE_READS = 0.05, 3
# An address that has never answered is not asked for ever.
MOST_TRIES = 5

Write = Callable[[TelemetrySample], None]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What is sampled of an arm: metrics addresses in the order of replicas, and its process if launched."""

    arm: str
    urls: tuple[str, ...]
    series: Series
    headers: tuple[tuple[str, str], ...] = ()
    pid: int | None = None
    attempt: int = 0


class Sampler:
    """Takes the samples of one period after the other.

    `write`: keeps a sample; what it raises is raised at the end of the period. `interval_s`: time between
    readings during a period. `host`: reads the machine of launched arms; None leaves it out. `clock`: source
    of the times in samples. `pause`: waits so many seconds.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        write: Write,
        *,
        interval_s: float,
        host: HostReader | None = None,
        clock: Clock = monotonic_ns,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.session, self.write, self.interval_s = session, write, interval_s
        self.host, self.clock, self.pause = host, clock, pause
        self._let_down: set[str] = set()  # addresses that did not answer at the last end of a period
        self._answered: set[str] = set()  # addresses that ever did
        self._failures: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def period(
        self, target: Target, name: str, stop: asyncio.Event | None = None
    ) -> AsyncIterator[None]:
        """Sample around and during the body, which is the period `name` ("load/block").

        Once `stop` is set the reading at the end is left out: who wants to leave is not kept waiting. Raises
        StoreError: a sample cannot be kept.
        """
        watch = _Watch(self, target, name)
        await watch.read_edge("start")
        during = asyncio.create_task(watch.read_during())
        try:
            yield
        finally:
            during.cancel()
            (ended,) = await asyncio.gather(during, return_exceptions=True)
        if stop is None or not stop.is_set():
            await watch.read_edge("end")
        if isinstance(ended, Exception):
            raise ended

    def note(self, url: str, *, answered: bool, at_edge: bool) -> None:
        """Remember whether an address answered; what let a period's end down is forgiven once it answers."""
        if answered:
            self._answered.add(url)
            self._let_down.discard(url)
        else:
            self._failures[url] += 1
            self._let_down |= {url} if at_edge else set()

    def is_worth_asking(self, url: str, *, at_edge: bool) -> bool:
        """Tell whether an address may yet answer, and at an end of a period whether it is worth the wait."""
        hopeless = url not in self._answered and self._failures[url] >= MOST_TRIES
        return not hopeless and not (at_edge and url in self._let_down)


class _Watch:
    """One period of one arm."""

    def __init__(self, sampler: Sampler, target: Target, name: str) -> None:
        self._of, self._target, self._name = sampler, target, name
        self._names = name_series_of(target.series)
        self._family: tuple[Any, ...] = ()

    async def read_edge(self, mark: str) -> None:
        """Read at an end of the period what did not let the last reading down."""
        if self._target.pid is not None and self._of.host is not None:
            self._family = await asyncio.to_thread(find_family, self._target.pid)
        await self._read(mark, self._settle, EDGE_S)

    async def read_during(self) -> None:
        """Read at every multiple of the interval until cancelled."""
        of, step_ns = self._of, round(self._of.interval_s * 1e9)
        start_ns, tick = of.clock(), 0
        while True:
            tick = max(tick + 1, (of.clock() - start_ns) // step_ns + 1)
            await of.pause(max(0, start_ns + tick * step_ns - of.clock()) / 1e9)
            await self._read("during", self._fetch, min(EDGE_S, of.interval_s))

    async def _read(
        self, mark: str, fetch: Callable[[str], Awaitable[Selection | None]], limit_s: float
    ) -> None:
        """Read addresses and machine at the same time and keep what comes within the limit."""
        at_ns, at_edge = self._of.clock(), mark != "during"
        urls = [url for url in self._target.urls if self._of.is_worth_asking(url, at_edge=at_edge)]
        asked = {url: asyncio.ensure_future(fetch(url)) for url in urls}
        host = asyncio.ensure_future(self._read_host())
        try:
            await asyncio.wait({host, *asked.values()}, timeout=limit_s)
            for url, task in asked.items():
                found = task.result() if task.done() else None
                self._of.note(url, answered=found is not None, at_edge=at_edge)
                if found is not None:
                    self._keep(found, self._target.urls.index(url), at_ns, mark)
            if host.done():
                self._keep(Selection({}, host.result()), len(self._target.urls), at_ns, mark)
        finally:
            for one in (host, *asked.values()):
                one.cancel()
            await asyncio.gather(host, *asked.values(), return_exceptions=True)

    async def _settle(self, url: str) -> Selection | None:
        """Read an address until two readings are the same, a few times at most; return the last one."""
        found = await self._fetch(url)
        for _ in range(SETTLE_READS - 1):
            if found is None:
                break
            await self._of.pause(SETTLE_S)
            before, found = found, await self._fetch(url)
            if found == before:
                break
        return found

    async def _fetch(self, url: str) -> Selection | None:
        """Read an address once, None where it gives no metrics."""
        try:
            text = await fetch_text(self._of.session, url, headers=self._target.headers, timeout_s=EDGE_S)
            return select_values(text, self._names)
        except (EngineError, ValueError):
            return None

    async def _read_host(self) -> dict[str, float]:
        """Return what the machine says; nothing for services that this run did not start."""
        if self._target.pid is None or self._of.host is None:
            return {}
        try:
            return await asyncio.to_thread(self._of.host.read, self._family)
        except OSError:
            return {}

    def _keep(self, found: Selection, replica: int, at_ns: int, mark: str) -> None:
        for source, values in (("engine", found.engine), ("host", found.host)):
            if values:
                sample = {
                    "arm": self._target.arm,
                    "at_ns": at_ns,
                    "values": values,
                    "source": source,
                    "replica": replica,
                    "turn": self._name,
                    "mark": mark,
                    "attempt": self._target.attempt,
                }
                self._of.write(msgspec.convert(sample, TelemetrySample))


# Whoever listens for a container is not its service.
_DAEMON_CLIENTS = ("docker", "podman", "nerdctl", "kubectl", "srun", "systemd-run", "ssh")
_FORWARDERS = ("docker-proxy", "rootlessport", "slirp4netns", "pasta", "conmon", "containerd-shim")


def is_by_daemon(command: Iterable[str]) -> bool:
    """Tell whether a command has somebody else start the service, so that it is in no tree of ours."""
    words = (word for part in command for word in part.split())
    return any(word.rpartition("/")[2] in _DAEMON_CLIENTS for word in words)


def find_processes(url: str) -> tuple[int, ...] | None:
    """Return the processes of a service, empty where it runs elsewhere; None where it is not known.

    A service that this program started is in its own tree, unless it was started through a daemon
    (containers): then, as with one that somebody else runs, whoever listens at its port leads to it.
    """
    if not is_local_url(url):
        return ()
    parts = urlsplit(url)
    listeners = find_listeners(parts.port or (443 if parts.scheme == "https" else 80))
    if not listeners or any(_is_forwarder(pid) for pid in listeners):
        return None
    own = {process.pid for process in find_family(os.getpid())}
    return tuple(sorted({member for pid in listeners if pid not in own for member in list_group(pid)}))


def is_local_url(url: str) -> bool:
    """Tell whether an address is of this machine."""
    here = {"127.0.0.1", "::1"} | {
        one.address.partition("%")[0] for found in psutil.net_if_addrs().values() for one in found
    }
    try:
        found = socket.getaddrinfo(urlsplit(url).hostname or "", None)
    except OSError:
        return False
    return any(str(one[4][0]) in here for one in found)


def find_listeners(port: int) -> tuple[int, ...]:
    """Return the processes that listen at a port of this machine, as far as the system tells."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return ()
    own = (one for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port)
    return tuple(sorted({one.pid for one in own if one.pid is not None}))


def list_group(pid: int) -> Collection[int]:
    """Return a process and those of its group: a launcher and its workers, where only one of them listens.

    A script without job control has one group for all that it starts, this program included: it says nothing.
    """
    group = _group_of(pid)
    if group is None or group == os.getpgid(0):
        return (pid,)
    return {pid, *(one for one in psutil.pids() if _group_of(one) == group)}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_forwarder(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).name().startswith(_FORWARDERS))
    except psutil.Error:
        return True
