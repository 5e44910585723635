"""Order and look-up inside the results: loads, segments, and the arm cells of each.

Pure. The pooled segment comes first and never hides the others.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from draftproof.report.labels import POOLED, load_label, segment_label
from draftproof.report.view import Column, Group, Panel, Row, Table, panels_are_open
from draftproof.verdict.results import ArmCell, Results

T = TypeVar("T")


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
    return load_label(load, dict(results.loads).get(load))


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
    results: Results, load: str, build_row: Callable[[ArmCell], Row | None]
) -> tuple[Group, ...]:
    """One group of rows per segment, one row per arm for which `build_row` gives one."""
    groups = []
    for segment, cells in arm_cells_by_segment(results, load):
        rows = tuple(row for cell in cells if (row := build_row(cell)) is not None)
        if rows:
            groups.append(Group(title=segment_label(segment), rows=rows))
    return tuple(groups)


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
