"""The clocks of a run: monotonic nanoseconds for every duration, and the wall clock for the calendar only.

No duration is ever a difference of wall-clock times. What happens to the wall clock, and whether the host
slept, is watched beside and recorded: a sleep is in no duration and yet the service went on.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

NS_PER_S, NS_PER_MS = 1_000_000_000, 1_000_000
# A kernel steers a clock by at most 500 ppm, and its own rate may be as wrong again.
MOST_STEERING = 1e-3
LEAST_STEP_NS = 50_000_000
LEAST_SLEEP_NS = 10_000_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# A reading is taken again where another program came between its parts.
_READS = 5


class Clock(Protocol):
    """A source of monotonic integer nanoseconds. Tests pass a clock they move by hand."""

    def __call__(self) -> int:
        """Return nanoseconds since an arbitrary origin; never goes back."""
        ...


class ClockReading(msgspec.Struct, frozen=True, kw_only=True):
    """All clocks of the host at one moment, in nanoseconds.

    `boottime_ns` goes on while the host sleeps, None where there is no such clock. `boot` names the start of
    the host from which `monotonic_ns` counts.
    """

    wall_ns: int
    monotonic_ns: int
    boottime_ns: int | None = None
    boot: str | None = None


class ClockChange(msgspec.Struct, frozen=True, kw_only=True):
    """What happened to the clocks between two readings: how far the wall clock was set, how long it slept.

    Both are 0 where nothing happened. `slept_ns` is None where no clock tells; a sleep is then a step.
    """

    wall_step_ns: int
    slept_ns: int | None


ReadClocks = Callable[[], ClockReading]


monotonic_ns: Clock = time.monotonic_ns  # itself: a client asks for it several times a chunk


def wall_anchor() -> tuple[int, int]:
    """Return (wall-clock ns since the epoch, monotonic ns), read back to back."""
    return time.time_ns(), time.monotonic_ns()


def read_clocks() -> ClockReading:
    """Return all clocks of the host, read as close together as it lets."""
    wide_ns, wall_ns, boottime_ns, before_ns = min(_read_once() for _ in range(_READS))
    return ClockReading(
        wall_ns=wall_ns,
        monotonic_ns=before_ns + wide_ns // 2,
        boottime_ns=boottime_ns,
        boot=_read_boot(),
    )


def compare_clocks(before: ClockReading, after: ClockReading) -> ClockChange:
    """Return what happened to the clocks between two readings of one boot. Pure.

    A difference that steering explains is none, so a clock that is disciplined stays unsuspected.
    """
    elapsed_ns = after.monotonic_ns - before.monotonic_ns
    slept_ns = None
    if before.boottime_ns is not None and after.boottime_ns is not None:
        slept_ns = after.boottime_ns - before.boottime_ns - elapsed_ns
        slept_ns = slept_ns if slept_ns >= LEAST_SLEEP_NS else 0
    step_ns = after.wall_ns - before.wall_ns - elapsed_ns - (slept_ns or 0)
    steered_ns = LEAST_STEP_NS + MOST_STEERING * elapsed_ns
    return ClockChange(wall_step_ns=step_ns if abs(step_ns) > steered_ns else 0, slept_ns=slept_ns)


def _read_once() -> tuple[int, int, int | None, int]:
    """Return (width of the reading, wall, boottime, monotonic before)."""
    before_ns = time.monotonic_ns()
    wall_ns = time.time_ns()
    boottime_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None
    return time.monotonic_ns() - before_ns, wall_ns, boottime_ns, before_ns


def _read_boot() -> str | None:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None
