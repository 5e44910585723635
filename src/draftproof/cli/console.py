"""What a person sees while something goes on. Writes to standard error only.

On a terminal a bar, and while a run measures the live view. Where standard error is no terminal a run leaves
plain lines, one for each phase and each turn, so that a log holds the way there; other commands say nothing.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

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

from draftproof.cli.printable import make_printable

if TYPE_CHECKING:
    from draftproof.cli.live import LiveView
    from draftproof.core.records import Notice, Warmup
    from draftproof.measure.run.progress_model import Board, TurnView

STEP_LINE_S = 30.0


class ConsoleProgress:
    """A bar with the phase, the step and the time left; the live view instead while turns are measured."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._view: LiveView | None = None

    def phase(self, text: str) -> None:
        """Begin a new bar."""
        self.end_view()
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

    def watch(self, board: "Board") -> None:
        """Show the board instead of the bar until the next phase."""
        from draftproof.cli.live import LiveView  # noqa: PLC0415 - the qualification takes a second to import

        self.end_view()
        self._bars.stop()
        self._view = LiveView(board, self._bars.console)
        self._view.start()

    def warmed_up(self, warmup: "Warmup") -> None:
        """Say nothing: the view shows the state."""

    def turn_ended(self, turn: "TurnView") -> None:
        """Say nothing: the view shows the turn."""

    def noticed(self, notice: "Notice") -> None:
        """Print it above the view, where it stays."""
        from draftproof.cli.board_text import describe_notice  # noqa: PLC0415 - as above

        self._bars.console.print(describe_notice(notice), style="bold yellow", markup=False)

    def end_view(self) -> None:
        """Clear the live view, if one is shown, and bring the bar back."""
        if self._view is not None:
            self._view.stop()
            self._view = None
            self._bars.start()


class LineProgress:
    """Plain lines with the time of day, for a log: phases, steps of long ones, warm-ups and turns.

    Args:
        stream: takes the lines, without any control character.
        clock: seconds, to space the lines of a long phase.
        time_of_day: the time that a line begins with.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
    ) -> None:
        self._stream: TextIO | None = stream
        self._clock, self._time_of_day = clock, time_of_day
        self._last_s: float | None = None
        self._is_watching = False

    def phase(self, text: str) -> None:
        """Write that a phase has begun."""
        self._is_watching = False
        self._write(text)

    def advance(self, done: int, total: int, text: str) -> None:
        """Write a step where the last line is long ago; turns have lines of their own."""
        if not self._is_watching and self._last_s is not None and self._clock() - self._last_s >= STEP_LINE_S:
            self._write(f"{done} of {total}: {text}")

    def download(self, step: str, done: int, total: int | None) -> None:
        """Write how far a fetch is, as a step."""
        if self._last_s is None:
            self._write("Preparing the model")
        self.advance(done, total or 0, step)

    def watch(self, board: "Board") -> None:
        """Turns follow."""
        del board
        self._is_watching = True

    def warmed_up(self, warmup: "Warmup") -> None:
        """Write what a warm-up came to."""
        from draftproof.cli.board_text import describe_warmup  # noqa: PLC0415 - as above

        self._write(describe_warmup(warmup))

    def turn_ended(self, turn: "TurnView") -> None:
        """Write what a turn showed."""
        from draftproof.cli.board_text import describe_turn  # noqa: PLC0415 - as above

        self._write(describe_turn(turn))

    def noticed(self, notice: "Notice") -> None:
        """Write it."""
        from draftproof.cli.board_text import describe_notice  # noqa: PLC0415 - as above

        self._write(describe_notice(notice))

    def _write(self, text: str) -> None:
        """A reader that has gone, or a full disk behind a log, must not end a run."""
        self._last_s = self._clock()
        if self._stream is None:
            return
        try:
            self._stream.write(f"{self._time_of_day()} {make_printable(text)}\n")
            self._stream.flush()
        except OSError:
            self._stream = None


class QuietProgress:
    """Says nothing, in both forms."""

    def phase(self, text: str) -> None:
        """Say nothing."""

    def advance(self, done: int, total: int, text: str) -> None:
        """Say nothing."""

    def download(self, step: str, done: int, total: int | None) -> None:
        """Say nothing."""

    def watch(self, board: "Board") -> None:
        """Show nothing."""

    def warmed_up(self, warmup: "Warmup") -> None:
        """Say nothing."""

    def turn_ended(self, turn: "TurnView") -> None:
        """Say nothing."""

    def noticed(self, notice: "Notice") -> None:
        """Say nothing."""


Display = ConsoleProgress | LineProgress | QuietProgress


@contextmanager
def console_progress(*, lines: bool = False, quiet: bool = False) -> Iterator[Display]:
    """Yield a progress display for standard error.

    Args:
        lines: write plain lines where that is no terminal, else nothing.
        quiet: write nothing anywhere.
    """
    if quiet or not is_terminal():
        yield LineProgress(sys.stderr) if lines and not quiet else QuietProgress()
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
        display = ConsoleProgress(bars)
        try:
            yield display
        finally:
            display.end_view()


def is_terminal() -> bool:
    """Tell whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}
