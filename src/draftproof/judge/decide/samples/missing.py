"""What stands between a plan or a run and an answer, largest first: said alike by check, samples and verdict.

At a load whose cells are invalid nothing is asked: no number of prompts mends a fault.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from draftproof.judge.decide.samples.spreads import STATISTIC_WORDS
from draftproof.judge.decide.wording import list_open, name_segment
from draftproof.judge.metrics.request import METRIC_WORDS
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.decision import ContextBand
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Cell, Difference, Effect
from draftproof.judge.results.samples import Need, SamplePlan, Shortfall

CellKey = tuple[str, str]  # segment, load


class Obstacle(NamedTuple):
    """One thing that keeps cells from an answer, as a sentence, and what it is read from."""

    text: str
    evidence: str


def list_obstacles(found: SamplePlan, cells: Collection[CellKey]) -> list[Obstacle]:
    """Return what some cells lack, largest first.

    First what no number of prompts mends: the host, equal arms that differ, the plan, the rest of the run;
    then numbers of prompts. Before a run those that are sure come before those by assumed spreads.
    """
    blocking = list_blocking(found.shortfalls, cells)
    impossible = [one for one in found.needs if one.reason is not None and _concerns(found, one, cells)]
    short = [one for one in found.needs if one.more and _concerns(found, one, cells)]
    short.sort(key=lambda need: (need.more or 0, need.segment, need.load), reverse=True)
    loads = dict.fromkeys(one.load for one in (*impossible, *short) if one.aim == "gain")
    return [
        *(
            Obstacle(found.disturbed[load], f"periods: load {load}")
            for load in loads
            if load in found.disturbed
        ),
        *_prevent(found, [one for one in impossible if one.null_difference > 1]),
        *(Obstacle(one.text, one.evidence) for one in blocking if one.more is None),
        *_prevent(found, [one for one in impossible if one.null_difference == 1]),
        *(Obstacle(one.text, one.evidence) for one in blocking if one.more and not found.run),
        *(
            Obstacle(
                f"To show {_name_need(found, one)} takes about {one.more:,} more prompts (an estimate).",
                _row(one),
            )
            for one in short[:1]
        ),
    ]


def list_blocking(shortfalls: Iterable[Shortfall], cells: Collection[CellKey]) -> list[Shortfall]:
    """Return the shortfalls that stand in the way of any of some cells, of most cells first."""
    counted = [(sum(one.blocks(*cell) for cell in cells), one) for one in shortfalls]
    return [one for count, one in sorted(counted, key=lambda row: -row[0]) if count]


def describe_blocked(found: SamplePlan) -> str | None:
    """Return in how many cells no gain could be claimed, and the first reason; None where there is none."""
    cells = [(need.segment, need.load) for need in found.needs if need.aim == "gain"]
    blocked = [cell for cell in cells if list_blocking(found.shortfalls, [cell])]
    if not blocked:
        return None
    where = (
        "no gain can be claimed"
        if len(blocked) == len(cells)
        else (f"no gain can be claimed in {len(blocked)} of {len(cells)} cells")
    )
    return f"{where}. First: {list_obstacles(found, blocked)[0].text}"


def find_more(found: SamplePlan, cell: CellKey) -> int | None:
    """Return how many more prompts the gain of one cell takes, None where none would do or none is asked."""
    own = _find_gain(found, cell)
    return own.more if own else None


def shows_no_gain(found: SamplePlan, cell: Cell) -> bool:
    """Return whether a cell would have shown a gain of the size asked for, or its interval leaves none open.

    By as much as equal arms differ, the candidate may have been the slower one.
    """
    need = _find_gain(found, (cell.segment, cell.load))
    if need is None:
        return False
    if need.reason is None and need.more == 0:
        return True
    low = cell.effect.low
    return low is not None and low >= (1 - found.question.gain) * need.null_difference


def _find_gain(found: SamplePlan, cell: CellKey) -> Need | None:
    own = (one for one in found.needs if one.aim == "gain" and (one.segment, one.load) == cell)
    return next(own, None)


def _concerns(found: SamplePlan, need: Need, cells: Collection[CellKey]) -> bool:
    """Return whether a need decides any of the cells; some withhold only with representative evidence."""
    if need.aim in ("tail", "limit") and not found.is_representative:
        return False
    return any(need.segment in (segment, ALL_SEGMENTS) and need.load == load for segment, load in cells)


def _prevent(found: SamplePlan, needs: Iterable[Need]) -> list[Obstacle]:
    """Return why no number of prompts would do, once for each reason at a load."""
    distinct = {(one.aim, one.load, one.reason): one for one in reversed(list(needs))}
    return [
        Obstacle(f"No number of prompts would show {_name_need(found, one)}: {one.reason}.", _row(one))
        for one in reversed(distinct.values())
    ]


def _row(need: Need) -> str:
    if need.null_difference > 1 and need.reason is not None:
        return f"effects: baseline_null / baseline, {ALL_SEGMENTS} × {need.load}"
    table = {"gain": "effects:", "tail": f"tails {need.quantity}:"}
    name = table.get(need.aim, f"differences {need.quantity}:")
    return f"{name} candidate / baseline, {need.segment} × {need.load}"


def _name_need(found: SamplePlan, need: Need) -> str:
    if need.aim == "gain":
        metric = METRIC_WORDS.get(need.quantity, need.quantity)
        return (
            f"a gain of {100 * found.question.gain:g} % in {STATISTIC_WORDS[need.statistic]} of {metric} in "
            f"{name_segment(need.segment)} at load {need.load}"
        )
    names = {
        "tail": "that the tail is no worse",
        "failures": "that failures are no more",
        "checks": "that answers pass their checks as often",
        "limit": "that as many answers end at the token limit",
    }
    return f"{names[need.aim]} at load {need.load}"


Row = TypeVar("Row", Cell, Effect, Difference, ContextBand)
MOST_OBSTACLES = 3  # a reader who wants all of them runs `draftproof samples --run`


def add_needed(cells: Iterable[Cell], found: SamplePlan | None, *, is_complete: bool) -> tuple[Cell, ...]:
    """Add to every undecided cell how many more prompts would show a gain there.

    Of a run that is not complete a cell without an estimate keeps what the estimate lacks: the rest may do.
    """
    return tuple(
        replace(cell, effect=replace(cell.effect, needed=find_more(found, (cell.segment, cell.load)) or None))
        if found is not None and _awaits_prompts(cell, is_complete=is_complete)
        else cell
        for cell in cells
    )


def ask_nothing(rows: tuple[Row, ...], loads: Collection[str]) -> tuple[Row, ...]:
    """Return rows of results that ask for no prompts at some loads."""
    return tuple(_mute(row) if row.load in loads else row for row in rows)


def _mute(row: Row) -> Row:
    names = [name for name in ("effect", "ratio", "simultaneous", "difference") if hasattr(row, name)]
    figures = {name: one for name in names if isinstance(one := getattr(row, name), Figure)}
    own = {"needed": None} if hasattr(row, "needed") else {}
    return replace(row, **{name: replace(one, needed=None) for name, one in figures.items()}, **own)


def list_largest(cells: Sequence[Cell], found: SamplePlan | None) -> list[Obstacle]:
    """Return what keeps the cells that are open from an answer, largest first, a few of them."""
    undecided = list_open(cells)
    remedies = Counter(cell.effect.remedy for cell in undecided if cell.effect.remedy)
    if remedies:
        remedy = remedies.most_common(1)[0][0]
        cell = next(one for one in undecided if one.effect.remedy == remedy)
        row = f"effects: candidate / baseline, {cell.segment} × {cell.load}"
        return [Obstacle(f"No number of prompts changes that: {remedy}.", row)]
    if found is None:
        return []
    return list_obstacles(found, [(one.segment, one.load) for one in undecided])[:MOST_OBSTACLES]


def _awaits_prompts(cell: Cell, *, is_complete: bool) -> bool:
    is_asked = is_complete or cell.effect.value is not None
    return cell.status == "inconclusive" and is_asked and cell.effect.remedy is None
