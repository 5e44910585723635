"""The pieces a page is made of: cells, rows, tables and folding panels, all strings and small numbers.

Pure data for the templates and the terminal. A cell that has no value carries a footnote mark; the table
carries the note.
"""

import re
from collections.abc import Callable, Iterable

import msgspec

from draftproof.report.quantities import MISSING, format_count
from draftproof.verdict.results import Figure


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
