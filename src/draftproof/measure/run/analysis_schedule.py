"""When a load of a run that is under way is analysed, and which loads have ended."""

from collections.abc import Collection

from draftproof.core.clock import NS_PER_S, monotonic_ns
from draftproof.core.records import Analysis
from draftproof.judge.observe.observed import RunData
from draftproof.measure.load.period import Period
from draftproof.plan.schema import Plan, Sequential
from draftproof.workload.blocks import least_blocks

SECONDS_PER_MINUTE = 60


class AnalysisSchedule:
    """Knows after which blocks each load is analysed, and what the analyses so far have ended.

    `blocks`, by load: the numbers of all of its blocks in order; after the last one the run is over, and no
    analysis is due. `least`: blocks that a gain takes.
    """

    def __init__(
        self,
        sequential: Sequential | None,
        blocks: dict[str, list[int]],
        analyses: Collection[Analysis],
        least: int,
    ) -> None:
        self._points = {
            load: [own[point - 1] for point in sequential.list_points(len(own), least)[:-1]]
            for load, own in blocks.items()
            if sequential is not None
        }
        self._blocks = blocks
        minutes = None if sequential is None else sequential.budget_min
        self._over_ns = None if minutes is None else monotonic_ns() + minutes * SECONDS_PER_MINUTE * NS_PER_S
        self._had = {(one.load, one.blocks) for one in analyses}
        self._ended = {one.load for one in analyses if one.ended}

    def has_ended(self, load: str) -> bool:
        """Whether an analysis ended a load."""
        return load in self._ended

    def is_over(self, now_ns: int) -> bool:
        """Whether the budget of time is spent."""
        return self._over_ns is not None and now_ns >= self._over_ns

    def is_due(self, load: str, block: int, now_ns: int) -> bool:
        """Whether a load is to be analysed after one of its blocks."""
        points = self._points.get(load, [])
        if not points or (load, self._blocks[load].index(block) + 1) in self._had:
            return False
        last = block == self._blocks[load][-1]
        return not last and (block in points or (self.is_over(now_ns) and block > points[0]))

    def note(self, analysis: Analysis) -> None:
        """Take in what an analysis found."""
        self._had.add((analysis.load, analysis.blocks))
        if analysis.ended:
            self._ended.add(analysis.load)


def make_schedule(plan: Plan, periods: Collection[Period], contents: RunData) -> AnalysisSchedule:
    """Return what knows when the loads of a run are analysed; `periods`: those of the run, in order."""
    blocks: dict[str, list[int]] = {}
    for period in periods:
        own = blocks.setdefault(period.load, [])
        if period.block not in own:
            own.append(period.block)
    least = least_blocks(is_representative=plan.evidence == "representative")
    return AnalysisSchedule(plan.sequential, blocks, contents.analyses, least)
