"""From cells to the decision. Pure; the words are in wording.py, the envelope in envelope.py.

Rules, in this order:

1. `invalid` if every cell is.
2. A run in which a cell lacks requests that the plan asks for is at most `inconclusive`.
3. `adopt` if every cell is admissible, and one at least is a gain. Admissible is a gain, and a neutral cell
   in which the alternative does not dominate and the answers keep their length. Where long contexts show
   harm the envelope leaves them out, and the decision is `adopt_limited` (`envelope.narrow_decision`).
4. `adopt_limited` if a segment reaches a gain from its lowest measured load on without crossing a cell that
   is not admissible. It is allowed up to the highest such gain: a neutral cell was shown to do no
   harm with every guardrail held, so speculation may stay on through it, but an entry never ends in one,
   because there speculation does not earn its place. Never beyond a measured load, never across a gap.
5. `defer` if no cell is a gain, no undecided cell has an estimate that would be one, and more than half of
   the cells have an estimate that is none. An undecided cell is one that is inconclusive and neither beaten
   by the alternative nor without credit for the length of its answers: more prompts would not help those.
6. `inconclusive` otherwise.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile

from draftproof.plan.schema import Thresholds
from draftproof.verdict.results import Cell, Decision

SETTLED_CODES = frozenset({"dominated", "output_length_shift"})


def decide(cells: Sequence[Cell], thresholds: Thresholds, *, is_complete: bool) -> Decision:
    """Return the decision for the cells of a run."""
    if all(cell.status == "invalid" for cell in cells):
        return "invalid"
    if not is_complete:
        return "inconclusive"
    if is_adopted(cells):
        return "adopt"
    if find_limits(cells):
        return "adopt_limited"
    return "defer" if is_deferred(cells, thresholds) else "inconclusive"


def is_adopted(cells: Iterable[Cell]) -> bool:
    """Return whether every cell may be in an envelope and one at least is a gain."""
    cells = list(cells)
    return all(map(is_admissible, cells)) and any(cell.status == "gain" for cell in cells)


def is_admissible(cell: Cell) -> bool:
    """Return whether a cell may be in an envelope: a gain, or neutral and not beaten by the alternative."""
    return cell.status == "gain" or (cell.status == "neutral" and not _is_settled(cell))


def find_limits(cells: Sequence[Cell]) -> dict[str, int]:
    """Return, by segment, the concurrency of the highest gain with only admissible cells up to it."""
    levels: defaultdict[str, defaultdict[int, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        levels[cell.segment][cell.concurrency].append(cell)
    limits: dict[str, int] = {}
    for segment, by_concurrency in levels.items():
        for concurrency, found in takewhile(_are_admissible, sorted(by_concurrency.items())):
            if any(cell.status == "gain" for cell in found):
                limits[segment] = concurrency
    return limits


def is_deferred(cells: Sequence[Cell], thresholds: Thresholds) -> bool:
    """Return whether no cell gains and none that is undecided looks as if it could."""
    if any(cell.status == "gain" or _may_gain(cell, thresholds) for cell in cells):
        return False
    return 2 * sum(_is_no_gain(cell, thresholds) for cell in cells) > len(cells)


def _are_admissible(level: tuple[int, list[Cell]]) -> bool:
    return all(map(is_admissible, level[1]))


def _is_settled(cell: Cell) -> bool:
    return any(reason.code in SETTLED_CODES for reason in cell.reasons)


def _may_gain(cell: Cell, thresholds: Thresholds) -> bool:
    if cell.status != "inconclusive" or _is_settled(cell) or cell.effect.value is None:
        return False
    return cell.effect.value < 1 - thresholds.minimum_gain


def _is_no_gain(cell: Cell, thresholds: Thresholds) -> bool:
    if cell.status in ("harm", "neutral"):
        return True
    if cell.status != "inconclusive" or cell.effect.value is None:
        return False
    return _is_settled(cell) or cell.effect.value >= 1 - thresholds.minimum_gain
