"""The machine a launched arm runs on: memory and processor time of its processes, GPUs, energy.

Reads this machine only; of a service on another one its DCGM exporter can be named among the arm's
`metrics_urls`. What cannot be read is left out. GPUs and energy are those of the whole machine.

How busy the client's host is, and with whose work: cumulative counters, and the use between two readings, of
the processors on which own processes may run. Linux tells waiting and stolen time; elsewhere they are None.
Time in interrupts is in nobody's account: our own traffic makes it.
"""

import contextlib
import os
import platform
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.records import AcceleratorUse, HostUse
from draftproof.judge.metrics import host_use as host
from draftproof.judge.metrics.host_use import CPU_SECONDS
from draftproof.services.telemetry.devices import NvmlReader, RaplCounter
from draftproof.services.telemetry.scrape import name_series


class HostReader:
    """Reads the machine for one arm after the other; GPUs and processors' energy if there are any."""

    def __init__(self, nvml: NvmlReader | None = None, rapl: RaplCounter | None = None) -> None:
        self._nvml = nvml or NvmlReader()
        self._rapl = rapl or RaplCounter()
        # A reading that was given up may still be under way in its thread.
        self._one_at_a_time = threading.Lock()

    def read(self, family: Iterable[Any]) -> dict[str, float]:
        """Return series -> value of an arm's processes and of the machine."""
        with self._one_at_a_time:
            zones = self._rapl.read()
            energy = {name_series(host.CPU_ENERGY_JOULES, {"zone": zone}): j for zone, j in zones.items()}
            return read_family(family) | self._nvml.read() | energy

    def close(self) -> None:
        """Let go of the GPUs' library."""
        self._nvml.close()


def find_family(*leaders: int | None) -> tuple[psutil.Process, ...]:
    """Return processes and all they have started, each once; what is gone or None is left out."""
    found: dict[int, psutil.Process] = {}
    for leader in leaders:
        with contextlib.suppress(psutil.Error):
            if leader is not None:
                process = psutil.Process(leader)
                found |= {one.pid: one for one in (process, *process.children(recursive=True))}
    return tuple(found.values())


def read_family(family: Iterable[Any]) -> dict[str, float]:
    """Return resident memory and processor seconds of processes; pages that several share count in each.

    The time of children that have ended is in their parents' `cpu_times().children_*`, so it is not lost.
    """
    memory, seconds = [], []
    for process in family:
        with contextlib.suppress(psutil.Error):
            times, rss = process.cpu_times(), process.memory_info().rss
            memory.append(float(rss))
            seconds.append(times.user + times.system + times.children_user + times.children_system)
    return {host.RESIDENT_BYTES: sum(memory), host.CPU_SECONDS: float(sum(seconds))} if memory else {}


def describe_platform(module: Any = None) -> dict[str, str]:
    """Return what this machine computes with: its GPUs and their driver, without any its processor."""
    reader = NvmlReader(module)
    try:
        return reader.describe() or {"cpu": name_cpu() or platform.machine()}
    finally:
        reader.close()


def name_cpu() -> str | None:
    """Return the processor's name, None where the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


MOUNT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
HOST_PRESSURE = Path("/proc/pressure/cpu")
_UNLIMITED = ("max", "-1")


class CpuGroup:
    """The control group of this process: how long its threads waited for a core, and whether it has a quota.

    Linux, cgroup-v2.rst (`cpu.pressure`, `cpu.max`) and cgroup-v1/cpu (`cpu.cfs_quota_us`). A group's own
    waiting is not that of its neighbours in other containers; with a quota it waits for itself. `mount`:
    where control groups are mounted. `membership`: which groups this process is in. `host`: waiting on the
    whole host, where groups do not count their own.
    """

    def __init__(
        self, mount: Path = MOUNT, membership: Path = MEMBERSHIP, host: Path = HOST_PRESSURE
    ) -> None:
        self._folders = tuple(list_folders(mount, _read(membership) or ""))
        own = [folder / "cpu.pressure" for folder in self._folders]
        self._host, self._own = host, next((path for path in own if path.is_file()), None)
        self.has_quota = any(map(_has_quota, self._folders))

    def read_pressure(self, *, of_host: bool = False) -> float | None:
        """Return the seconds for which some thread has waited for a core since the start, None if not known.

        `of_host`: of all groups; a quota is then no matter.
        """
        if of_host or (self._own is None and not self.has_quota):
            return parse_pressure(_read(self._host))
        return None if self._own is None or self.has_quota else parse_pressure(_read(self._own))


def list_folders(mount: Path, membership: str) -> Iterator[Path]:
    """Yield the folders of this process's group, each before the one above it.

    A line of the membership is `NUMBER:CONTROLLERS:PATH`; version 2 has neither number nor controllers.
    """
    for line in membership.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / controllers if controllers else mount
        own = top / path.strip().lstrip("/")
        while own != top.parent:
            yield own
            own = own.parent


def parse_pressure(text: str | None) -> float | None:
    """Return the seconds of the line `some avg10=.. avg60=.. avg300=.. total=MICROSECONDS`, see psi.rst."""
    first, _, total = (text or "").partition("\n")[0].rpartition("total=")
    return int(total) / 1e6 if first.startswith("some") and total.strip().isdecimal() else None


def _has_quota(folder: Path) -> bool:
    quota = _read(folder / "cpu.max") or _read(folder / "cpu.cfs_quota_us")
    return quota is not None and quota.split()[:1] not in ([], *([word] for word in _UNLIMITED))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


_GLANCE_S, _MOST_NAMED, _LEAST_CORES = 1.0, 3, 0.1


class HostCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has counted since its start, in seconds; other fields as in `HostUse`.

    `busy_s`, `steal_s`: of each processor. `allowed`: those on which own processes may run; None: all.
    """

    at_ns: int
    busy_s: tuple[float, ...]
    steal_s: tuple[float, ...] | None
    own_s: float | None
    pressure_s: float | None
    allowed: frozenset[int] | None = None


class HostLoadReader:
    """Reads the counters of this host.

    `clock`: source of the times. `leader`: the process whose tree is own work; this one. `nvml`: GPUs; None:
    those of this machine, if any. `group`: the control group of this process, which says how long it waited.
    """

    def __init__(
        self,
        clock: Clock = monotonic_ns,
        *,
        leader: int | None = None,
        nvml: NvmlReader | None = None,
        group: CpuGroup | None = None,
    ) -> None:
        self._clock, self._leader = clock, os.getpid() if leader is None else leader
        self._nvml, self._group = nvml or NvmlReader(), group or CpuGroup()

    def read(self, attached: Collection[int] | None = ()) -> HostCounters:
        """Return the counters now.

        `attached`: further processes whose trees are own work; None where such are not known, so that own
        work is not known.
        """
        family = find_family(self._leader, *(attached or ()))
        times = psutil.cpu_times(percpu=True)
        is_known = all(hasattr(one, "steal") for one in times)
        return HostCounters(
            at_ns=self._clock(),
            busy_s=tuple(one.user + getattr(one, "nice", 0.0) + one.system for one in times),
            steal_s=tuple(one.steal for one in times) if is_known else None,
            own_s=None if attached is None else read_family(family).get(CPU_SECONDS, 0.0),
            pressure_s=self._group.read_pressure(of_host=attached is None or bool(attached)),
            allowed=find_allowed(family),
        )

    def read_accelerators(self) -> tuple[AcceleratorUse, ...]:
        """Return one sample of every GPU that works."""
        return self._nvml.read_uses()

    def name_busiest(self, attached: Collection[int] | None = ()) -> tuple[str, ...]:
        """Return the foreign programs that use the most cores now, in words; takes a second."""
        own = {one.pid for one in find_family(self._leader, *(attached or ()))}
        before, began_ns = _list_processor_s(own), self._clock()
        time.sleep(_GLANCE_S)
        span_s = max((self._clock() - began_ns) / 1e9, _GLANCE_S)
        used = [
            ((seconds - before[key]) / span_s, *key)
            for key, seconds in _list_processor_s(own).items()
            if key in before
        ]
        return tuple(
            f"{name}, pid {pid}: {cores:.1f} cores"
            for cores, name, pid in sorted(used, reverse=True)[:_MOST_NAMED]
            if cores >= _LEAST_CORES
        )

    def close(self) -> None:
        """Let go of the GPUs' library."""
        self._nvml.close()


def subtract(before: HostCounters, after: HostCounters) -> HostUse:
    """Return what a host did between two readings, on the processors that were allowed at either.

    Own time that falls means that a process of ours was lost from sight: then it is not known.
    """
    own_s = _gain(before.own_s, after.own_s)
    own_s = own_s if own_s is not None and own_s >= 0 else None
    chosen = _choose_processors(before, after)
    stolen_s = None
    if before.steal_s is not None and after.steal_s is not None:
        stolen_s = sum(after.steal_s[index] - before.steal_s[index] for index in chosen)
    return HostUse(
        span_s=(after.at_ns - before.at_ns) / 1e9,
        cores=len(chosen),
        busy_s=sum(after.busy_s[index] - before.busy_s[index] for index in chosen),
        own_s=own_s,
        steal_s=stolen_s,
        pressure_s=_gain(before.pressure_s, after.pressure_s),
    )


def _choose_processors(before: HostCounters, after: HostCounters) -> Collection[int]:
    """Return the processors that were allowed at either reading.

    All of them where that is not known, and where the list has others than the numbers say: some are switched
    off, or a container sees its own alone.
    """
    every = range(min(len(before.busy_s), len(after.busy_s)))
    if before.allowed is None or after.allowed is None:
        return every
    allowed = before.allowed | after.allowed
    return allowed if allowed <= set(every) else every


def find_allowed(family: Collection[psutil.Process]) -> frozenset[int] | None:
    """Return the processors on which any of some processes may run, None where the system does not tell."""
    allowed = set[int]()
    for process in family:
        with contextlib.suppress(psutil.Error, AttributeError):
            allowed.update(process.cpu_affinity())
    return frozenset(allowed) or None


def _list_processor_s(own: Collection[int]) -> dict[tuple[str, int], float]:
    """Return the processor seconds of every process that is not our own, by name and number."""
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        times = process.info["cpu_times"]
        if process.pid not in own and times is not None:
            found[process.info["name"] or "?", process.pid] = float(times.user + times.system)
    return found


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before
