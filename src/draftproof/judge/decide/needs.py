"""What the cells of a run ask for: how many more prompts, and what else keeps them from an answer. Pure.

At a load whose cells are invalid nothing is asked: no number of prompts mends a fault.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from draftproof.judge.decide.samples.missing import Obstacle, find_more, list_obstacles
from draftproof.judge.decide.wording import list_open
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Cell, Effect, Results
from draftproof.judge.results.samples import SamplePlan

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


def ask_nothing_where_invalid(results: Results) -> Results:
    """Return results that ask for no prompts at a load whose cells are invalid."""
    loads = {cell.load for cell in results.cells if cell.status == "invalid"}
    return replace(
        results,
        cells=tuple(
            replace(cell, effect=replace(cell.effect, needed=None)) if cell.load in loads else cell
            for cell in results.cells
        ),
        effects=_ask_nothing(results.effects, loads),
        tail_effects=_ask_nothing(results.tail_effects, loads),
        differences=tuple(
            replace(one, difference=replace(one.difference, needed=None)) if one.load in loads else one
            for one in results.differences
        ),
        context_bands=tuple(
            replace(one, needed=None) if one.load in loads else one for one in results.context_bands
        ),
    )


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


def _ask_nothing(effects: Iterable[Effect], loads: Collection[str]) -> tuple[Effect, ...]:
    def mute(figure: Figure) -> Figure:
        return replace(figure, needed=None)

    return tuple(
        replace(one, ratio=mute(one.ratio), simultaneous=mute(one.simultaneous)) if one.load in loads else one
        for one in effects
    )


def _awaits_prompts(cell: Cell, *, is_complete: bool) -> bool:
    is_asked = is_complete or cell.effect.value is not None
    return cell.status == "inconclusive" and is_asked and cell.effect.remedy is None
