"""Energy of the processors by RAPL, where the kernel lets us read it.

Linux, Documentation/power/powercap/powercap.rst: each zone is a folder with `name`, `energy_uj`, which counts
microjoules and begins again behind `max_energy_range_uj`. Since 2020 most systems let only root read it.
"""

from pathlib import Path

import msgspec

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
