"""Order and drift: the blocks of each load over time, what place and hour did, and the null difference.

Pure view of `Results.order`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from draftproof.judge.results.decide import BlockPoint, DriftRow, NoiseRow, PlaceRow, ProcessSummary
from draftproof.judge.results.run import Figure, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Axis, Mark, log_position, ratio_axis
from draftproof.tell.report.effects import deciding_margins
from draftproof.tell.report.kit import Column, Table, TableCell

_MOST_POINTS = 150  # of one arm in one plot: more cannot be told apart
_OPEN_PLOTS = 4


class BlockPlot(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one load over time: the ratio on a logarithmic axis, upwards is slower."""

    title: str
    opened: bool
    axis: Axis
    length: str
    marks: tuple[Mark, ...]
    left_out: int


class OrderSection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on order and drift; `sentence` alone where there is nothing."""

    sentence: str
    arms: tuple[str, ...]
    plots: tuple[BlockPlot, ...]
    noise: Table
    drifts: Table
    places: Table


def build_order(results: Results) -> OrderSection:
    """Lay out the blocks, drifts, places and the null difference."""
    order = results.order
    points = order.points if order else ()
    loads = [load for load in kit.order_loads(results) if any(p.load == load for p in points)]
    return OrderSection(
        sentence=order_sentence(results),
        arms=kit.order_arms(results, {p.arm for p in points}),
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
        f"{found} of {len(told)} tests of position and drift find something after correction"
        if told
        else "Too few blocks to test position and drift"
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
        return "Without a null arm there is no null difference."
    if not known:
        return "The null has no estimate, so the null difference is not known."
    unclean = sum(row.covers_one is False for row in known)
    if not unclean:
        return f"Two equal services show no difference in any of {len(known)} comparisons."
    return f"Two equal services differ in {unclean} of {len(known)} comparisons."


def _plot(results: Results, load: str, points: Sequence[BlockPoint], *, opened: bool) -> BlockPlot:
    below, above = deciding_margins(results)
    axis = ratio_axis([point.ratio for point in points], below=below, above=above)
    first = min(point.hours for point in points)
    span = max(point.hours for point in points) - first
    shown = _thin(results, points)
    return BlockPlot(
        title=kit.load_title(results, load),
        opened=opened,
        axis=axis,
        length=write.hours(span),
        marks=tuple(_mark(point, axis, first, span) for point in shown),
        left_out=len(points) - len(shown),
    )


def _thin(results: Results, points: Sequence[BlockPoint]) -> list[BlockPoint]:
    """Keep every n-th block of an arm where there are too many to tell apart."""
    kept = []
    for arm in kit.order_arms(results, {point.arm for point in points}):
        own = [point for point in points if point.arm == arm]
        kept += own[:: -(-len(own) // _MOST_POINTS)]
    return kept


def _mark(point: BlockPoint, axis: Axis, first: float, span: float) -> Mark:
    return Mark(
        x=round(7 + 91 * (point.hours - first) / span, 2) if span > 0 else 50.0,
        y=round(100 - log_position(point.ratio, axis.low, axis.high), 2),
        tone=point.arm,
        title=f"{words.arm(point.arm)}, block {point.block}: {write.ratio(point.ratio)}",
    )


def _noise(results: Results, rows: Sequence[NoiseRow]) -> Table:
    columns: tuple[Column[NoiseRow], ...] = (
        kit.left("Quantity", lambda one: kit.head(words.metric(one.metric))),
        kit.right("Null / baseline", lambda one: kit.figure(one.null, write.ratio)),
        kit.right("Jointly", lambda one: kit.figure(one.joint, write.ratio)),
        kit.right("Noise floor", lambda one: _floor(one.noise_floor)),
        kit.right("Null difference", lambda one: _floor(one.null_difference)),
        kit.left("Null holds 1", lambda one: _yes_no(one.covers_one, bad=False)),
        kit.left("Candidate beyond it", lambda one: _yes_no(one.effect_beyond, bad=None)),
    )
    caption = "The null difference: two equal services, all tasks"
    return kit.table(caption, columns, kit.by_load(results, rows, ordered=True))


def _is_found(results: Results, row: DriftRow | PlaceRow) -> bool:
    return row.adjusted_p is not None and row.adjusted_p <= 1 - results.confidence


def _drifts(results: Results, rows: Sequence[DriftRow]) -> Table:
    """Return the drift of the effects, and that of an arm where a test finds one."""
    rows = [one for one in rows if one.versus is not None or _is_found(results, one)] or rows
    columns: tuple[Column[DriftRow], ...] = (
        kit.left("Arm or effect", lambda one: kit.head(_drift_name(one))),
        kit.right("Change", lambda one: _tested(one, write.change(one.change))),
        kit.right("Over", lambda one: write.hours(one.hours)),
        *_test_columns(results),
    )
    caption = "Drift of the deciding quantity over the blocks of a load"
    return kit.table(caption, columns, kit.by_load(results, rows, ordered=True))


def _places(results: Results, rows: Sequence[PlaceRow]) -> Table:
    """Return what position does over all arms, and for an arm where a test finds it."""
    rows = [one for one in rows if one.arm == "all" or _is_found(results, one)] or rows
    columns: tuple[Column[PlaceRow], ...] = (
        kit.left("Arm", lambda one: kit.head("Every arm" if one.arm == "all" else words.arm(one.arm))),
        kit.right("By position", lambda one: _tested(one, " · ".join(map(write.ratio, one.ratios or ())))),
        *_test_columns(results),
    )
    caption = "The deciding quantity by position in a block, first position first, as a factor of its mean"
    return kit.table(caption, columns, kit.by_load(results, rows, ordered=True))


def _test_columns(results: Results) -> tuple[Column[Any], ...]:
    """Return p, corrected p and blocks of a test."""

    def corrected(row: DriftRow | PlaceRow) -> TableCell:
        tone = "bad" if _is_found(results, row) else ""
        return kit.text(write.probability(row.adjusted_p), tone)

    return (
        kit.right("p", lambda one: write.probability(one.p)),
        kit.right("Corrected p", corrected),
        kit.right("Blocks", lambda one: write.count(one.blocks)),
    )


def _drift_name(row: DriftRow) -> str:
    if row.versus is None:
        return words.arm(row.arm)
    return f"Effect: {words.comparison(row.arm, '')}{words.arm(row.versus).lower()}"


def _tested(row: DriftRow | PlaceRow, found: str) -> TableCell:
    """Return the figure, or the dash with what is needed and why."""
    if row.reason is None:
        return kit.text(found)
    return kit.figure(Figure(value=None, needed=row.needed, reason=row.reason), write.number)


def _floor(factor: float | None) -> str:
    return write.MISSING if factor is None else f"±{100 * (factor - 1):.1f}%"


def _yes_no(value: bool | None, *, bad: bool | None) -> TableCell:  # noqa: FBT001 - the value is what is shown
    if value is None:
        return kit.missing(write.MISSING)
    return kit.text("yes" if value else "no", "bad" if bad is not None and value is bad else "")
