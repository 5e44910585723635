"""Tables of percentiles per arm, load and segment: failure-inclusive, and successes only beside them.

Pure view of `Results.arm_cells`.
"""

from collections.abc import Callable

import msgspec

from draftproof.report.basis import describe_arm_basis
from draftproof.report.grouping import (
    label_column,
    make_panels,
    order_loads,
    segment_groups,
    title_of_load,
)
from draftproof.report.labels import arm_label
from draftproof.report.quantities import MISSING, NS_PER_MS, format_ms, format_share, format_significant
from draftproof.report.view import (
    Column,
    Footnotes,
    Panel,
    Row,
    Table,
    TableCell,
    count_cell,
    figure_cell,
    text_cell,
)
from draftproof.verdict.results import ArmCell, Percentiles, Results

_ALL_REQUESTS = "All requests, a failure counts as infinite (ms)"
_OK_ONLY = "Successes only (ms)"
_COLUMNS = (
    label_column("Arm"),
    Column(label="Requests"),
    *(Column(label=label, over=_ALL_REQUESTS) for label in ("p50", "p95", "p99")),
    *(Column(label=label, over=_OK_ONLY) for label in ("p50", "p95", "p99", "mean")),
)
_SMOOTHNESS_COLUMNS = (
    label_column("Arm"),
    Column(label="p50", over="Gap between chunks (ms)"),
    Column(label="p99", over="Gap between chunks (ms)"),
    Column(label="longest", over="Gap between chunks (ms)"),
    Column(label="Stalls"),
    Column(label="On time"),
    Column(label="Output tokens, mean"),
)


class LatencyPart(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity: its name, its formula in a line, and a table per load."""

    title: str
    definition: str
    panels: tuple[Panel, ...]


def build_latency(results: Results) -> tuple[LatencyPart, ...]:
    """The three clocks and the smoothness of the stream."""
    return (
        _part(
            results,
            "Time per token",
            "(last content chunk − first content chunk) / (output tokens − tokens in it), per request",
            lambda cell: cell.tpot,
            basis=describe_arm_basis,
        ),
        _part(
            results,
            "Time to first token",
            "first content chunk − the time the request was due, so waiting in the client counts",
            lambda cell: cell.ttft,
        ),
        _part(
            results,
            "End-to-end time",
            "last event − the time the request was due",
            lambda cell: cell.e2e,
            first_open=False,
        ),
        _smoothness(results),
    )


def _part(
    results: Results,
    title: str,
    definition: str,
    pick: Callable[[ArmCell], Percentiles],
    *,
    basis: Callable[[ArmCell], str] | None = None,
    first_open: bool = True,
) -> LatencyPart:
    tables = [
        (title_of_load(results, load), _table(results, load, title, pick, basis=basis))
        for load in order_loads(results)
    ]
    return LatencyPart(title=title, definition=definition, panels=make_panels(tables, first_open=first_open))


def _table(
    results: Results,
    load: str,
    title: str,
    pick: Callable[[ArmCell], Percentiles],
    *,
    basis: Callable[[ArmCell], str] | None,
) -> Table:
    notes = Footnotes()
    groups = segment_groups(results, load, lambda cell: _row(cell, pick(cell), notes, basis))
    return Table(
        caption=f"{title}, {title_of_load(results, load)}",
        columns=(*_COLUMNS, *((label_column("Basis"),) if basis else ())),
        groups=groups,
        notes=notes.notes(),
    )


def _row(
    cell: ArmCell, percentiles: Percentiles, notes: Footnotes, basis: Callable[[ArmCell], str] | None
) -> Row:
    p = percentiles
    figures = (p.p50, p.p95, p.p99, p.ok_p50, p.ok_p95, p.ok_p99, p.mean_ok)
    return Row(
        cells=(
            text_cell(arm_label(cell.arm), head=True, tone=f"arm {cell.arm}"),
            count_cell(cell.attempted),
            *(figure_cell(figure, format_ms, notes) for figure in figures),
            *((text_cell(basis(cell)),) if basis else ()),
        )
    )


def _smoothness(results: Results) -> LatencyPart:
    tables = [
        (title_of_load(results, load), _smoothness_table(results, load)) for load in order_loads(results)
    ]
    return LatencyPart(
        title="Smoothness of the stream",
        definition="gaps between content chunks; a stall is a gap above the plan's limit",
        panels=make_panels(tables, first_open=False),
    )


def _smoothness_table(results: Results, load: str) -> Table:
    notes = Footnotes()
    groups = segment_groups(results, load, lambda cell: _smoothness_row(cell, notes))
    return Table(
        caption=f"Smoothness, {title_of_load(results, load)}",
        columns=_SMOOTHNESS_COLUMNS,
        groups=groups,
        notes=notes.notes(),
    )


def _smoothness_row(cell: ArmCell, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(arm_label(cell.arm), head=True, tone=f"arm {cell.arm}"),
            text_cell(format_ms(cell.icl_p50_ns)),
            text_cell(format_ms(cell.icl_p99_ns)),
            _longest(cell),
            count_cell(cell.stall_count),
            figure_cell(cell.on_time_share, format_share, notes),
            figure_cell(cell.output_tokens_mean, format_significant, notes),
        )
    )


def _longest(cell: ArmCell) -> TableCell:
    longest = cell.longest_stall_ns
    return text_cell(MISSING if longest is None else format_significant(longest / NS_PER_MS))
