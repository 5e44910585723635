"""Order and look-up inside the results: loads, segments, and the arm cells of each.

Pure. The pooled segment comes first and never hides the others.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from draftproof.report.labels import POOLED, load_label, segment_label
from draftproof.report.view import Column, Group, Panel, Row, Table, panels_are_open
from draftproof.verdict.results import ArmCell, Results

T = TypeVar("T")

# Beyond so many cells a table of details shows part of its segments; the map, the reasons and the deciding
# chart always show all.
_WHOLE_CELLS = 200
_SHOWN_SEGMENTS = 12


def order_segments(results: Results, present: Iterable[str]) -> tuple[str, ...]:
    """The pooled segment first, then the plan's order, then any other name that occurs."""
    found = set(present)
    known = [POOLED, *(s for s in results.segments if s != POOLED)]
    return tuple(s for s in known if s in found) + tuple(sorted(found - set(known)))


def order_arms(results: Results, present: Iterable[str]) -> tuple[str, ...]:
    """The arms of the run in their order, then any other name that occurs."""
    found = set(present)
    return tuple(a for a in results.arms if a in found) + tuple(sorted(found - set(results.arms)))


def title_of_load(results: Results, load: str) -> str:
    """Return "low, 4 in flight"."""
    return load_label(load, results.sizes.get(load))


def order_loads(results: Results) -> tuple[str, ...]:
    """Names of the load levels in the plan's order."""
    return tuple(name for name, _ in results.loads)


def arm_cells_by_segment(results: Results, load: str) -> tuple[tuple[str, tuple[ArmCell, ...]], ...]:
    """The arm cells of one load as (segment, cells in the order of the arms)."""
    here = [cell for cell in results.arm_cells if cell.load == load]
    arms = order_arms(results, {cell.arm for cell in here})
    return tuple(
        (
            segment,
            tuple(sorted((c for c in here if c.segment == segment), key=lambda c: arms.index(c.arm))),
        )
        for segment in order_segments(results, {cell.segment for cell in here})
    )


def segment_groups(
    results: Results,
    load: str,
    build_row: Callable[[ArmCell], Row | None],
    must_show: Callable[[ArmCell], bool] = lambda _: False,
) -> tuple[Group, ...]:
    """One group of rows per segment, one row per arm for which `build_row` gives one.

    In a large run only the segments that tell most (`choose_segments`), and those with a cell that must be
    shown; a last group says how many are left out.
    """
    found = arm_cells_by_segment(results, load)
    kept = choose_segments(results, load, candidate_ratios(results, load))
    groups = []
    for segment, cells in found:
        shown = kept is None or segment in kept or any(map(must_show, cells))
        rows = tuple(row for cell in cells if (row := build_row(cell)) is not None) if shown else ()
        if rows:
            groups.append(Group(title=segment_label(segment), rows=rows))
    left_out = describe_left_out(len(found), len(groups)) if kept is not None else ""
    return (*groups, *((Group(title=left_out, rows=()),) if left_out and groups else ()))


def candidate_ratios(results: Results, load: str) -> dict[str, float | None]:
    """The candidate's deciding ratio by segment at a load."""
    return {cell.segment: cell.effect.value for cell in results.cells if cell.load == load}


def choose_segments(results: Results, load: str, ratios: Mapping[str, float | None]) -> frozenset[str] | None:
    """Return the segments that a table of details shows at a load, None for all of them.

    A large run would fill thousands of rows nobody reads: shown are the pooled one and, of the others, those
    whose ratio lies furthest from 1 on either side; a ratio that cannot be given counts as furthest.
    """
    segments = {cell.segment for cell in results.cells if cell.load == load} | set(ratios)
    if len(segments) * len(results.loads) <= _WHOLE_CELLS:
        return None
    names = [name for name in order_segments(results, segments) if name != POOLED]
    slowest = sorted(names, key=lambda name: -_log_ratio(ratios.get(name)))
    half = _SHOWN_SEGMENTS // 2
    return frozenset({POOLED, *slowest[:half], *slowest[-half:]})


def describe_left_out(present: int, shown: int) -> str:
    """Return the line that says how many segments a table leaves out, "" where none is."""
    if shown >= present:
        return ""
    return (
        f"{present - shown} more segments: status and effect of each stand in the envelope, all figures in "
        "results.json"
    )


def _log_ratio(ratio: float | None) -> float:
    return math.inf if ratio is None or ratio <= 0 else math.log(ratio)


def make_panels(tables: Sequence[tuple[str, Table]], *, first_open: bool = True) -> tuple[Panel, ...]:
    """One panel per (title, table) that has rows; all open while short, else at most the first."""
    filled = [(title, table) for title, table in tables if table.groups]
    opened = panels_are_open(len(g.rows) for _, table in filled for g in table.groups)
    return tuple(
        Panel(title=title, opened=opened or (first_open and index == 0), table=table)
        for index, (title, table) in enumerate(filled)
    )


def label_column(label: str) -> Column:
    """The first column of a table: names, aligned left."""
    return Column(label=label, numeric=False)
