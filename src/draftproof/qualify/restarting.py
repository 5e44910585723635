"""When the arms are started anew between blocks, so that no process answers for all of a run. Pure.

Where a process is placed and how its memory lies moves all of its times, and no prompt shows it. A block
begins with new processes where those that run have answered its load before: each load then meets every
process, and a start is worth its time. `auto` adds: starts and warm-ups take at most a quarter of the run at
any moment of it. Times of an earlier part of a resumed run do not count.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

SHARE = 0.25


class Period(Protocol):
    """What is read of a measurement period; a `Turn` fits."""

    @property
    def block(self) -> int:
        """Number of the block."""
        ...

    @property
    def load(self) -> str:
        """The load level."""
        ...


class Restarts:
    """Keeps count of what starts cost and says when the next one is due.

    Args:
        wanted: `limits.restarts`.
        periods: every measurement period of the run, in order.
        first_s: how long the arms took to start; None where there is none that the run starts.
    """

    def __init__(
        self, wanted: int | Literal["auto"], periods: Sequence[Period], first_s: float | None
    ) -> None:
        self._wanted, self._start_s = wanted, first_s
        self._chosen = set() if wanted == "auto" else choose_blocks(periods, wanted)
        self._answered = set[str]()
        self._block: int | None = None
        self._measured_s, self._spent_s, self._warm_s, self._last_warm_s = 0.0, 0.0, 0.0, 0.0
        self._is_first = True

    def is_due(self, period: Period) -> bool:
        """Tell whether the arms are to be started anew before a period; call it once for each, in order."""
        if self._start_s is None or period.block == self._block:
            return False
        self._block = period.block
        if period.load not in self._answered:
            self._answered.add(period.load)
            return False
        if self._wanted != "auto":
            return period.block in self._chosen
        cost_s = self._start_s + max(self._warm_s, self._last_warm_s)
        return self._spent_s + cost_s <= self._measured_s * SHARE / (1 - SHARE)

    def count_start(self, load: str, seconds: float) -> None:
        """The arms were started anew before a block of a load."""
        self._start_s, self._is_first, self._answered = seconds, False, {load}
        self._spent_s += seconds
        self._last_warm_s, self._warm_s = self._warm_s, 0.0

    def count_warmup(self, seconds: float) -> None:
        """An arm that the run starts was warmed up; that is a cost of its start."""
        self._warm_s += seconds
        self._spent_s += 0.0 if self._is_first else seconds

    def count_period(self, seconds: float) -> None:
        """A period was measured."""
        self._measured_s += seconds


def list_boundaries(periods: Sequence[Period]) -> list[int]:
    """Return the blocks before which the arms can be started anew: of a load that was answered since."""
    found, answered, block = list[int](), set[str](), None
    for period in periods:
        if period.block != block:
            if period.load in answered:
                found.append(period.block)
                answered.clear()
            answered.add(period.load)
        block = period.block
    return found


def choose_blocks(periods: Sequence[Period], count: int) -> set[int]:
    """Return `count` blocks before which the arms are started anew, evenly spread; fewer if there are."""
    blocks = list_boundaries(periods)
    if count >= len(blocks):
        return set(blocks)
    step = (len(blocks) + 1) / (count + 1)
    return {blocks[round(step * (number + 1)) - 1] for number in range(count)}
