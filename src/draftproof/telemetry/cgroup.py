"""What this process's control group says: how long its threads waited for a core, and whether it has a quota.

Linux, cgroup-v2.rst (`cpu.pressure`, `cpu.max`) and cgroup-v1/cpu (`cpu.cfs_quota_us`). A group's own waiting
is not that of its neighbours in other containers; with a quota it waits for itself.
"""

from collections.abc import Iterator
from pathlib import Path

MOUNT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
HOST_PRESSURE = Path("/proc/pressure/cpu")
_UNLIMITED = ("max", "-1")


class CpuGroup:
    """The control group of this process.

    Args:
        mount: where control groups are mounted.
        membership: which groups this process is in.
        host: waiting on the whole host, where groups do not count their own.
    """

    def __init__(
        self, mount: Path = MOUNT, membership: Path = MEMBERSHIP, host: Path = HOST_PRESSURE
    ) -> None:
        self._folders = tuple(list_folders(mount, _read(membership) or ""))
        own = [folder / "cpu.pressure" for folder in self._folders]
        self._host, self._own = host, next((path for path in own if path.is_file()), None)
        self.has_quota = any(map(_has_quota, self._folders))

    def read_pressure(self, *, of_host: bool = False) -> float | None:
        """Return the seconds for which some thread has waited for a core since the start, None if not told.

        Args:
            of_host: of all groups; a quota is then no matter.
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
    told = _read(folder / "cpu.max") or _read(folder / "cpu.cfs_quota_us")
    return told is not None and told.split()[:1] not in ([], *([word] for word in _UNLIMITED))


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
