"""From cells to the decision, by these rules in this order; words and envelope have modules of their own.

1. `invalid` if every cell is.
2. A run in which a cell lacks requests that the plan asks for is at most `inconclusive`.
3. `adopt` if every cell is admissible (a gain, or neutral with answers as long and no better alternative) and
   one at least is a gain. Where long contexts show harm it is `adopt_limited` (`envelope.narrow_decision`).
4. `adopt_limited` if a segment reaches a gain from its lowest load on without crossing a cell that is
   not admissible, on each measured axis: up to the highest such gain, never across a gap.
5. `defer` if no cell is a gain, no undecided cell has an estimate that would be one, and more than half of
   the cells have an estimate that is none and could have shown a gain (`spreads.shows_no_gain`).
6. `inconclusive` otherwise.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from draftproof.judge.results.run import Cell, Decision
from draftproof.judge.stats.order import MOST
from draftproof.plan.limits import Axis, LoadLimit
from draftproof.plan.schema import Thresholds

SETTLED_CODES = frozenset({"dominated", "output_length_shift", "token_limit_shift"})
NO_GAIN = frozenset(
    {"harm", "neutral", "no_gain"}
)  # statuses of which each shows that no minimum gain is there
DOUBT_CODES = frozenset({"few_processes", "follows_unlike"})  # what may have hidden a gain


def decide(
    cells: Sequence[Cell],
    thresholds: Thresholds,
    *,
    is_complete: bool,
    shows_no_gain: Callable[[Cell], bool],
) -> Decision:
    """Return the decision for the cells of a run.

    `is_complete`: it has the requests that the plan asks for. `shows_no_gain`: whether a cell without a gain
    would have shown one; asked only where the rest defers.
    """
    if all(cell.status == "invalid" for cell in cells):
        return "invalid"
    if not is_complete:
        return "inconclusive"
    if is_adopted(cells):
        return "adopt"
    if find_limits(cells):
        return "adopt_limited"
    return "defer" if is_deferred(cells, thresholds, shows_no_gain) else "inconclusive"


def is_adopted(cells: Iterable[Cell]) -> bool:
    """Return whether every cell may be in an envelope and one at least is a gain."""
    cells = list(cells)
    return all(map(is_admissible, cells)) and any(cell.status == "gain" for cell in cells)


def is_admissible(cell: Cell) -> bool:
    """Return whether a cell may be in an envelope: a gain, or neutral and not beaten by the alternative."""
    return cell.status == "gain" or (cell.status == "neutral" and not is_settled(cell))


def find_limits(
    cells: Iterable[Cell], choose: Callable[[Sequence[Cell]], float | None] | None = None
) -> dict[str, LoadLimit]:
    """Return, by segment, the highest gain with only admissible cells up to it, on each axis apart.

    `choose`: what else is taken of the cells of one axis, None where an axis has none.

    A segment that was measured on two axes needs a gain on both: a limit that holds on one alone would
    let speculation run at any load of the other.
    """
    by_segment: defaultdict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_segment[cell.segment].append(cell)
    found = {segment: _make_limit(own, choose or _find_highest_gain) for segment, own in by_segment.items()}
    return {segment: limit for segment, limit in found.items() if limit is not None}


def _make_limit(cells: Iterable[Cell], choose: Callable[[Sequence[Cell]], float | None]) -> LoadLimit | None:
    """Return the limit that `choose` gives for the cells of each axis, None where one axis has none."""
    axes: defaultdict[Axis, list[Cell]] = defaultdict(list)
    for cell in cells:
        axes[cell.size.axis].append(cell)
    chosen = {axis: choose(own) for axis, own in axes.items()}
    if None in chosen.values():
        return None
    concurrency = chosen.get("concurrency")
    return LoadLimit(concurrency=None if concurrency is None else round(concurrency), rps=chosen.get("rate"))


def _find_highest_gain(cells: Sequence[Cell]) -> float | None:
    """Return the highest load of one axis that gains, with only admissible cells up to it.

    None too where a load of unknown size may be anywhere on the axis.
    """
    levels: defaultdict[float, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.size.value is None:
            return None
        levels[cell.size.value].append(cell)
    highest: float | None = None
    for value, found in takewhile(lambda level: all(map(is_admissible, level[1])), sorted(levels.items())):
        if any(cell.status == "gain" for cell in found):
            highest = value
    return highest


def is_deferred(cells: Sequence[Cell], thresholds: Thresholds, shows_no_gain: Callable[[Cell], bool]) -> bool:
    """Return whether no cell gains, no undecided one looks as if it could, and most show that they do not."""
    if any(cell.status == "gain" or _may_gain(cell, thresholds) for cell in cells):
        return False
    without = [cell for cell in cells if _is_no_gain(cell, thresholds)]
    if 2 * len(without) <= len(cells):
        return False
    return 2 * sum(map(shows_no_gain, without)) > len(cells)


def is_settled(cell: Cell) -> bool:
    """Return whether no gain is to be claimed in a cell, whatever its times are."""
    return any(reason.code in SETTLED_CODES for reason in cell.reasons)


def _may_gain(cell: Cell, thresholds: Thresholds) -> bool:
    effect = cell.effect
    if cell.status != "inconclusive" or is_settled(cell) or effect.value is None:
        return False
    # Of an effect that no number of prompts settles the interval is all there is.
    least = effect.low if effect.remedy and effect.low is not None else effect.value
    return least < 1 - thresholds.minimum_gain


def _is_no_gain(cell: Cell, thresholds: Thresholds) -> bool:
    if cell.status in NO_GAIN:
        return True
    if cell.status != "inconclusive" or cell.effect.value is None:
        return False
    is_doubted = any(reason.code in DOUBT_CODES for reason in cell.reasons)
    least = (1 - thresholds.minimum_gain) * (MOST if is_doubted else 1.0)
    return is_settled(cell) or cell.effect.value >= least
