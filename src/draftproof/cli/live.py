"""The live view of a run on a terminal, and a run in progress as the lines of a log.

A thread draws the board twice a second, off the loop that measures, since a terminal may take its time.
Nothing is drawn while nothing has changed. The lines are laid out by hand: a table of the terminal library
takes ten times as long, and while it is drawn no arrival is seen.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from draftproof.core.records import Analysis, Notice, Warmup
from draftproof.judge.observe.attempts import describe_twice
from draftproof.measure.run.progress_model import (
    ArmView,
    PeriodView,
    ProgressModel,
    ProgressView,
    format_duration,
)
from draftproof.tell.report.words import STATUSES

INTERVAL_S = 0.5
MISSING = "–"
Span = tuple[str, str]  # text, style
Line = tuple[Span, ...]
_STYLES = {
    "measuring": "bold cyan",
    "warming up": "yellow",
    "starting": "yellow",
    "ended": "green",
    "waiting": "dim",
}


class _Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its label, its text, its place in the order in which columns give way, and its style."""

    label: str
    write: Callable[[ArmView], str]
    gives_way: int = 0
    left: bool = False
    style: Callable[[ArmView], str] = lambda _: ""


def format_ms(value_ns: float | None) -> str:
    """Write nanoseconds as milliseconds with three significant digits, without the unit."""
    if value_ns is None:
        return MISSING
    value_ms = value_ns / 1e6
    return f"{value_ms:,.{0 if value_ms >= 100 else 1 if value_ms >= 10 else 2}f}"


def format_share(share: float | None) -> str:
    """Write a share in whole per cent, never 0 or 100 where it is not exactly that."""
    if share is None:
        return MISSING
    percent = round(share * 100)
    return f"{percent if share in (0, 1) else min(max(percent, 1), 99)} %"


def format_clock(seconds: float) -> str:
    """Write elapsed time as minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def format_failures(failures: dict[str, int]) -> str:
    """Write failures by outcome, e.g. "2 timeout, 1 cut"."""
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(failures.items()))


_COLUMNS = (
    _Column(label="Arm", write=lambda one: one.arm, left=True, gives_way=-1),
    _Column(
        label="State",
        write=lambda one: one.state,
        left=True,
        gives_way=4,
        style=lambda one: _STYLES[one.state],
    ),
    _Column(label="Done", write=lambda one: f"{one.done}/{one.planned}"),
    _Column(
        label="Failed",
        write=lambda one: str(sum(one.failures.values())),
        gives_way=3,
        style=lambda one: "bold red" if one.failures else "",
    ),
    _Column(label="On time", write=lambda one: format_share(one.on_time_share), gives_way=5),
    _Column(label="ms/token", write=lambda one: format_ms(one.tpot_ns), gives_way=1),
    _Column(label="First ms", write=lambda one: format_ms(one.ttft_ns), gives_way=6),
)


def render_progress(view: ProgressView, width: int) -> list[Line]:
    """Return the lines of the live view; none is wider than `width` characters."""
    lines = [
        *_render_table(view.arms, width),
        (("", ""),),
        *_wrap([(text, "") for text in _describe_run(view)], width),
        *_wrap([(text, "dim") for text in _describe_client(view.last)], width),
    ]
    for arm in view.arms:
        if arm.failures:
            lines += _wrap([(f"{arm.arm}: {format_failures(arm.failures)}", "red")], width)
    if view.last is not None and view.last.client_faults:
        parts = (f"Times of the last period ({view.last.arm}) do not count", *view.last.client_faults)
        lines += _wrap([(part, "bold yellow") for part in parts], width)
    if view.is_stopping:
        lines += _wrap([("Stopping: the records of what is in flight are kept.", "bold yellow")], width)
    return lines


def describe_period(period: PeriodView) -> str:
    """Return what an ended period showed as one line of a log."""
    parts = []
    if period.requests is not None:
        parts.append(f"{period.requests} request{'' if period.requests == 1 else 's'}")
    if period.failures is not None:
        failed = sum(period.failures.values())
        parts.append(f"{failed} failed" + (f" ({format_failures(period.failures)})" if failed else ""))
    if period.tpot_ns is not None:
        parts.append(f"{format_ms(period.tpot_ns)} ms per token")
    if period.on_time_share is not None:
        parts.append(f"on time {format_share(period.on_time_share)}")
    if period.client_faults:
        parts.append(f"times do not count ({'; '.join(period.client_faults)})")
    if not period.completed:
        parts.append("not complete")
    elif period.left_s is not None and period.number < period.periods:
        parts.append(f"about {format_duration(period.left_s)} left")
    place = f"{period.number}/{period.periods}{describe_twice(period.twice)}"
    return f"period {place} {period.load} {period.arm}: {', '.join(parts)}"


def describe_warmup(warmup: Warmup) -> str:
    """Return what a warm-up came to as one line of a log."""
    seconds = (warmup.ended_ns - warmup.started_ns) / 1e9
    change = "" if warmup.change is None else f", last change {warmup.change:.0%}"
    standing = "stable" if warmup.stable else "NOT STABLE"
    return (
        f"warm-up {warmup.load} {warmup.arm}: {warmup.requests} requests in {seconds:.1f} s, "
        f"{standing}{change}"
    )


def describe_notice(notice: Notice) -> str:
    """Return what a run says of its own chances: what is wrong, what becomes of it, what helps."""
    over = " The run cannot end well and ends here." if notice.severity == "cannot_end_well" else ""
    return f"{notice.text}{over} What helps: {notice.remedy}."


def describe_analysis(analysis: Analysis) -> str:
    """Return what an interim analysis of a load found, and what becomes of the load."""
    counts = Counter(analysis.statuses)
    found = ", ".join(f"{count} {STATUSES[status].adjective}" for status, count in counts.items())
    ends = {
        "settled": "It ends here: every cell is settled.",
        "futile": "It ends here: the rest of its blocks would hardly settle the others.",
        "budget": "It ends here: the plan's minutes are over.",
        None: "It goes on.",
    }
    where = f"Load {analysis.load} after {analysis.blocks} of {analysis.planned} blocks"
    return f"{where}: {found}. {ends[analysis.ended]}"


def _describe_run(view: ProgressView) -> list[str]:
    level = f"period {view.period} of {view.periods}{describe_twice(view.twice)}"
    level += f", load {view.load}" if view.load else ""
    left = f"about {format_duration(view.left_s)} left" if view.left_s is not None else "time left: not known"
    return [level.capitalize(), f"{format_clock(view.elapsed_s)} elapsed", left]


def _describe_client(last: PeriodView | None) -> list[str]:
    if last is None:
        return []
    return [
        f"Client in the last period: lag {format_ms(last.lag_max_ns)} ms at most",
        f"{format_share(last.client_cpu_share)} of a core",
    ]


def _render_table(arms: Sequence[ArmView], width: int) -> list[Line]:
    """Lay the arms out: first the gaps shrink, then columns give way, until all fit."""
    cells = {
        one.label: [(one.label, "dim"), *((one.write(arm), one.style(arm)) for arm in arms)]
        for one in _COLUMNS
    }
    wide = {label: max(len(text) for text, _ in column) for label, column in cells.items()}
    columns, gap = list(_COLUMNS), 2
    while len(columns) > 1 and sum(wide[one.label] + gap for one in columns) - gap > width:
        if gap > 1:
            gap = 1
        else:
            columns.remove(max(columns, key=lambda one: one.gives_way))
    return [
        _cut(_lay_out([(one, cells[one.label][row], wide[one.label]) for one in columns], gap), width)
        for row in range(len(arms) + 1)
    ]


def _lay_out(cells: Iterable[tuple[_Column, Span, int]], gap: int) -> Line:
    spans: list[Span] = []
    for column, (text, style), wide in cells:
        before, padding = " " * gap if spans else "", " " * (wide - len(text))
        if column.left:
            spans += [(before, ""), (text, style), (padding, "")]
        else:
            spans += [(before + padding, ""), (text, style)]
    return tuple(span for span in spans if span[0])


def _wrap(parts: Sequence[Span], width: int) -> list[Line]:
    """Join parts by dots as far as they fit beside each other, each cut at the width."""
    lines: list[list[Span]] = []
    for text, style in parts:
        used = sum(len(span[0]) for span in lines[-1]) if lines else 0
        if lines and used + 3 + len(text) <= width:
            lines[-1] += [(" · ", "dim"), (text, style)]
        else:
            lines += [[(piece, style)] for piece in _break(text, width)]
    return [tuple(line) for line in lines]


def _break(text: str, width: int) -> list[str]:
    """Break a text at spaces into lines of at most `width` characters; a longer word is cut."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word[:width])
    return [line for line in lines if line]


def _cut(line: Line, width: int) -> Line:
    """Return the first `width` characters of a line."""
    kept, room = list[Span](), width
    for text, style in line:
        kept.append((text[:room], style))
        room -= len(text[:room])
    return tuple(span for span in kept if span[0])


class DrawnProgress:
    """A view of a board as the terminal library draws it, at the width that it has at that moment."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines; the last column stays free, where some terminals wrap."""
        yield from _segments(render_progress(self._view, max(options.max_width - 1, 1)))


class LiveView:
    """Shows a board from `start` until `stop`, a look every `interval_s`; the terminal is then as it was."""

    def __init__(self, board: ProgressModel, console: Console, *, interval_s: float = INTERVAL_S) -> None:
        self._board, self._interval_s = board, interval_s
        self.looks = self.drawings = 0
        self._live = Live(
            DrawnProgress(board.view()),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,  # results are for whoever reads them, not for the terminal of the view
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="live view", daemon=True)

    def start(self) -> None:
        """Begin to draw."""
        self._live.start(refresh=True)
        self._thread.start()

    def stop(self) -> None:
        """Clear what was drawn and end the thread."""
        self._over.set()
        self._thread.join()
        self._live.stop()

    def _watch(self) -> None:
        shown = None
        while not self._over.wait(self._interval_s):
            view = self._board.view()
            self.looks += 1
            # The time gone changes by itself, and is shown in whole seconds.
            state = (self._board.version, view.is_stopping, int(view.elapsed_s))
            if state != shown:
                shown = state
                self.drawings += 1
                self._live.update(DrawnProgress(view), refresh=True)


def _segments(lines: Iterable[Line]) -> Iterable[Segment]:
    for line in lines:
        for text, style in line:
            yield Segment(text, Style.parse(style) if style else None)
        yield Segment.line()
