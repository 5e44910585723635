"""What standard error gets: the live view on a terminal, plain lines for a log, nothing when quiet."""

import io
import os
import pty
import re
import sys
import threading

import pytest
from rich.console import Console
from tests.builders.records import MS_NS, build_block_record, build_item, build_record

from draftproof.cli.console import (
    LineProgress,
    console_progress,
    is_terminal,
    replace_unencodable,
)
from draftproof.cli.live import LiveView
from draftproof.measure.load.period import Period
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.progress_model import ProgressModel

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
TURN = Period(block=0, load="busy", concurrency=1, repeat=0, arm="candidate", order=0, item_ids=("a",))


def make_board():
    return ProgressModel([TURN], {"a": build_item("a")})


class Seconds:
    """A clock that a test sets."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def log():
    stream, clock = io.StringIO(), Seconds()
    return LineProgress(stream, clock=clock, time_of_day=lambda: "12:03:04"), stream, clock


def test_a_log_gets_a_line_for_each_phase_and_each_period(log):
    """With the time of day, and no steps of a phase that moves on."""
    progress, stream, _ = log
    progress.phase("Starting the arms")
    progress.advance(0, 2, "starting baseline")
    progress.phase("Measuring")
    board = make_board()
    progress.watch(board)
    board.begin_period(TURN)
    board.see(build_record(arm="candidate", load="busy", gap_ns=21 * MS_NS))
    progress.period_ended(board.end_period(build_block_record(load="busy", arm="candidate")))
    assert stream.getvalue().splitlines() == [
        "12:03:04 Starting the arms",
        "12:03:04 Measuring",
        "12:03:04 period 1/1 busy candidate: 1 request, 0 failed, 21.0 ms per token",
    ]


def test_a_long_phase_says_where_it_is_every_half_minute(log):
    """Models load for minutes, and a log that stands still looks dead; measuring has its periods."""
    progress, stream, clock = log
    progress.phase("Starting the arms")
    for clock.now_s in (10.0, 29.0, 31.0, 40.0, 62.0):
        progress.advance(1, 4, f"starting arm {clock.now_s:g}")
    progress.watch(make_board())
    clock.now_s = 200.0
    progress.advance(1, 4, "busy: candidate")
    assert stream.getvalue().splitlines()[1:] == [
        "12:03:04 1 of 4: starting arm 31",
        "12:03:04 1 of 4: starting arm 62",
    ]


def test_no_name_can_steer_the_terminal_that_a_log_is_read_on(log):
    """Control characters are written as escapes."""
    progress, stream, _ = log
    progress.phase("a\x1b[2J\rb")
    assert stream.getvalue() == "12:03:04 a\\x1b[2J\\rb\n"


def test_a_log_that_cannot_be_written_does_not_end_a_run(log):
    """The reader of a pipe may have gone: the measurement goes on in silence."""
    _, _, clock = log
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        progress = LineProgress(stream, clock=clock, time_of_day=lambda: "")
        progress.phase("Measuring")
        progress.phase("Computing the verdict")
        with pytest.raises(BrokenPipeError):
            stream.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [({}, Progress), ({"lines": True}, LineProgress), ({"lines": True, "quiet": True}, Progress)],
)
def test_without_a_terminal_only_a_run_leaves_lines(options, kind):
    """Other commands are quiet, and so is a run that is asked to be."""
    with console_progress(**options) as progress:
        assert type(progress) is kind


def test_a_dumb_terminal_gets_lines(monkeypatch):
    """It cannot move its cursor."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    assert is_terminal()


class Screen:
    """A pseudo-terminal and all that was written to it."""

    def __init__(self, encoding="utf-8"):
        self._ours, theirs = pty.openpty()
        self.file = os.fdopen(theirs, "w", encoding=encoding)
        self._parts: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # how a pseudo-terminal says that its other end is closed
                return
            if not part:
                return
            self._parts.append(part)

    def close(self) -> str:
        self.file.close()
        self._reader.join()
        os.close(self._ours)
        return b"".join(self._parts).decode(self.file.encoding)


def drawn(screen: Screen | None = None, **options) -> str:
    """What a live view writes while a period goes on and ends."""
    screen, board = screen or Screen(), make_board()
    console = Console(file=screen.file, force_terminal=True, width=80, **options)
    view = LiveView(board, console, interval_s=0.01)
    view.start()
    board.begin_period(TURN)
    wait_for(lambda: view.drawings > 1)
    view.stop()
    console.print("after")
    return screen.close()


def wait_for(holds):
    over = threading.Event()
    for _ in range(1_000):
        if holds():
            return
        over.wait(0.01)
    raise AssertionError("waited in vain for a drawing")


def test_the_live_view_is_drawn_over_itself_and_cleared_at_the_end():
    """The cursor is shown again, and what follows stands where the view stood."""
    text = drawn(color_system="standard")
    assert "candidate" in text
    assert "measuring" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert "\x1b[2K" in text.rpartition("after")[0]
    assert text.rstrip().endswith("after")


def test_no_colour_is_used_where_none_is_wanted(monkeypatch):
    """NO_COLOR leaves bold and dim, and takes every colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    codes = set(re.findall(r"\x1b\[([0-9;]*)m", drawn()))
    assert codes
    assert not {code for code in codes if re.search(r"(^|;)(3[0-7]|38|9[0-7])(;|$)", code)}


def test_nothing_is_drawn_while_nothing_changes():
    """A board that stands still costs a look, not a drawing; the second that passes is a change."""
    screen = Screen()
    now = [0]
    board = ProgressModel([TURN], {"a": build_item("a")}, clock=lambda: now[0])
    view = LiveView(board, Console(file=screen.file, force_terminal=True, width=80), interval_s=0.01)
    view.start()
    wait_for(lambda: view.looks >= 5)
    before = view.drawings
    now[0] = 10**9
    wait_for(lambda: view.drawings > before)
    view.stop()
    screen.close()
    assert before == 1


@pytest.mark.parametrize("encoding", ["latin-1", "gbk", "koi8-r"])
def test_bars_and_the_live_view_are_drawn_in_any_encoding(monkeypatch, encoding):
    """A character that the terminal's encoding lacks is replaced, on the bars and in the view."""
    for show in (drawn, show_bars):
        screen = Screen(encoding)
        monkeypatch.setattr(sys, "stderr", screen.file)
        replace_unencodable()
        assert "after" in show(screen)


def show_bars(screen: Screen) -> str:
    """What the bars write for a phase and its steps."""
    with console_progress() as progress:
        progress.phase("Phase − 日本 😀")
        progress.advance(1, 2, "step — é ▁")
        progress.phase("after")
    return screen.close()
