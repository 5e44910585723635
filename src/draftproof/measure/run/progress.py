"""How a long job tells a person where it is, and how a person stops it: the seam to a terminal."""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:  # a terminal need not wait for the statistics
    from draftproof.core.records import Analysis, Notice, Warmup
    from draftproof.measure.run.progress_model import PeriodView, ProgressModel


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a run that cannot end well: it ends, waits so long for a quiet host, or goes on."""

    wait_s: float | None = None
    keep_going: bool = False


class Interrupted(Exception):  # noqa: N818 - not an error: the user stopped the run
    """The run was stopped before its end, after `done` of `total` periods; `twice` were measured twice.

    `run` is None where the run had not begun to measure.
    """

    def __init__(self, run: Path | None = None, done: int = 0, total: int = 0, twice: int = 0) -> None:
        super().__init__(f"stopped after {done} of {total} periods")
        self.run, self.done, self.total, self.twice = run, done, total, twice


class Progress:
    """Takes news of a long job and says nothing; whoever shows them must not raise and must be quick."""

    def phase(self, text: str) -> None:
        """A new phase has begun."""

    def advance(self, done: int, total: int, text: str) -> None:
        """`done` of `total` steps of the phase are over; `text` says what goes on now."""

    def download(self, step: str, done: int, total: int | None) -> None:
        """A fetch is so far; the form that the reference engine reports in."""

    def watch(self, board: "ProgressModel") -> None:
        """Periods are measured from now on, until the next phase; the board may be read at any time."""

    def warmed_up(self, warmup: "Warmup") -> None:
        """An arm was warmed up at a level."""

    def period_ended(self, period: "PeriodView") -> None:
        """An arm's period of a block has ended."""

    def noticed(self, notice: "Notice") -> None:
        """The run has something to say of its own chances."""

    def analysed(self, analysis: "Analysis") -> None:
        """A load was analysed while the run went on."""


Value = TypeVar("Value")
_ONCE = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into a set event.

    SIGINT is Ctrl-C, SIGTERM what a supervisor sends, SIGHUP a terminal that was closed. A second SIGINT or
    SIGTERM has its usual effect, at once. A shell may send SIGHUP twice, so a second one of those changes
    nothing; and whoever had it ignored (nohup) wants the job to go on. A closed terminal takes no more
    output: what is said after that goes nowhere, and stops no clean end. Signals reach the main thread only:
    a job in another thread has an event that nobody sets.
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
