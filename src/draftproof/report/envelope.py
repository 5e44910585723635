"""The envelope as a map: segment × load, each cell with its status in a word, its ratio and its reasons.

Pure view of `Results.cells`.
"""

from collections import Counter

import msgspec

from draftproof.report.context_bands import build_bands
from draftproof.report.grouping import order_loads, order_segments
from draftproof.report.labels import (
    STATUSES,
    Word,
    load_label,
    metric_label,
    segment_heading,
    segment_label,
    sentence_case,
)
from draftproof.report.quantities import format_change
from draftproof.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    figure_cell,
    format_interval,
    text_cell,
)
from draftproof.verdict.results import Cell, Reason, Results


class MapCell(msgspec.Struct, frozen=True, kw_only=True):
    """One field of the map: its status, the change in per cent and its interval."""

    status: str
    label: str
    glyph: str
    change: str
    interval: str


class EnvelopeMap(msgspec.Struct, frozen=True, kw_only=True):
    """The map, its legend with counts, and why each cell has its status; `loads` are (name, size)."""

    heading: str
    loads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[MapCell | None, ...]], ...]
    legend: tuple[tuple[str, Word, int], ...]
    metric: str
    sentence: str
    bands: tuple[Panel, ...]
    bands_sentence: str
    reasons: Table
    reasons_open: bool


def build_map(results: Results) -> EnvelopeMap:
    """Lay the cells out as segments × loads."""
    cells = {(cell.segment, cell.load): cell for cell in results.cells}
    segments = order_segments(results, {cell.segment for cell in results.cells})
    loads = order_loads(results)
    counts = Counter[str](cell.status for cell in results.cells)
    return EnvelopeMap(
        heading=segment_heading(results.segments),
        loads=tuple((load, size.short) for load, size in results.sizes.items()),
        rows=tuple(
            (segment_label(s), tuple(_map_cell(cells.get((s, ld))) for ld in loads)) for s in segments
        ),
        legend=tuple((status, word, counts[status]) for status, word in STATUSES.items()),
        metric=metric_label(results.metric),
        sentence=_sentence(counts, len(results.cells)),
        bands=build_bands(results),
        bands_sentence="The effect was not judged apart by length of context: too few prompts, or all alike.",
        reasons=_reasons_table(results),
        reasons_open=len(results.cells) <= 24,
    )


def _map_cell(cell: Cell | None) -> MapCell | None:
    if cell is None:
        return None
    word = STATUSES.get(cell.status, Word(cell.status, "", ""))
    return MapCell(
        status=cell.status,
        label=word.label,
        glyph=word.glyph,
        change=format_change(cell.effect.value),
        interval=format_interval(cell.effect, format_change),
    )


def _sentence(counts: Counter[str], total: int) -> str:
    if not total:
        return "No cell was judged."
    named = [f"{counts[s]} {word.label.lower()}" for s, word in STATUSES.items() if counts[s]]
    return f"Of {total} cell{'s' if total > 1 else ''}: {', '.join(named)}."


def _reasons_table(results: Results) -> Table:
    notes = Footnotes()
    loads = order_loads(results)
    segments = order_segments(results, {cell.segment for cell in results.cells})
    rival = any(cell.alternative_effect for cell in results.cells)
    ordered = sorted(results.cells, key=lambda c: (segments.index(c.segment), loads.index(c.load)))
    groups = tuple(
        Group(
            title=segment_label(s),
            rows=tuple(_cell_row(c, notes, with_alternative=rival) for c in ordered if c.segment == s),
        )
        for s in segments
    )
    return Table(
        caption="Why each cell has its status",
        columns=(
            Column(label="Load", numeric=False),
            Column(label="Status", numeric=False),
            Column(label="Candidate vs baseline"),
            *((Column(label="Alternative vs baseline"),) if rival else ()),
            Column(label="Reasons", numeric=False),
        ),
        groups=groups,
        notes=notes.notes(),
    )


def _cell_row(cell: Cell, notes: Footnotes, *, with_alternative: bool) -> Row:
    word = STATUSES.get(cell.status, Word(cell.status, "", ""))
    alternative = cell.alternative_effect
    beside = figure_cell(alternative, format_change, notes) if alternative else text_cell("")
    return Row(
        cells=(
            text_cell(load_label(cell.load, cell.size), head=True, tone="nowrap"),
            text_cell(f"{word.glyph} {word.label}", tone=f"status {cell.status}"),
            figure_cell(cell.effect, format_change, notes),
            *((beside,) if with_alternative else ()),
            reasons_cell(cell.reasons),
        )
    )


def reasons_cell(reasons: tuple[Reason, ...]) -> TableCell:
    """All reasons in one cell, each with the row it rests on below."""
    if not reasons:
        return text_cell("")
    (text, evidence), *more = ((sentence_case(r.text), r.evidence) for r in reasons)
    return TableCell(text=text, detail=evidence, tone="prose", more=tuple(more))
