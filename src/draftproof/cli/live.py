"""The live view of a run on a terminal: a thread that draws the board twice a second.

Drawing is off the loop that measures, since a terminal may take its time; it is laid out by hand, since the
loop waits while this thread computes. Nothing is drawn while nothing has changed.
"""

import threading
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style

from draftproof.cli.board_text import Line, render_board
from draftproof.measure.run.progress_model import Board, BoardView

INTERVAL_S = 0.5


class DrawnBoard:
    """A view of a board as the terminal library draws it, at the width that it has at that moment."""

    def __init__(self, view: BoardView) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines; the last column stays free, where some terminals wrap."""
        yield from _segments(render_board(self._view, max(options.max_width - 1, 1)))


class LiveView:
    """Shows a board from `start` until `stop`; the terminal is then as it was.

    Args:
        board: what is shown.
        console: where.
        interval_s: time between two looks at the board.
    """

    def __init__(self, board: Board, console: Console, *, interval_s: float = INTERVAL_S) -> None:
        self._board, self._interval_s = board, interval_s
        self.looks = self.drawings = 0
        self._live = Live(
            DrawnBoard(board.view()),
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
                self._live.update(DrawnBoard(view), refresh=True)


def _segments(lines: Iterable[Line]) -> Iterable[Segment]:
    for line in lines:
        for text, style in line:
            yield Segment(text, Style.parse(style) if style else None)
        yield Segment.line()
