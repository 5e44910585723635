"""The one clock of a run: monotonic nanoseconds of the client host, and one wall-clock anchor."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic integer nanoseconds. Tests pass a clock they move by hand."""

    def __call__(self) -> int:
        """Return nanoseconds since an arbitrary origin; never goes back."""
        ...


def monotonic_ns() -> int:
    """Return the host's monotonic clock in nanoseconds."""
    return time.monotonic_ns()


def wall_anchor() -> tuple[int, int]:
    """Return (wall-clock ns since the epoch, monotonic ns), read back to back."""
    return time.time_ns(), time.monotonic_ns()
