"""Waking at absolute times, to the microsecond where the system can.

The timers of an event loop count in whole milliseconds, which at hundreds of requests a second is a good part
of every gap. Linux has timers that are files (timerfd) on the very clock that records are kept in: the loop
wakes when one can be read. Elsewhere, and under a clock that is not the system's, the loop's own timers do.
"""

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from draftproof.core.clock import NS_PER_S, Clock, monotonic_ns
from draftproof.measure.client.arrival import keep_awake

_CLOCK_MONOTONIC = 1
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1

WaitUntil = Callable[[int], Awaitable[None]]


class _TimerSpec(ctypes.Structure):
    """The C struct itimerspec: interval and time, each as seconds and nanoseconds."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


class _FileAlarm:
    """A timer that is a file."""

    def __init__(self, fd: int, libc: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._fd, self._libc, self._loop = fd, libc, loop
        self._rang = asyncio.Event()

    async def wait_until(self, due_ns: int) -> None:
        keep_awake(self._loop, due_ns)
        while monotonic_ns() < due_ns:
            self._rang.clear()
            spec = _TimerSpec(0, 0, *divmod(due_ns, NS_PER_S))
            if self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(spec), None) != 0:
                await sleep_until(due_ns, monotonic_ns)
                return
            await self._rang.wait()

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._rang.set()


@contextlib.contextmanager
def open_alarm(clock: Clock) -> Iterator[WaitUntil]:
    """Yield what waits until one time after the other, for one waiter on the running loop."""
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" and clock is monotonic_ns else None
    fd = libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS) if hasattr(libc, "timerfd_create") else -1
    if fd < 0:
        yield partial(sleep_until, clock=clock)
        return
    loop = asyncio.get_running_loop()
    alarm = _FileAlarm(fd, libc, loop)
    loop.add_reader(fd, alarm.ring)
    try:
        yield alarm.wait_until
    finally:
        keep_awake(loop, None)
        loop.remove_reader(fd)
        os.close(fd)


async def sleep_until(due_ns: int, clock: Clock) -> None:
    """Return when the clock has reached a time, at once where it has passed."""
    while (left_ns := due_ns - clock()) > 0:  # noqa: ASYNC110 - time is no event
        # Once more, since a loop's timer may end up to a millisecond early.
        await asyncio.sleep(left_ns / NS_PER_S)
