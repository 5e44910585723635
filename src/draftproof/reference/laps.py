"""The clock of one step: every nanosecond goes to exactly one part."""

from draftproof.clock import Clock
from draftproof.reference.counters import StepDurations


class LapTimer:
    """Runs from its making; each lap belongs to the part that it is called with.

    Args:
        clock: monotonic ns.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start_ns = self._last_ns = clock()
        self._totals = dict.fromkeys(("draft", "verify", "sample", "schedule"), 0)

    def lap(self, part: str) -> None:
        """End a lap: draft, verify, sample or schedule."""
        now_ns = self._clock()
        self._totals[part] += now_ns - self._last_ns
        self._last_ns = now_ns

    def durations(self) -> StepDurations:
        """Return the sums up to the last lap."""
        return StepDurations(**{f"{part}_ns": total for part, total in self._totals.items()})
