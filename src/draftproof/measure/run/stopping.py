"""What a signal means: the first asks the job to stop in good order, a second one ends it at once.

SIGINT is Ctrl-C, SIGTERM what a supervisor sends, SIGHUP a terminal that was closed. A shell may send SIGHUP
twice, so a second one of those changes nothing; and whoever had it ignored (nohup) wants the job to go on. A
closed terminal takes no more output: what is said after that goes nowhere, and stops no clean end.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from draftproof.measure.run.progress import Interrupted

Value = TypeVar("Value")
_ONCE = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a set event.

    A second SIGINT or SIGTERM has its usual effect, at once. Signals reach the main thread only: a job in
    another thread has an event that nobody sets.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    terminals = [number for number in (1, 2) if os.isatty(number)]
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)

    def let_go(numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        stop.set()
        let_go(_ONCE)

    def on_hang_up() -> None:
        _silence(terminals)
        on_signal()

    for number in _ONCE:
        loop.add_signal_handler(number, on_signal)
    for number in hang_up:
        loop.add_signal_handler(number, on_hang_up)
    try:
        yield stop
    finally:
        let_go((*_ONCE, *hang_up))


def _silence(descriptors: list[int]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in descriptors:
        os.dup2(nowhere, number)
    os.close(nowhere)


async def unless_stopped(work: Coroutine[Any, Any, Value], stop: asyncio.Event) -> Value:
    """Return what `work` returns, or cancel it as soon as `stop` is set.

    Raises Interrupted: it was cancelled.
    """
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (task, stopped):
            one.cancel()
        await asyncio.wait({task, stopped})
    if task.cancelled():
        raise Interrupted
    return task.result()
