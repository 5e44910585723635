"""NVIDIA GPUs by NVML: memory, how busy they are, power and energy. Absent cleanly where there is none.

Names: nvidia-ml-py 13, module `pynvml`; NVML API reference, "Device Queries". Energy is counted in
millijoules since the driver was loaded (Volta and later), power in milliwatts.

Energy of the processors by RAPL, where the kernel lets us read it.

Linux, Documentation/power/powercap/powercap.rst: each zone is a folder with `name`, `energy_uj`, which counts
microjoules and begins again behind `max_energy_range_uj`. Since 2020 most systems let only root read it.
"""

import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from draftproof.core.records import AcceleratorUse
from draftproof.judge.metrics import host_use as host
from draftproof.services.telemetry.scrape import name_series

# Clock event reasons HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown: heat or supply.
# A software power cap is what a board at full load does, and no event.
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80
_BUSY_SHARE = 0.05


class NvmlReader:
    """Reads every GPU of this machine.

    `module`: `pynvml` or what stands for it; None loads it, and no GPU, driver or library reads nothing.
    """

    def __init__(self, module: Any = None) -> None:
        self._nvml = module if module is not None else _load()
        self._devices = self._open() if self._nvml is not None else {}

    def read(self) -> dict[str, float]:
        """Return series -> value of every GPU; what a GPU does not tell is left out."""
        found: dict[str, float] = {}
        for index, device in self._devices.items():
            for name, ask in self._questions(device).items():
                value = self._ask(ask)
                if value is not None:
                    found[name_series(name, {"gpu": str(index)})] = value
        return found

    def read_uses(self) -> tuple[AcceleratorUse, ...]:
        """Return one sample of every GPU that works; one that waits runs at another clock."""
        nvml, found = self._nvml, []
        for index, device in self._devices.items():
            busy_share = self._ask(partial(self._read_share, device))
            if busy_share is not None and busy_share < _BUSY_SHARE:
                continue
            reasons = self._ask(partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, device))
            limit_mw = self._ask(partial(nvml.nvmlDeviceGetEnforcedPowerLimit, device))
            heat = partial(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU)
            use = AcceleratorUse(
                index=index,
                samples=1,
                throttled=None if reasons is None else int(bool(int(reasons) & _SLOWED)),
                clock_mhz=self._ask(partial(nvml.nvmlDeviceGetClockInfo, device, nvml.NVML_CLOCK_SM)),
                power_limit_w=None if limit_mw is None else limit_mw / 1e3,
                temperature_c=self._ask(heat),
            )
            found.append(use)
        return tuple(found)

    def _read_share(self, device: Any) -> float:
        return float(self._nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100)

    def describe(self) -> dict[str, str]:
        """Return the kinds of GPU, the driver and its CUDA version, as far as they are known."""
        if not self._devices:
            return {}
        nvml = self._nvml
        names = {self._ask_text(partial(nvml.nvmlDeviceGetName, one)) for one in self._devices.values()}
        cuda = self._ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        facts = {
            "accelerator": ", ".join(sorted(name for name in names if name)),
            "driver": self._ask_text(nvml.nvmlSystemGetDriverVersion),
            # NVML counts 12.4 as 12040.
            "cuda_driver": None if cuda is None else f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}",
        }
        return {key: value for key, value in facts.items() if value}

    def close(self) -> None:
        """Let go of the library; closing twice is harmless."""
        if self._devices:
            self._devices = {}
            self._ask(self._nvml.nvmlShutdown)

    def _open(self) -> dict[int, Any]:
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            return {index: self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)}
        except self._nvml.NVMLError:
            return {}

    def _questions(self, device: Any) -> dict[str, Callable[[], float]]:
        nvml = self._nvml
        return {
            host.GPU_MEMORY_BYTES: lambda: nvml.nvmlDeviceGetMemoryInfo(device).used,
            host.GPU_BUSY_SHARE: lambda: self._read_share(device),
            host.GPU_POWER_WATTS: lambda: nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            host.GPU_ENERGY_JOULES: lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3,
        }

    def _ask(self, question: Callable[[], Any]) -> float | None:
        try:
            value = question()
        except self._nvml.NVMLError:
            return None
        return None if value is None else float(value)

    def _ask_text(self, question: Callable[[], Any]) -> str | None:
        """Return a name; earlier releases of the library give bytes."""
        try:
            value = question()
        except self._nvml.NVMLError:
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _load() -> Any:
    """Return the library's module, None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


POWERCAP = Path("/sys/class/powercap")


class Zone(msgspec.Struct, frozen=True):
    """One zone: its folder, its name and the highest value of its counter in microjoules."""

    path: Path
    name: str
    range_uj: int


def find_zones(folder: Path = POWERCAP) -> tuple[Zone, ...]:
    """Return the zones that together are the processors and their memory, each counted once.

    A package includes its cores and uncore; memory (dram) is beside it. `psys` includes packages, and the
    `intel-rapl-mmio` zones are the packages once more.
    """
    zones = []
    for path in sorted(folder.glob("intel-rapl:*")):
        name, limit = _read_text(path / "name"), _read_count(path / "max_energy_range_uj")
        wanted = name is not None and (name.startswith("package") or name == "dram")
        if wanted and limit is not None and _read_count(path / "energy_uj") is not None:
            zones.append(Zone(path, name or "", limit))
    return tuple(zones)


def unwrap(before_uj: int, now_uj: int, range_uj: int) -> int:
    """Return the microjoules between two readings, of which at most one lies behind a wraparound."""
    return now_uj - before_uj if now_uj >= before_uj else now_uj + range_uj - before_uj


class RaplCounter:
    """Joules per zone since it was made, counted over wraparounds; read it at least once a minute."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._zones = find_zones(folder)
        self._last = {zone: _read_count(zone.path / "energy_uj") for zone in self._zones}
        self._total_uj = dict.fromkeys(self._zones, 0)

    def read(self) -> dict[str, float]:
        """Return folder name of the zone -> joules; a zone that cannot be read any more is left out."""
        found = {}
        for zone in self._zones:
            before, now = self._last[zone], _read_count(zone.path / "energy_uj")
            if before is None or now is None:
                self._last[zone] = None
                continue
            self._total_uj[zone] += unwrap(before, now, zone.range_uj)
            self._last[zone] = now
            found[zone.path.name] = self._total_uj[zone] / 1e6
        return found


def _read_count(path: Path) -> int | None:
    text = _read_text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
