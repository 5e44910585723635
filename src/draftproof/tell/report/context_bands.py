"""Whether the effect holds for long contexts: bands of prompts by length, cell by cell. Pure view."""

from collections.abc import Sequence

from draftproof.judge.results.decision import ContextBand
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Results
from draftproof.tell.report.quantities import STATUSES, format_change, format_count, segment_label
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    count_cell,
    figure_cell,
    label_column,
    order_segments,
    text_cell,
    title_of_load,
)

MOST_ROWS = 120


def build_bands(results: Results) -> tuple[Panel, ...]:
    """Return one folding table, none without bands; harm comes first where there are too many rows."""
    rows = results.context_bands
    if not rows:
        return ()
    harmed = [one for one in rows if one.reading == "harm"]
    shown = (
        list(rows)
        if len(rows) <= MOST_ROWS
        else (harmed + [one for one in rows if one not in harmed])[:MOST_ROWS]
    )
    more = f" ({len(rows) - len(shown):,} more rows in results.json)" if len(rows) > len(shown) else ""
    title = f"Does it hold for long contexts? {_count(harmed)}{more}"
    return (Panel(title=title, opened=bool(harmed) or len(rows) <= 12, table=_table(results, shown)),)


def _count(harmed: Sequence[ContextBand]) -> str:
    if not harmed:
        return "No band of context lengths shows harm"
    return "1 band of context lengths shows harm" if len(harmed) == 1 else f"{len(harmed)} bands show harm"


def _table(results: Results, rows: Sequence[ContextBand]) -> Table:
    notes = Footnotes()
    groups = tuple(
        Group(
            title=segment_label(segment),
            rows=tuple(_row(results, one, notes) for one in rows if one.segment == segment),
        )
        for segment in order_segments(results, {one.segment for one in rows})
    )
    return Table(
        caption="The effect by length of the context",
        columns=(
            label_column("Load"),
            Column(label="Context (tokens)"),
            label_column("Reading"),
            Column(label="Candidate vs baseline"),
            Column(label="Prompts"),
        ),
        groups=groups,
        notes=notes.notes(),
    )


def _row(results: Results, band: ContextBand, notes: Footnotes) -> Row:
    word = STATUSES[band.reading]
    figure = Figure(
        value=band.ratio, low=band.low, high=band.high, n=band.pairs, needed=band.needed, reason=band.reason
    )
    return Row(
        cells=(
            text_cell(title_of_load(results, band.load), head=True, tone="nowrap"),
            text_cell(f"{format_count(band.min_context_tokens)} to {format_count(band.max_context_tokens)}"),
            text_cell(f"{word.glyph} {word.label}", tone=f"status {band.reading}"),
            figure_cell(figure, format_change, notes),
            count_cell(band.prompts),
        )
    )
