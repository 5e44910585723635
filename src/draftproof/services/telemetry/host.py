"""The machine a launched arm runs on: memory and processor time of its processes, GPUs, energy.

Reads this machine only; of a service on another one its DCGM exporter can be named among the arm's
`metrics_urls`. What cannot be read is left out. GPUs and energy are those of the whole machine.
"""

import contextlib
import platform
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from draftproof.judge.metrics import host_series as host
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
