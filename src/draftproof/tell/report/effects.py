"""The chart of all cells, the map of a large run, why each cell has its status, ratios of all metrics.

Pure view of `Results.effects`, `Results.cells` and `Results.context_bands`.
"""

from collections.abc import Sequence

import msgspec

from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.results.decide import ContextBand
from draftproof.judge.results.run import Cell, Effect, Figure, Reason, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Axis, Band, Whisker, log_position, ratio_axis, whisker
from draftproof.tell.report.kit import Column, Group, Panel, Table, TableCell
from draftproof.tell.report.summary import GridCell, SummaryRow, find_deciding, summarise
from draftproof.tell.report.tokens import describe_basis

_FIRST_METRICS = ("tpot_ns", "ttft_from_schedule_ns", "e2e_from_schedule_ns")
_GUARDRAIL_MARGINS = {
    "ttft_from_schedule_ns": "ttft_margin",
    "e2e_from_schedule_ns": "e2e_margin",
    "output_tokens": "output_length_margin",
}
_TWO_SIDED = frozenset({"output_tokens"})
MOST_BANDS = 120
_WHOLE_LOADS = 4
MOST_DRAWN = 24  # cells: more than these would push the figures off the first page


class ChartRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the chart: its load, what it shows, and where the null's interval of that load is."""

    load: str
    cell: GridCell
    mark: Whisker
    noise: Band | None


class CellChart(msgspec.Struct, frozen=True, kw_only=True):
    """Every task at every load on one logarithmic axis of changes; groups are tasks."""

    axis: Axis
    groups: tuple[Group[ChartRow], ...]
    has_noise: bool


def build_chart(results: Results) -> CellChart | None:
    """Draw the cells with their intervals; None of more than fit a first page, or without any value."""
    grid, loads = summarise(results).grid, kit.order_loads(results)
    cells = [cell for _, row in grid for cell in row if cell is not None]
    if len(cells) > MOST_DRAWN or all(cell.figure.value is None for cell in cells):
        return None
    below, above = deciding_margins(results)
    nulls = {row.load: row.null_change for row in find_deciding(results) if row.null_change is not None}
    figures = [*(cell.figure for cell in cells), *nulls.values()]
    ends = [end for one in figures for end in (one.value, one.low, one.high)]
    axis = ratio_axis(ends, below=below, above=above, label=_label)
    groups = tuple(
        Group(
            title=task,
            rows=tuple(
                ChartRow(load=load, cell=cell, mark=_draw(axis, cell), noise=_shade(axis, nulls.get(load)))
                for load, cell in zip(loads, row, strict=True)
                if cell is not None
            ),
        )
        for task, row in grid
    )
    return CellChart(axis=axis, groups=groups, has_noise=bool(nulls))


def _label(ratio: float | None) -> str:
    return "0%" if ratio == 1 else write.change(ratio)


def _draw(axis: Axis, cell: GridCell) -> Whisker:
    return whisker(axis, cell.figure, "candidate")


def _shade(axis: Axis, null: Figure | None) -> Band | None:
    """Return where the interval of two equal services is on the axis."""
    if null is None or null.low is None or null.high is None:
        return None
    start, end = (log_position(one, axis.low, axis.high) for one in (null.low, null.high))
    return Band(start, round(end - start, 2), "noise")


def deciding_margins(results: Results) -> tuple[float | None, float | None]:
    """Return the ratios below which the plan sees a gain, above which a harm; None without a margin."""
    gain, harm = results.thresholds.get("minimum_gain"), results.thresholds.get("harm_margin")
    return (None if gain is None else 1 - gain), (None if harm is None else 1 + harm)


def build_ratios(results: Results) -> tuple[Panel, ...]:
    """Return all comparisons over all tasks with what is allowed, and the candidate's by task."""
    by_load = [(kit.load_title(results, load), _compare(results, load)) for load in kit.order_loads(results)]
    whole = kit.table("All tasks", _ratio_columns(results, "Arms"), by_load)
    by_task = kit.panels(results, lambda load: _task_table(results, load), first_open=False)
    return (Panel(title="All tasks", opened=True, table=whole), *by_task) if whole.groups else ()


class _Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """A row: its name and what it shows of each metric; a text takes the place of a figure."""

    name: str
    figures: dict[str, Figure]
    texts: dict[str, str] = {}


def _ratio_columns(results: Results, heading: str) -> list[Column[_Ratios]]:
    """Return a column for each metric, the deciding one first, that says how first chunks are counted."""

    def column(metric: str) -> Column[_Ratios]:
        basis = describe_basis(
            one for one in results.effects if one.metric == metric and one.arm == "candidate"
        )
        return kit.right(
            ", ".join(filter(None, (words.metric(metric), basis))), lambda row: _ratio_cell(row, metric)
        )

    metrics = dict.fromkeys(one.metric for one in _in_order(results))
    return [kit.left(heading, lambda row: kit.head(row.name)), *map(column, metrics)]


def _ratio_cell(row: _Ratios, metric: str) -> TableCell:
    if metric in row.texts:
        return kit.text(row.texts[metric])
    return kit.figure(row.figures.get(metric, Figure(value=None)), write.ratio)


def _compare(results: Results, load: str) -> list[_Ratios]:
    """Return a row for each comparison over all tasks of a load, and one of what the plan allows."""
    here = [one for one in _in_order(results) if (one.load, one.segment) == (load, words.POOLED)]
    rows = [
        _Ratios(
            name=words.comparison(*arms),
            figures={one.metric: one.ratio for one in here if (one.arm, one.versus) == arms},
        )
        for arms in dict.fromkeys((one.arm, one.versus) for one in here)
    ]
    allowed = {one.metric: _describe_allowed(results, one.metric) for one in here}
    return [*rows, *([_Ratios(name="Allowed for the candidate", figures={}, texts=allowed)] if rows else [])]


def _in_order(results: Results) -> list[Effect]:
    """Return the effects by arm, and of an arm the deciding metric first."""
    first = [results.metric, *_FIRST_METRICS]
    ranked = sorted(
        results.effects, key=lambda one: first.index(one.metric) if one.metric in first else len(first)
    )
    return kit.in_arm_order(results, ranked)


def _task_table(results: Results, load: str) -> Table:
    """Return the candidate's ratios of a load, a row for each task; of many tasks those that tell most."""
    here = [one for one in results.effects if one.load == load and (one.arm, one.versus) == DECISIVE]
    present = [
        name for name in kit.order_segments(results, {one.segment for one in here}) if name != words.POOLED
    ]
    kept = kit.choose_segments(results, load, kit.candidate_ratios(results, load))
    rows = [
        _Ratios(
            name=words.segment(name), figures={one.metric: one.ratio for one in here if one.segment == name}
        )
        for name in present
        if kept is None or name in kept
    ]
    return kit.table(
        f"Candidate / baseline by task, {kit.load_title(results, load)}",
        _ratio_columns(results, words.segment_heading(results.segments)),
        [("", rows)],
        left_out=kit.describe_left_out(len(present), len(rows)),
    )


def _describe_allowed(results: Results, metric: str) -> str:
    """Return the limits of the plan for a metric of the candidate, e.g. "at most 1.25"."""
    if metric == results.metric:
        below, above = deciding_margins(results)
        return f"gain below {write.ratio(below)}, harm above {write.ratio(above)}"
    margin = results.thresholds.get(_GUARDRAIL_MARGINS.get(metric, ""))
    if margin is None:
        return ""
    most = write.ratio(1 + margin)
    return f"{write.ratio(1 - margin)} to {most}" if metric in _TWO_SIDED else f"at most {most}"


def build_figures(results: Results) -> Table:
    """Return all tasks in the units people use; of many loads the deciding quantity alone."""
    rows = summarise(results).rows
    if len(results.loads) > _WHOLE_LOADS:
        rows = tuple(row for row in rows if row.quantity == results.metric)

    def change(row: SummaryRow) -> TableCell:
        return kit.text(f"{row.change} {row.interval}", "strong")

    columns: tuple[Column[SummaryRow], ...] = (
        kit.left("All tasks", lambda row: kit.head(row.label, "nowrap")),
        kit.left("Load", lambda row: row.load),
        kit.right("Off", lambda row: row.off),
        kit.right("On", lambda row: row.on),
        kit.right("Change, interval", change),
        kit.right("Equal services", lambda row: row.null),
        *(
            (kit.right("Alternative", lambda row: row.alternative),)
            if any(row.alternative for row in rows)
            else ()
        ),
    )
    return kit.table("All tasks: off, on and change", columns, [("", rows)])


class EnvelopeMap(msgspec.Struct, frozen=True, kw_only=True):
    """The map, its legend, and why each cell has its status; `loads` are (name, size)."""

    heading: str
    loads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[GridCell | None, ...]], ...]
    legend: tuple[tuple[str, words.Word], ...]
    metric: str
    bands: tuple[Panel, ...]
    bands_sentence: str
    reasons: Table
    reasons_open: bool


def build_map(results: Results) -> EnvelopeMap:
    """Lay the cells out as tasks × loads."""
    used = {cell.status for cell in results.cells}
    return EnvelopeMap(
        heading=words.segment_heading(results.segments),
        loads=tuple((load, size.short) for load, size in results.sizes.items()),
        rows=summarise(results).grid,
        legend=tuple((name, word) for name, word in words.STATUSES.items() if name in used),
        metric=words.metric(results.metric),
        bands=build_bands(results),
        bands_sentence="Context lengths were not evaluated apart: too few prompts, or all of one length.",
        reasons=_reasons_table(results),
        reasons_open=len(results.cells) <= MOST_DRAWN,
    )


def _reasons_table(results: Results) -> Table:
    """Return every cell with its reasons; those of all cells of a load are said once, in their own row."""
    has_alternative = any(cell.alternative_effect for cell in results.cells)
    alternative: Column[_Reasoned] = kit.right(
        "Alternative",
        lambda one: (
            kit.figure(one.cell.alternative_effect, write.change)
            if one.cell and one.cell.alternative_effect
            else ""
        ),
    )
    columns: tuple[Column[_Reasoned], ...] = (
        kit.left(
            words.segment_heading(results.segments),
            lambda one: kit.head(words.segment(one.cell.segment) if one.cell else "Every task", "nowrap"),
        ),
        kit.left("Status", lambda one: kit.status(one.cell.status) if one.cell else kit.text(" ")),
        kit.right(
            "Change", lambda one: kit.figure(one.cell.effect, write.change) if one.cell else kit.text(" ")
        ),
        *((alternative,) if has_alternative else ()),
        kit.left("Reasons", lambda one: reasons_cell(one.reasons)),
    )
    groups = [(title, _share_reasons(cells)) for title, cells in kit.cells_by_load(results)]
    return kit.table("Why each cell has its status", columns, groups)


class _Reasoned(msgspec.Struct, frozen=True, kw_only=True):
    """A cell with the reasons that are its own, or no cell and those of every cell of the load."""

    cell: Cell | None
    reasons: tuple[Reason, ...]


def _share_reasons(cells: Sequence[Cell]) -> list[_Reasoned]:
    texts = [{reason.text for reason in cell.reasons} for cell in cells]
    shared = set.intersection(*texts) if len(texts) > 1 else set()
    own = [
        _Reasoned(cell=cell, reasons=tuple(one for one in cell.reasons if one.text not in shared))
        for cell in cells
    ]
    common = tuple(one for one in cells[0].reasons if one.text in shared) if shared else ()
    return [*([_Reasoned(cell=None, reasons=common)] if common else []), *own]


def reasons_cell(reasons: tuple[Reason, ...]) -> TableCell:
    """All reasons in one cell."""
    if not reasons:
        return kit.text(" ")
    text, *more = (words.sentence_case(reason.text) for reason in reasons)
    return TableCell(text=text, tone="prose", more=tuple((one, "") for one in more))


def build_bands(results: Results) -> tuple[Panel, ...]:
    """Return one folding table of bands of contexts, none without bands; harm first where there are many."""
    rows = results.context_bands
    if not rows:
        return ()
    harmed = [one for one in rows if one.reading == "harm"]
    harm_first = sorted(rows, key=lambda one: one.reading != "harm")
    shown = rows if len(rows) <= MOST_BANDS else harm_first[:MOST_BANDS]
    more = f" ({len(rows) - len(shown):,} more rows in results.json)" if len(rows) > len(shown) else ""
    title = f"Does it hold for long contexts? {_count(len(harmed))}{more}"
    return (Panel(title=title, opened=bool(harmed) or len(rows) <= 12, table=_band_table(results, shown)),)


def _count(harmed: int) -> str:
    if not harmed:
        return "No band of context lengths shows harm"
    return "1 band of context lengths shows harm" if harmed == 1 else f"{harmed} bands show harm"


def _band_table(results: Results, rows: Sequence[ContextBand]) -> Table:
    columns: tuple[Column[ContextBand], ...] = (
        kit.left("Load", lambda one: kit.head(kit.load_title(results, one.load), "nowrap")),
        kit.right("Context (tokens)", _context),
        kit.left("Reading", lambda one: kit.status(one.reading)),
        kit.right("Candidate vs baseline", lambda one: kit.figure(band_figure(one), write.change)),
        kit.right("Prompts", lambda one: write.count(one.prompts)),
    )
    return kit.table("The effect by length of the context", columns, kit.by_segment(results, rows))


def _context(band: ContextBand) -> str:
    return f"{write.count(band.min_context_tokens)} to {write.count(band.max_context_tokens)}"


def band_figure(band: ContextBand) -> Figure:
    """Return the effect of a band of contexts as a figure."""
    return Figure(
        value=band.ratio, low=band.low, high=band.high, n=band.pairs, needed=band.needed, reason=band.reason
    )
