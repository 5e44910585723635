"""From cells to the decision and its envelope. Pure; the words are in wording.py.

Rules, in this order:

1. `invalid` if every cell is.
2. A run in which a cell lacks requests that the plan asks for is at most `inconclusive`.
3. `adopt` if every cell is gain or neutral, and one at least is gain.
4. `adopt_limited` if a segment gains from the lowest load on. It is allowed up to the highest load below
   which, itself included, every measured load is a gain: never beyond a measured load, never across a gap.
5. `defer` if no cell is a gain, no undecided cell has an estimate that would be one, and more than half of
   the cells have an estimate that is none. An undecided cell is one that is inconclusive and neither beaten
   by the alternative nor without credit for the length of its answers: more prompts would not help those.
6. `inconclusive` otherwise.
"""

from collections.abc import Iterable, Sequence

from draftproof.plan.schema import Thresholds
from draftproof.verdict.results import Cell, Decision, EnvelopeEntry
from draftproof.verdict.run_data import ALL_SEGMENTS, PreparedRun

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
    """Return whether every cell is gain or neutral and one at least is a gain."""
    statuses = {cell.status for cell in cells}
    return "gain" in statuses and statuses <= {"gain", "neutral"}


def find_limits(cells: Sequence[Cell]) -> dict[str, int]:
    """Return, by segment, the highest concurrency up to which every measured load is a gain."""
    limits: dict[str, int] = {}
    for segment in dict.fromkeys(cell.segment for cell in cells):
        own = sorted((cell for cell in cells if cell.segment == segment), key=lambda cell: cell.concurrency)
        for cell in own:
            if not _all_gain(own, cell.concurrency):
                break
            limits[segment] = cell.concurrency
    return limits


def is_deferred(cells: Sequence[Cell], thresholds: Thresholds) -> bool:
    """Return whether no cell gains and none that is undecided looks as if it could."""
    if any(cell.status == "gain" or _may_gain(cell, thresholds) for cell in cells):
        return False
    return 2 * sum(_is_no_gain(cell, thresholds) for cell in cells) > len(cells)


def list_envelope(
    prepared: PreparedRun, cells: Sequence[Cell], decision: Decision
) -> tuple[EnvelopeEntry, ...]:
    """Return where speculation may run: empty unless the decision is to adopt."""
    if decision == "adopt":
        highest = max(cell.concurrency for cell in cells)
        limits = dict.fromkeys((cell.segment for cell in cells), highest)
    else:
        limits = find_limits(cells) if decision == "adopt_limited" else {}
    return tuple(
        EnvelopeEntry(
            segment=segment,
            max_concurrency=limit,
            max_context_tokens=find_longest_context(prepared, segment, limit),
        )
        for segment, limit in limits.items()
    )


def find_longest_context(
    prepared: PreparedRun, segment: str = ALL_SEGMENTS, max_concurrency: int | None = None
) -> int | None:
    """Return the most prompt and output tokens that the candidate answered, None where unknown."""
    lengths = [
        one.record.prompt_tokens + one.metrics.output_tokens
        for one in prepared.of_arm("candidate", segment=segment)
        if one.is_ok and one.record.prompt_tokens is not None and one.metrics.output_tokens is not None
        if max_concurrency is None or prepared.concurrency(one.record.load) <= max_concurrency
    ]
    return max(lengths, default=None)


def _all_gain(cells: Iterable[Cell], concurrency: int) -> bool:
    return all(cell.status == "gain" for cell in cells if cell.concurrency <= concurrency)


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
