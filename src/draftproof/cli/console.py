"""What a person sees on a terminal while something goes on. Writes to standard error only.

Quiet when standard error is not a terminal, so that logs hold the outcome and not the way there.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from draftproof.qualify import Progress as ProgressSink


class ConsoleProgress:
    """A bar with the phase, the step and the time left."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def phase(self, text: str) -> None:
        """Begin a new bar."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._bars.console.print(text, style="bold")
        self._task = self._bars.add_task("", total=None)

    def advance(self, done: int, total: int, text: str) -> None:
        """Move the bar of this phase."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total, description=text)

    def download(self, step: str, done: int, total: int | None) -> None:
        """Show how far a fetch is; the form that the reference engine reports in."""
        if self._task is None:
            self.phase("Preparing the model")
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total, description=step)


class QuietProgress:
    """Says nothing, in both forms."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done: int, total: int, text: str) -> None:
        """Say nothing."""

    def download(self, step: str, done: int, total: int | None) -> None:
        """Say nothing."""


@contextmanager
def console_progress() -> Iterator[ConsoleProgress | QuietProgress]:
    """Yield a progress display for standard error, a quiet one where that is not a terminal."""
    if not sys.stderr.isatty():
        yield QuietProgress()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    # Turns last half a minute: the time left needs a memory of several of them.
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600) as bars:
        yield ConsoleProgress(bars)


def as_sink(progress: ConsoleProgress | QuietProgress) -> "ProgressSink":
    """Return the display as the qualification wants it."""
    return progress
