"""What Ctrl-C means: the first one asks the job to stop in good order, a second one ends it at once."""

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from draftproof.qualify.progress import Interrupted

Value = TypeVar("Value")
_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Turn the first SIGINT or SIGTERM into a set event; a second one has its usual effect, at once.

    Signals reach the main thread only: a job in another thread has an event that nobody sets.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def let_go() -> None:
        for number in _NUMBERS:
            loop.remove_signal_handler(number)

    def on_signal() -> None:
        stop.set()
        let_go()

    for number in _NUMBERS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        let_go()


async def unless_stopped(work: Coroutine[Any, Any, Value], stop: asyncio.Event) -> Value:
    """Return what `work` returns, or cancel it as soon as `stop` is set.

    Raises:
        Interrupted: it was cancelled.
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
