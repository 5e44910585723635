"""The kit of every table and panel: cells, columns that write them, rows in groups, footnotes, folding.

A table is made of objects and of columns that each write one cell of an object. A cell without a value shows
the dash and carries a reason; the table collects the reasons as footnotes. Pure: strings and small numbers.

Also the order inside the results: loads, arms and segments, and which segments a large run shows.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from draftproof.judge.results.decide import ALL_LOADS
from draftproof.judge.results.run import ArmCell, Cell, Figure, Results
from draftproof.tell.report import words, write
from draftproof.tell.report.write import MISSING

T = TypeVar("T")
Fact = tuple[str, Sequence[str]]  # a label, and a text for each arm


class TableCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: its text, a smaller second line, a footnote, and how it looks.

    `reason` becomes a footnote with a `mark`. `tone` is a style class, `heat` a background strength of 0 to
    100, `head` makes it the row's header. `more` holds further (text, smaller line) below the first. `anchor`
    is what a link elsewhere leads to.
    """

    text: str
    detail: str = ""
    mark: str = ""
    tone: str = ""
    heat: int | None = None
    head: bool = False
    more: tuple[tuple[str, str], ...] = ()
    anchor: str = ""
    reason: str | None = None


class Column(msgspec.Struct, Generic[T], frozen=True):
    """A column: its header, what it writes of an object, the header it shares with neighbours, alignment."""

    label: str
    write: Callable[[T], str | TableCell]
    over: str = ""
    numeric: bool = True


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table; the `tone` sets it apart from its neighbours."""

    cells: tuple[TableCell, ...]
    tone: str = ""


class Group(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Rows of a table or chart that belong together under a title; an empty title shows no title row."""

    title: str
    rows: tuple[T, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its caption and the notes that its cells refer to, as (mark, text)."""

    caption: str
    columns: tuple[Column[Any], ...]
    groups: tuple[Group[Row], ...]
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def over_spans(self) -> tuple[tuple[str, int], ...]:
        """Header groups above the columns, as (label, columns spanned); empty when no column has one."""
        if not any(column.over for column in self.columns):
            return ()
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.over:
                spans[-1] = (column.over, spans[-1][1] + 1)
            else:
                spans.append((column.over, 1))
        return tuple(spans)


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A table under a title that can be folded away; print always shows it."""

    title: str
    opened: bool
    table: Table


class ChartPanel(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The groups of a chart under a title that can be folded away."""

    title: str
    opened: bool
    groups: tuple[Group[T], ...]


class Footnotes:
    """Collects the reasons for missing values and hands out marks: a, b, … z, aa.

    Reasons that differ only in their numbers share one mark, so that a large table stays readable.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}

    def mark(self, reason: str) -> str:
        """Return the mark of this reason, a new one if it is the first of its kind."""
        kind = re.sub(r"\d+(?:[.,]\d+)*", "#", reason)
        texts = self._texts.setdefault(kind, [])
        if reason not in texts:
            texts.append(reason)
        return _letters(list(self._texts).index(kind))

    def notes(self) -> tuple[tuple[str, str], ...]:
        """Return (mark, text) in order of first use."""
        return tuple((_letters(i), _join_reasons(texts)) for i, texts in enumerate(self._texts.values()))


def left(label: str, write_cell: Callable[[T], str | TableCell], over: str = "") -> Column[T]:
    """Return a column of names or words."""
    return Column(label, write_cell, over, numeric=False)


def right(label: str, write_cell: Callable[[T], str | TableCell], over: str = "") -> Column[T]:
    """Return a column of numbers."""
    return Column(label, write_cell, over)


def table(
    caption: str,
    columns: Sequence[Column[T]],
    groups: Iterable[tuple[str, Iterable[T]]],
    *,
    left_out: str = "",
    tone: Callable[[T], str] = lambda _: "",
) -> Table:
    """Lay objects out as rows of titled groups; groups without a row are left out.

    `left_out` is a last line that says what the table does not show, `tone` what sets an object's row apart.
    """
    notes, made = Footnotes(), []
    for title, objects in groups:
        rows = tuple(
            Row(cells=tuple(_finish(column.write(one), notes) for column in columns), tone=tone(one))
            for one in objects
        )
        made += [Group(title=title, rows=rows)] if rows else []
    made += [Group(title=left_out, rows=())] if left_out and made else []
    return Table(caption=caption, columns=tuple(columns), groups=tuple(made), notes=notes.notes())


def side_by_side(
    caption: str,
    heading: str,
    arms: Sequence[str],
    groups: Sequence[tuple[str, Sequence[Fact]]],
    cell: Callable[[str], TableCell],
    *,
    numeric: bool = True,
    tone: Callable[[Fact], str] = lambda _: "",
) -> Table:
    """Return a table with a column for each arm, of facts; empty without arms."""

    def column(place: int, arm: str) -> Column[Fact]:
        return Column(words.arm(arm), lambda fact: cell(fact[1][place]), numeric=numeric)

    names: Column[Fact] = left(heading, lambda fact: head(fact[0]))
    columns = (names, *(column(place, arm) for place, arm in enumerate(arms)))
    return table(caption, columns, groups if arms else (), tone=tone)


def _finish(cell: str | TableCell, notes: Footnotes) -> TableCell:
    if isinstance(cell, str):
        return TableCell(text=cell or MISSING)
    return msgspec.structs.replace(cell, mark=notes.mark(cell.reason)) if cell.reason else cell


def text(content: str, tone: str = "", *, detail: str = "", reason: str | None = None) -> TableCell:
    """A cell of plain text; empty text shows the dash."""
    return TableCell(text=content or MISSING, tone=tone, detail=detail, reason=reason)


def head(content: str, tone: str = "") -> TableCell:
    """The cell that names its row."""
    return TableCell(text=content or MISSING, tone=tone, head=True)


def arm_head(arm: str) -> TableCell:
    """The cell of a row that is an arm's, with its mark."""
    return head(words.arm(arm), f"arm {arm}")


def missing(content: str) -> TableCell:
    """A cell that is set back where its text is the dash."""
    return TableCell(text=content, tone="missing" if content == MISSING else "")


def explained(content: str, reason: str | None, tone: str = "") -> TableCell:
    """A cell that is set back, with a footnote, where there is a reason."""
    return TableCell(text=content, reason=reason, tone="missing" if reason else tone)


def status(name: str) -> TableCell:
    """A cell with the status of a cell of the verdict."""
    word = words.STATUSES[name]
    return TableCell(text=f"{word.glyph} {word.label}", tone=f"status {name}")


def figure(value: Figure, write_value: write.Write) -> TableCell:
    """A cell with a figure and its interval below; without a value, the dash, what is needed, and why."""
    if value.value is not None:
        detail = write.interval(value, write_value)
        return TableCell(text=write_value(value.value), detail=detail, reason=value.reason)
    return TableCell(text=MISSING, detail=write.needed(value), reason=value.reason, tone="missing")


ARM: Column[Any] = left("Arm", lambda one: arm_head(one.arm))


def panels_are_open(row_counts: Iterable[int]) -> bool:
    """Whether all panels together are short enough to stand open."""
    return sum(row_counts) <= 40


def panels(
    results: Results,
    build: Callable[[str], Table],
    *,
    loads: Sequence[str] | None = None,
    first_open: bool = True,
) -> tuple[Panel, ...]:
    """One panel per load whose table has rows; all open while short, else at most the first."""
    tables = [(load_title(results, load), build(load)) for load in loads or order_loads(results)]
    filled = [(title, made) for title, made in tables if made.groups]
    opened = panels_are_open(len(group.rows) for _, made in filled for group in made.groups)
    return tuple(
        Panel(title=title, opened=opened or (first_open and index == 0), table=made)
        for index, (title, made) in enumerate(filled)
    )


def order_segments(results: Results, present: Iterable[str]) -> tuple[str, ...]:
    """The pooled segment first, then the plan's order, then any other name that occurs."""
    found = set(present)
    known = [words.POOLED, *(s for s in results.segments if s != words.POOLED)]
    return tuple(s for s in known if s in found) + tuple(sorted(found - set(known)))


def order_arms(results: Results, present: Iterable[str]) -> tuple[str, ...]:
    """The arms of the run in their order, then any other name that occurs."""
    found = set(present)
    return tuple(a for a in results.arms if a in found) + tuple(sorted(found - set(results.arms)))


def order_loads(results: Results) -> tuple[str, ...]:
    """Names of the load levels in the plan's order."""
    return tuple(name for name, _ in results.loads)


def load_title(results: Results, load: str) -> str:
    """Return "low, 4 in flight", or "All loads"."""
    return "All loads" if load == ALL_LOADS else words.load(load, results.sizes.get(load))


def in_arm_order(results: Results, rows: Iterable[T]) -> list[T]:
    """Return rows that have an arm in the order of the arms."""
    listed, read = list(rows), attrgetter("arm")
    arms = order_arms(results, map(read, listed))
    return sorted(listed, key=lambda one: arms.index(read(one)))


def by_load(results: Results, rows: Iterable[T], *, ordered: bool = False) -> list[tuple[str, list[T]]]:
    """Return (title, rows) of every load, rows in the order of the arms unless they are `ordered` already."""
    listed, read = (list(rows) if ordered else in_arm_order(results, rows)), attrgetter("load")
    return [
        (load_title(results, load), [one for one in listed if read(one) == load])
        for load in order_loads(results)
    ]


def by_segment(results: Results, rows: Iterable[T]) -> list[tuple[str, list[T]]]:
    """Return (title, rows) of every segment that occurs."""
    listed, read = list(rows), attrgetter("segment")
    return [
        (words.segment(segment), [one for one in listed if read(one) == segment])
        for segment in order_segments(results, map(read, listed))
    ]


def cells_by_load(results: Results) -> list[tuple[str, list[Cell]]]:
    """Return the verdict's cells as (load, cells in the order of the tasks)."""
    segments = order_segments(results, {cell.segment for cell in results.cells})
    ordered = sorted(results.cells, key=lambda cell: segments.index(cell.segment))
    by_place = by_load(results, ordered, ordered=True)
    return [(title, cells) for title, cells in by_place if cells]


def cells_by_segment(results: Results, load: str) -> list[tuple[str, list[ArmCell]]]:
    """The arm cells of one load as (segment, cells in the order of the arms)."""
    here = in_arm_order(results, (cell for cell in results.arm_cells if cell.load == load))
    return [
        (segment, [cell for cell in here if cell.segment == segment])
        for segment in order_segments(results, {cell.segment for cell in here})
    ]


def segment_table(
    results: Results,
    load: str,
    title: str,
    columns: Sequence[Column[ArmCell]],
    must_show: Callable[[ArmCell], bool] = lambda _: False,
) -> Table:
    """A table of a load, one row per arm: of all tasks, and of each task with a cell that must be shown."""
    shown = [
        (words.segment(segment), cells)
        for segment, cells in cells_by_segment(results, load)
        if segment == words.POOLED or any(map(must_show, cells))
    ]
    return table(f"{title}, {load_title(results, load)}", columns, shown)


# Beyond so many cells a table of details shows part of its segments; the map, the reasons and the deciding
# chart always show all.
_WHOLE_CELLS = 200
_SHOWN_SEGMENTS = 12


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
    names = [name for name in order_segments(results, segments) if name != words.POOLED]
    slowest = sorted(names, key=lambda name: -_log_ratio(ratios.get(name)))
    half = _SHOWN_SEGMENTS // 2
    return frozenset({words.POOLED, *slowest[:half], *slowest[-half:]})


def describe_left_out(present: int, shown: int) -> str:
    """Return the line that says how many segments a table leaves out, "" where none is."""
    if shown >= present:
        return ""
    return (
        f"{present - shown} more tasks: status and effect of each stand in the envelope, all figures in "
        "results.json"
    )


def _log_ratio(ratio: float | None) -> float:
    return math.inf if ratio is None or ratio <= 0 else math.log(ratio)


def _letters(index: int) -> str:
    first, last = divmod(index, 26)
    return (_letters(first - 1) if first else "") + chr(ord("a") + last)


def _join_reasons(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (and {len(texts) - 1} more of this kind, with other numbers)"
