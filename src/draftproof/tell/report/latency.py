"""Tables of percentiles per arm, load and segment: failure-inclusive, and successes only beside them.

Pure view of `Results.arm_cells`.

The tail: ratios of a far quantile with failed requests in it, candidate and null beside each other.

Pure view of `Results.tail_effects`.
"""

from collections.abc import Callable

import msgspec

from draftproof.judge.results.run import ArmCell, Effect, Figure, Percentiles, Results
from draftproof.tell.report.delivery import describe_arm_basis, describe_basis
from draftproof.tell.report.quantities import (
    MISSING,
    NS_PER_MS,
    arm_label,
    format_ms,
    format_ratio,
    format_share,
    format_significant,
    metric_label,
    segment_label,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    candidate_ratios,
    choose_segments,
    count_cell,
    describe_left_out,
    figure_cell,
    label_column,
    make_panels,
    order_loads,
    order_segments,
    segment_groups,
    text_cell,
    title_of_load,
)

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


_ARMS = (("candidate", "Candidate"), ("baseline_null", "Null"))
_NOT_SHOWN = "tail_not_shown"

Key = tuple[str, str, str, str]  # metric, arm, segment, load


def build_tails(results: Results) -> tuple[Panel, ...]:
    """One panel per load: the pooled segment first, each metric with the candidate and the null."""
    index = {(one.metric, one.arm, one.segment, one.load): one for one in results.tail_effects}
    return make_panels(
        [
            (title_of_load(results, load), _tail_table(results, index, load))
            for load in order_loads(results)
            if any(key[3] == load for key in index)
        ]
    )


def tails_title(results: Results) -> str:
    """Return "The tail: p95 against the baseline"; the quantile is the plan's."""
    return f"The tail: {_quantile(results)} against the baseline"


def tails_sentence(results: Results) -> str:
    """Say what is compared, the margin, and in how many cells the tail is not shown to hold."""
    if not results.tail_effects:
        return "These results hold no comparison of the tail; re-compute them with draftproof report."
    margin, basis = results.thresholds.get("tail_margin"), describe_basis(results.tail_effects)
    allowed = "" if margin is None else f" It may grow by at most {format_share(margin)}."
    unseen = sum(any(r.code == _NOT_SHOWN for r in cell.reasons) for cell in results.cells)
    shown = (
        f" In {unseen} of {len(results.cells)} cells this is not shown; with this evidence that is noted and "
        "withholds no gain."
        if unseen
        else ""
    )
    return (
        f"{_quantile(results)} of the same pairs, every failed request counted as infinitely slow, shown "
        f"over the whole load and blamed on a cell only where its own requests agree.{allowed}{shown}"
        f"{f' Time per token: {basis}.' if basis else ''}"
    )


def _quantile(results: Results) -> str:
    return next((one.statistic for one in results.tail_effects), "p95")


def _tail_table(results: Results, index: dict[Key, Effect], load: str) -> Table:
    metrics = list(dict.fromkeys(key[0] for key in index))
    arms = [(arm, label) for arm, label in _ARMS if any(key[1] == arm for key in index)]
    columns = [label_column("Segment")]
    for metric in metrics:
        columns += [Column(label=label, over=metric_label(metric)) for _, label in arms]
        columns.append(Column(label="Pairs / prompts", over=metric_label(metric)))
    notes = Footnotes()
    present = order_segments(results, {key[2] for key in index if key[3] == load})
    chosen = choose_segments(results, load, candidate_ratios(results, load))
    shown = [segment for segment in present if chosen is None or segment in chosen]
    rows = tuple(
        Row(
            cells=(
                text_cell(segment_label(segment), head=True),
                *(
                    cell
                    for metric in metrics
                    for cell in _cells(
                        {arm: index.get((metric, arm, segment, load)) for arm, _ in arms}, notes
                    )
                ),
            )
        )
        for segment in shown
    )
    left_out = describe_left_out(len(present), len(shown))
    groups = (Group(title="", rows=rows),) if rows else ()
    return Table(
        caption=f"Ratio of {_quantile(results)} to the baseline, {title_of_load(results, load)}",
        columns=tuple(columns),
        groups=(*groups, *((Group(title=left_out, rows=()),) if left_out and groups else ())),
        notes=notes.notes(),
    )


def _cells(found: dict[str, Effect | None], notes: Footnotes) -> list[TableCell]:
    """Return one metric of one segment: a ratio per arm, then the candidate's pairs."""
    first = found.get("candidate")
    return [
        *(figure_cell(_ratio(one), format_ratio, notes) for one in found.values()),
        text_cell(f"{first.pairs:,} / {first.prompts:,}" if first else ""),
    ]


def _ratio(effect: Effect | None) -> Figure:
    return effect.ratio if effect else Figure(value=None, reason="not compared")
