"""The pieces a page is made of: cells, rows, tables and folding panels, all strings and small numbers.

Pure data for the templates and the terminal. A cell that has no value carries a footnote mark; the table
carries the note.

Plain lines for a terminal: wrapped text, points, tables in columns.

Free of colour codes. Control characters in strings from outside are replaced, so that a name cannot steer the
reader's terminal.

Order and look-up inside the results: loads, segments, and the arm cells of each.

Pure. The pooled segment comes first and never hides the others.
"""

import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from draftproof.judge.results.run import ArmCell, Figure, Results
from draftproof.tell.report.quantities import MISSING, POOLED, format_count, load_label, segment_label


class TableCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: its text, a smaller second line, a footnote mark, and how it looks.

    `tone` is a style class, `heat` a background strength of 0 to 100, `head` makes it the row's header.
    `more` holds further (text, smaller line) below the first. `anchor` is what a link elsewhere leads to.
    """

    text: str
    detail: str = ""
    mark: str = ""
    tone: str = ""
    heat: int | None = None
    head: bool = False
    more: tuple[tuple[str, str], ...] = ()
    anchor: str = ""


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column: its header, the header above it that it shares with neighbours, and its alignment."""

    label: str
    over: str = ""
    numeric: bool = True


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table; the `tone` sets it apart from its neighbours."""

    cells: tuple[TableCell, ...]
    tone: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that belong together under one title; an empty title shows no title row."""

    title: str
    rows: tuple[Row, ...]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table with its caption and the notes that its cells refer to, as (mark, text)."""

    caption: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
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


def text_cell(text: str, *, tone: str = "", detail: str = "", head: bool = False) -> TableCell:
    """A cell of plain text; empty text shows the dash."""
    return TableCell(text=text or MISSING, tone=tone, detail=detail, head=head)


def count_cell(count: int | None, *, tone: str = "") -> TableCell:
    """A cell with a count."""
    return TableCell(text=format_count(count), tone=tone)


def figure_cell(figure: Figure, write: Callable[[float | None], str], notes: Footnotes) -> TableCell:
    """A cell with a figure and its interval below; without a value, the dash, what is needed, and why."""
    if figure.value is not None:
        reason_mark = notes.mark(figure.reason) if figure.reason else ""
        return TableCell(text=write(figure.value), detail=format_interval(figure, write), mark=reason_mark)
    return TableCell(
        text=MISSING,
        detail=needed_text(figure),
        mark=notes.mark(figure.reason) if figure.reason else "",
        tone="missing",
    )


def format_interval(figure: Figure, write: Callable[[float | None], str]) -> str:
    """Return "[low, high]", empty without an interval; an open end is the dash."""
    if figure.low is None and figure.high is None:
        return ""
    return f"[{write(figure.low)}, {write(figure.high)}]"


def needed_text(figure: Figure) -> str:
    """Return "12 more needed" where the figure says so."""
    return f"{figure.needed:,} more needed" if figure.needed else ""


def panels_are_open(row_counts: Iterable[int]) -> bool:
    """Whether all panels together are short enough to stand open."""
    return sum(row_counts) <= 40


def _letters(index: int) -> str:
    head, tail = divmod(index, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + tail)


def _join_reasons(texts: list[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    return f"{texts[0]} (and {len(texts) - 1} more of this kind, with other numbers)"


WIDTH_COLUMNS = 100
_INDENT = "  "


def printable(text: str) -> str:
    """Replace control and formatting characters, line breaks included, by a visible stand-in."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c)[0] == "C" else c for c in text)


def section(title: str, lines: list[str]) -> list[str]:
    """Put a title above lines; no lines, no title."""
    return [title, *lines] if lines else []


def wrap(text: str) -> list[str]:
    """Break a text into indented lines."""
    return textwrap.wrap(
        printable(text),
        WIDTH_COLUMNS,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_on_hyphens=False,
    )


def bullets(texts: Iterable[str]) -> list[str]:
    """Make every text a point of a list."""
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            printable(text),
            WIDTH_COLUMNS,
            initial_indent=f"{_INDENT}- ",
            subsequent_indent=f"{_INDENT}  ",
            break_on_hyphens=False,
        )
    ]


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Set rows in columns, two spaces apart; a missing text shows the dash."""
    clean = [[printable(text) or MISSING for text in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*clean, strict=True)]
    return [
        (_INDENT + "  ".join(t + " " * (w - _width(t)) for t, w in zip(row, widths, strict=True))).rstrip()
        for row in clean
    ]


def _width(text: str) -> int:
    """Columns on a terminal: wide East Asian characters take two, combining marks none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


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
