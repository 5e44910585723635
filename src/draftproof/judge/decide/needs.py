"""What the cells of a run ask for: how many more prompts, and what else keeps them from an answer. Pure.

At a load whose cells are invalid nothing is asked: no number of prompts mends a fault.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from draftproof.judge.decide.samples.missing import Obstacle, find_more, list_obstacles
from draftproof.judge.decide.wording import list_open
from draftproof.judge.results.decision import ContextBand
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Cell, Difference, Effect
from draftproof.judge.results.samples import SamplePlan

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
