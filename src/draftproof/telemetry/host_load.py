"""How busy the client's host is, and with whose work: cumulative counters, and the use between two readings.

Linux tells waiting (PSI) and stolen time; elsewhere they are None. Time in interrupts is in nobody's account:
traffic of our own makes it.
"""

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import psutil

from draftproof.clock import Clock, monotonic_ns
from draftproof.records import AcceleratorUse, HostUse
from draftproof.telemetry.host import find_family
from draftproof.telemetry.nvml import NvmlReader

PRESSURE = Path("/proc/pressure/cpu")
_BUSY_GPU = 0.05
_GLANCE_S, _MOST_NAMED, _LEAST_CORES = 1.0, 3, 0.1


class HostCounters(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has counted since its start, in seconds; fields as in `HostUse`."""

    at_ns: int
    cores: int
    busy_s: float
    own_s: float | None
    steal_s: float | None
    pressure_s: float | None


class HostLoadReader:
    """Reads the counters of this host.

    Args:
        clock: source of the times.
        leader: the process whose tree is own work; this one.
        nvml: GPUs; None: those of this machine, if any.
    """

    def __init__(
        self, clock: Clock = monotonic_ns, *, leader: int | None = None, nvml: NvmlReader | None = None
    ) -> None:
        self._clock, self._leader = clock, os.getpid() if leader is None else leader
        self._nvml = nvml or NvmlReader()

    def read(self, attached: Collection[int] | None = ()) -> HostCounters:
        """Return the counters now.

        Args:
            attached: further processes whose trees are own work; None where such are not known, so that own
                work cannot be told.
        """
        times = psutil.cpu_times()
        return HostCounters(
            at_ns=self._clock(),
            cores=psutil.cpu_count(logical=True) or 1,
            busy_s=times.user + getattr(times, "nice", 0.0) + times.system,
            own_s=None if attached is None else sum_processor_s({self._leader, *attached}),
            steal_s=getattr(times, "steal", None),
            pressure_s=read_pressure(),
        )

    def read_accelerators(self) -> tuple[AcceleratorUse, ...]:
        """Return one sample of every GPU that works; one that waits runs at another clock."""
        return tuple(
            AcceleratorUse(
                index=index,
                samples=1,
                throttled=one.throttled,
                clock_mhz=one.clock_mhz,
                power_limit_w=one.power_limit_w,
                temperature_c=one.temperature_c,
            )
            for index, one in self._nvml.read_states().items()
            if one.busy_share is None or one.busy_share >= _BUSY_GPU
        )

    def name_busiest(self, attached: Collection[int] | None = ()) -> tuple[str, ...]:
        """Return the foreign programs that use the most cores now, in words; takes a second."""
        own = {one.pid for leader in {self._leader, *(attached or ())} for one in find_family(leader)}
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
    """Return what a host did between two readings.

    Own time that falls means that a process of ours was lost from sight: then it cannot be told.
    """
    own_s = _gain(before.own_s, after.own_s)
    return HostUse(
        span_s=(after.at_ns - before.at_ns) / 1e9,
        cores=after.cores,
        busy_s=after.busy_s - before.busy_s,
        own_s=own_s if own_s is not None and own_s >= 0 else None,
        steal_s=_gain(before.steal_s, after.steal_s),
        pressure_s=_gain(before.pressure_s, after.pressure_s),
    )


def sum_processor_s(
    leaders: Collection[int], find: Callable[[int], Collection[psutil.Process]] = find_family
) -> float:
    """Return the processor seconds of process trees, each process counted once.

    What has ended and was waited for is in its parent's account.
    """
    family = {process.pid: process for leader in leaders for process in find(leader)}
    total_s = 0.0
    for process in family.values():
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def read_pressure(path: Path = PRESSURE) -> float | None:
    """Return the seconds for which some thread has waited for a core since the start, None where not told.

    The first line is `some avg10=.. avg60=.. avg300=.. total=MICROSECONDS` (Linux, accounting/psi.rst).
    """
    try:
        line = path.read_text(encoding="ascii").partition("\n")[0]
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


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
