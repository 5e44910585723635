"""What every command prints with: results to standard output, progress to standard error.

What a package or a service says must not steer a terminal, and a character that an encoding lacks must not
end a finished run: text gets a replacement character, JSON an escape, so that it stays JSON.

On a terminal progress is a bar, and while a run measures the live view. Where standard error is no terminal a
run leaves plain lines, one for each phase and each period; other commands say nothing.
"""

import codecs
import importlib
import io
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TextIO

import msgspec
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from draftproof.core.errors import StoreError, UsageError
from draftproof.measure.run.progress import Interrupted, Progress

if TYPE_CHECKING:
    from draftproof.cli.live import LiveView
    from draftproof.core.records import Analysis, Notice, Warmup
    from draftproof.measure.run.progress_model import PeriodView, ProgressModel

INTERRUPTED_CODE = 130
STEP_LINE_S = 30.0

RunArgument = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
PlanArgument = Annotated[Path, typer.Argument(help="A plan file (TOML).", show_default=False)]
FullOption = Annotated[bool, typer.Option("--full", help="Print every table, not the answer alone.")]
QuietOption = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No live view on a terminal, and no lines for a log elsewhere."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]

# C0 and C1 controls but for line ends and tabs, and the marks that turn the direction of writing.
_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


def make_printable(text: str) -> str:
    """Return a text with every character that steers a terminal written as an escape."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def replace_unencodable() -> None:
    """Let standard output and error write a replacement for each character that their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_text(text: str) -> None:
    """Write a text and a line end to standard output."""
    _print(make_printable(text))


def print_either(value: object, render: Callable[[], str], *, as_json: bool) -> None:
    """Write a value as JSON for a script, else as the text that a person reads."""
    if as_json:
        print_json(value)
    else:
        print_text(render())


def print_json(value: object) -> None:
    """Write a value as JSON to standard output; JSON is UTF-8, so another encoding gets ASCII escapes."""
    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str)).decode()
    escaped = _STEERING if _is_utf8(sys.stdout) else _NOT_ASCII
    _print(escaped.sub(_escape, text))


def _is_utf8(stream: TextIO | None) -> bool:
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name == "utf-8"


def _escape(found: re.Match[str]) -> str:
    """JSON names a character by its UTF-16 units."""
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _print(text: str) -> None:
    """A reader that has gone must not change what a command exits with."""
    if sys.stdout is None:  # closed by who started the command
        return
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ConsoleProgress(Progress):
    """A bar with the phase, the step and the time left; the live view instead while periods are measured."""

    def __init__(self, bars: Bars) -> None:
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

    def watch(self, board: "ProgressModel") -> None:
        """Show the board instead of the bar until the next phase."""
        from draftproof.cli.live import LiveView  # noqa: PLC0415 - the qualification takes a second to import

        self.end_view()
        self._bars.stop()
        self._view = LiveView(board, self._bars.console)
        self._view.start()

    def noticed(self, notice: "Notice") -> None:
        """Print it above the view, where it stays."""
        from draftproof.cli.live import describe_notice  # noqa: PLC0415 - as above

        self._bars.console.print(describe_notice(notice), style="bold yellow", markup=False)

    def analysed(self, analysis: "Analysis") -> None:
        """Print it above the view, where it stays."""
        from draftproof.cli.live import describe_analysis  # noqa: PLC0415 - as above

        self._bars.console.print(describe_analysis(analysis), markup=False)

    def end_view(self) -> None:
        """Clear the live view, if one is shown, and bring the bar back."""
        if self._view is not None:
            self._view.stop()
            self._view = None
            self._bars.start()


class LineProgress(Progress):
    """Plain lines with the time of day, for a log: phases, steps of long ones, warm-ups and periods.

    The `stream` gets no control character; the `clock`, in s, spaces the lines of a long phase.
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
        """Write a step where the last line is long ago; periods have lines of their own."""
        if not self._is_watching and self._last_s is not None and self._clock() - self._last_s >= STEP_LINE_S:
            self._write(f"{done} of {total}: {text}")

    def download(self, step: str, done: int, total: int | None) -> None:
        """Write how far a fetch is, as a step."""
        if self._last_s is None:
            self._write("Preparing the model")
        self.advance(done, total or 0, step)

    def watch(self, board: "ProgressModel") -> None:
        """Periods follow."""
        del board
        self._is_watching = True

    def warmed_up(self, warmup: "Warmup") -> None:
        """Write what a warm-up came to."""
        from draftproof.cli.live import describe_warmup  # noqa: PLC0415 - as above

        self._write(describe_warmup(warmup))

    def period_ended(self, period: "PeriodView") -> None:
        """Write what a period showed."""
        from draftproof.cli.live import describe_period  # noqa: PLC0415 - as above

        self._write(describe_period(period))

    def noticed(self, notice: "Notice") -> None:
        """Write it."""
        from draftproof.cli.live import describe_notice  # noqa: PLC0415 - as above

        self._write(describe_notice(notice))

    def analysed(self, analysis: "Analysis") -> None:
        """Write it."""
        from draftproof.cli.live import describe_analysis  # noqa: PLC0415 - as above

        self._write(describe_analysis(analysis))

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


@contextmanager
def console_progress(*, lines: bool = False, quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress display for standard error.

    `lines`: plain lines where that is no terminal, else nothing; `quiet`: nothing anywhere.
    """
    if quiet or not is_terminal():
        yield LineProgress(sys.stderr) if lines and not quiet else Progress()
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
    # Periods last half a minute: the time left needs a memory of several of them.
    with Bars(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=3600) as bars:
        display = ConsoleProgress(bars)
        try:
            yield display
        finally:
            display.end_view()


def is_terminal() -> bool:
    """Tell whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def fresh_directory(name: str) -> Path:
    """Return a directory name that is free for a run: `name`, else `name-2`, `name-3` and so on."""
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, candidates) if _is_free(path))


def _is_free(path: Path) -> bool:
    """Tell whether there is nothing, or what is left of a run that measured nothing and goes on no more."""
    from draftproof.store import RunDirectory  # noqa: PLC0415

    if not path.exists():
        return True
    try:
        with RunDirectory.prepare(path):
            return True
    except StoreError:
        return False


def load_reference(module: str) -> ModuleType:
    """Import a module of the reference engine. Raises UsageError: the extra `engine` is not installed."""
    try:
        return importlib.import_module(f"draftproof.reference.{module}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the reference engine needs the package {error.name}.",
            fix='install it with: pip install "draftproof[engine]"',
        ) from error


def model_resolver(progress: Progress) -> Callable[[str], Path]:
    """Return what turns a plan's target into a folder of files, fetching the demo's model at first use."""

    def resolve(name: str) -> Path:
        folder: Path = load_reference("weights.fetch").resolve_model(name, progress.download)
        return folder

    return resolve


@contextmanager
def interruptible(out: Path | None = None, *, lines: bool = False, quiet: bool = False) -> Iterator[Progress]:
    """Yield a progress display; a job stopped by the user says what is kept in `out` and exits with 130."""
    try:
        with console_progress(lines=lines, quiet=quiet) as progress:
            yield progress
    except Interrupted as stopped:
        sys.stderr.write(_describe_stop(stopped, out))
        raise typer.Exit(INTERRUPTED_CODE) from stopped


def _describe_stop(stopped: Interrupted, out: Path | None) -> str:
    if stopped.run is None:
        return "Stopped before this call measured anything.\n"
    from draftproof.judge.observe.attempts import PeriodCount  # noqa: PLC0415 - loads statistics

    count = PeriodCount(stopped.done, stopped.total, stopped.twice)
    return (
        f"Stopped after {count}; everything measured is in {out}.\n"
        f"Report of what is there: draftproof report {out}\n"
        f"Go on:                   draftproof run --resume {out}\n"
    )
