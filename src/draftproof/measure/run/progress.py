"""How a long job tells a person where it is. The seam between the qualification and a terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # a terminal need not wait for the statistics
    from draftproof.core.records import Notice, Warmup
    from draftproof.measure.run.progress_model import Board, TurnView


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a run that cannot end well: it ends, waits so long for a quiet host, or goes on."""

    wait_s: float | None = None
    keep_going: bool = False


class Interrupted(Exception):  # noqa: N818 - not an error: the user stopped the run
    """The run was stopped before its end; `done` of `total` turns are complete.

    `run` is None where the run had not begun to measure.
    """

    def __init__(self, run: Path | None = None, done: int = 0, total: int = 0) -> None:
        super().__init__(f"stopped after {done} of {total} turns")
        self.run, self.done, self.total = run, done, total


class Progress:
    """Takes news of a long job and says nothing; whoever shows them must not raise and must be quick."""

    def phase(self, text: str) -> None:
        """A new phase has begun."""

    def advance(self, done: int, total: int, text: str) -> None:
        """`done` of `total` steps of the phase are over; `text` says what goes on now."""

    def download(self, step: str, done: int, total: int | None) -> None:
        """A fetch is so far; the form that the reference engine reports in."""

    def watch(self, board: "Board") -> None:
        """Turns are measured from now on, until the next phase; the board may be read at any time."""

    def warmed_up(self, warmup: "Warmup") -> None:
        """An arm was warmed up at a level."""

    def turn_ended(self, turn: "TurnView") -> None:
        """An arm's turn of a block has ended."""

    def noticed(self, notice: "Notice") -> None:
        """The run has something to say of its own chances."""
