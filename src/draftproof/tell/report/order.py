"""Order and drift: the blocks of each load over time, what place and hour did, and the noise floor.

Pure view of `Results.order`.
"""

from collections.abc import Iterable, Sequence

import msgspec

from draftproof.judge.results.order import BlockPoint, DriftRow, NoiseRow, PlaceRow, ProcessSummary
from draftproof.judge.results.run import Results
from draftproof.tell.report.charts import Axis, log_position, ratio_axis
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    comparison_label,
    format_change,
    format_count,
    format_ratio,
    format_significant,
    metric_label,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Row,
    Table,
    TableCell,
    figure_cell,
    label_column,
    order_arms,
    order_loads,
    text_cell,
    title_of_load,
)

_MOST_POINTS = 150  # of one arm in one plot: more cannot be told apart
_OPEN_PLOTS = 4


class BlockMark(msgspec.Struct, frozen=True):
    """One block in a plot: its place in per cent of width and height, and what it says."""

    x: float
    y: float
    tone: str
    shape: str
    title: str


class BlockPlot(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one load over time: the ratio on a logarithmic axis, upwards is slower."""

    title: str
    opened: bool
    axis: Axis
    length: str
    marks: tuple[BlockMark, ...]
    left_out: int


class OrderSection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on order and drift; `sentence` alone where there is nothing."""

    sentence: str
    arms: tuple[tuple[str, str], ...]
    plots: tuple[BlockPlot, ...]
    noise: Table
    drifts: Table
    places: Table


_SHAPES = {"alternative": "square", "baseline_null": "diamond"}


def build_order(results: Results) -> OrderSection:
    """Lay out the blocks, drifts, places and the noise floor."""
    order = results.order
    points = order.points if order else ()
    loads = [load for load in order_loads(results) if any(p.load == load for p in points)]
    return OrderSection(
        sentence=order_sentence(results),
        arms=tuple((arm, arm_label(arm)) for arm in order_arms(results, {p.arm for p in points})),
        plots=tuple(
            _plot(results, load, [p for p in points if p.load == load], opened=index < _OPEN_PLOTS)
            for index, load in enumerate(loads)
        ),
        noise=_noise(results, order.noise if order else ()),
        drifts=_drifts(results, order.drifts if order else ()),
        places=_places(results, order.places if order else ()),
    )


def order_sentence(results: Results) -> str:
    """Say how many tests of order and drift found something, and how clean the null is."""
    if results.order is None:
        return "These results say nothing of order and drift; re-compute them with draftproof report."
    tests = [row.adjusted_p for row in results.order.places]
    tests += [row.adjusted_p for row in results.order.drifts]
    told = [p for p in tests if p is not None]
    found = sum(p <= 1 - results.confidence for p in told)
    text = (
        f"{found} of {len(told)} tests of place and drift find something after correction"
        if told
        else "Too few blocks to test place and drift"
    )
    untold = len(tests) - len(told)
    text += f"; {untold} more had too few blocks." if told and untold else "."
    told_apart = _process_sentence(results.order.processes)
    return " ".join(part for part in (text, _null_sentence(results.order.noise), told_apart) if part)


def _process_sentence(found: ProcessSummary | None) -> str:
    """Say how many processes answered, and by how much they differ."""
    if found is None or None in found.counts.values():
        return ""
    fewest = min((count for count in found.counts.values() if count is not None), default=0)
    if fewest == 1:
        return "One process answered for an arm: what another start of it would change is not known."
    if found.spread is None or found.degrees is None:
        return f"{fewest} processes or more answered for each arm."
    return (
        f"{fewest} processes or more answered for each arm; they differ by {100 * (found.spread - 1):.1f} % "
        f"(standard deviation, {found.degrees:.1f} degrees of freedom), which is in every interval."
    )


def _null_sentence(noise: Sequence[NoiseRow]) -> str:
    known = [row for row in noise if row.covers_one is not None]
    if not noise:
        return "Without a null arm there is no noise floor."
    if not known:
        return "The null has no estimate, so the noise floor is not known."
    unclean = sum(row.covers_one is False for row in known)
    if not unclean:
        return f"Two equal arms show no difference in any of {len(known)} comparisons."
    return f"Two equal arms differ in {unclean} of {len(known)} comparisons."


def _plot(results: Results, load: str, points: Sequence[BlockPoint], *, opened: bool) -> BlockPlot:
    thresholds = results.thresholds
    axis = ratio_axis(
        [point.ratio for point in points],
        below=_edge(thresholds.get("minimum_gain"), -1),
        above=_edge(thresholds.get("harm_margin"), 1),
    )
    first = min(point.hours for point in points)
    span = max(point.hours for point in points) - first
    shown = _thin(results, points)
    return BlockPlot(
        title=title_of_load(results, load),
        opened=opened,
        axis=axis,
        length=_hours(span),
        marks=tuple(_mark(point, axis, first, span) for point in shown),
        left_out=len(points) - len(shown),
    )


def _edge(margin: float | None, sign: int) -> float | None:
    return None if margin is None else 1 + sign * margin


def _thin(results: Results, points: Sequence[BlockPoint]) -> list[BlockPoint]:
    """Keep every n-th block of an arm where there are too many to tell apart."""
    kept = []
    for arm in order_arms(results, {point.arm for point in points}):
        own = [point for point in points if point.arm == arm]
        kept += own[:: -(-len(own) // _MOST_POINTS)]
    return kept


def _mark(point: BlockPoint, axis: Axis, first: float, span: float) -> BlockMark:
    return BlockMark(
        x=round(7 + 91 * (point.hours - first) / span, 2) if span > 0 else 50.0,
        y=round(100 - log_position(point.ratio, axis.low, axis.high), 2),
        tone=point.arm,
        shape=_SHAPES.get(point.arm, "dot"),
        title=f"{arm_label(point.arm)}, block {point.block}: {format_ratio(point.ratio)}",
    )


def _noise(results: Results, rows: Sequence[NoiseRow]) -> Table:
    notes = Footnotes()
    groups = _by_load(
        results,
        [
            (
                row.load,
                Row(
                    cells=(
                        text_cell(metric_label(row.metric), head=True),
                        figure_cell(row.null, format_ratio, notes),
                        figure_cell(row.joint, format_ratio, notes),
                        text_cell(_floor(row.noise_floor)),
                        text_cell(_floor(row.null_difference)),
                        _yes_no(row.covers_one, bad=False),
                        _yes_no(row.effect_beyond, bad=None),
                    )
                ),
            )
            for row in rows
        ],
    )
    return Table(
        caption="The noise floor: two equal arms, all segments",
        columns=(
            label_column("Quantity"),
            Column(label="Null / baseline"),
            Column(label="Jointly"),
            Column(label="Noise floor"),
            Column(label="Null difference"),
            label_column("Null holds 1"),
            label_column("Candidate beyond it"),
        ),
        groups=groups,
        notes=notes.notes(),
    )


def _drifts(results: Results, rows: Sequence[DriftRow]) -> Table:
    notes = Footnotes()
    return _tests_table(
        results,
        "Drift of the deciding quantity over the blocks of a load",
        ("Arm or effect", "Change", "Over"),
        [
            (
                row,
                (
                    text_cell(_drift_name(row), head=True),
                    _told(format_change(row.change), row, notes),
                    text_cell(_hours(row.hours)),
                ),
            )
            for row in rows
        ],
        notes,
    )


def _places(results: Results, rows: Sequence[PlaceRow]) -> Table:
    notes = Footnotes()
    return _tests_table(
        results,
        "The deciding quantity by place in a block, first place first, as a factor of its mean",
        ("Arm", "By place"),
        [
            (
                row,
                (
                    text_cell("Every arm" if row.arm == "all" else arm_label(row.arm), head=True),
                    _told(" · ".join(format_ratio(r) for r in row.ratios or ()), row, notes),
                ),
            )
            for row in rows
        ],
        notes,
    )


def _tests_table(
    results: Results,
    caption: str,
    labels: tuple[str, ...],
    rows: Iterable[tuple[DriftRow | PlaceRow, tuple[TableCell, ...]]],
    notes: Footnotes,
) -> Table:
    """Return a table of tests by load: what is tested and found, then its p, corrected p and blocks."""
    listed = [
        (row.load, Row(cells=(*cells, *_p_cells(results, row), text_cell(format_count(row.blocks)))))
        for row, cells in rows
    ]
    return Table(
        caption=caption,
        columns=(
            label_column(labels[0]),
            *(Column(label=label) for label in (*labels[1:], "p", "Corrected p", "Blocks")),
        ),
        groups=_by_load(results, listed),
        notes=notes.notes(),
    )


def _by_load(results: Results, rows: Iterable[tuple[str, Row]]) -> tuple[Group, ...]:
    listed = list(rows)
    return tuple(
        Group(title=title_of_load(results, load), rows=tuple(row for at, row in listed if at == load))
        for load in order_loads(results)
        if any(at == load for at, _ in listed)
    )


def _drift_name(row: DriftRow) -> str:
    if row.versus is None:
        return arm_label(row.arm)
    return f"Effect: {comparison_label(row.arm, '')}{arm_label(row.versus).lower()}"


def _told(text: str, row: DriftRow | PlaceRow, notes: Footnotes) -> TableCell:
    """Return the figure, or the dash with what is needed and why."""
    if row.reason is None:
        return text_cell(text)
    needed = f"{row.needed:,} more needed" if row.needed else ""
    return TableCell(text=MISSING, detail=needed, mark=notes.mark(row.reason), tone="missing")


def _p_cells(results: Results, row: DriftRow | PlaceRow) -> tuple[TableCell, TableCell]:
    found = row.adjusted_p is not None and row.adjusted_p <= 1 - results.confidence
    return text_cell(_p(row.p)), text_cell(_p(row.adjusted_p), tone="bad" if found else "")


def _p(value: float | None) -> str:
    if value is None:
        return MISSING
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _floor(factor: float | None) -> str:
    return MISSING if factor is None else f"±{100 * (factor - 1):.1f}%"


def _yes_no(value: bool | None, *, bad: bool | None) -> TableCell:  # noqa: FBT001 - the value is what is shown
    if value is None:
        return TableCell(text=MISSING, tone="missing")
    return text_cell("yes" if value else "no", tone="bad" if bad is not None and value is bad else "")


def _hours(hours: float | None) -> str:
    if hours is None:
        return MISSING
    return f"{format_significant(hours)} h" if hours >= 1 else f"{format_significant(60 * hours)} min"
