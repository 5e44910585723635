"""Dot-and-whisker charts: the ratio of each arm to the baseline, per load and segment, on one log axis.

Pure view of `Results.effects`. The deciding metric comes first; the margins of the plan are shaded.

The envelope as a map: segment × load, each cell with its status in a word, its ratio and its reasons.

Pure view of `Results.cells`.
"""

from collections import Counter

import msgspec

from draftproof.judge.results.run import Cell, Effect, Figure, Reason, Results
from draftproof.tell.report.charts import Axis, Whisker, ratio_axis, whisker
from draftproof.tell.report.context_bands import build_bands
from draftproof.tell.report.delivery import describe_basis
from draftproof.tell.report.quantities import (
    MISSING,
    STATUSES,
    Word,
    comparison_label,
    format_change,
    format_ratio,
    load_label,
    metric_label,
    segment_heading,
    segment_label,
    sentence_case,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    choose_segments,
    describe_left_out,
    figure_cell,
    format_interval,
    needed_text,
    order_arms,
    order_loads,
    order_segments,
    panels_are_open,
    text_cell,
    title_of_load,
)

_FIRST_METRICS = ("tpot_ns", "ttft_from_schedule_ns", "e2e_from_schedule_ns")
_GUARDRAIL_MARGINS = {
    "ttft_from_schedule_ns": "ttft_margin",
    "e2e_from_schedule_ns": "e2e_margin",
    "output_tokens": "output_length_margin",
}


_TWO_SIDED = frozenset({"output_tokens"})


class EffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm against the baseline: its mark on the axis and the same in figures."""

    arm: str
    tone: str
    whisker: Whisker
    ratio: str
    interval: str
    simultaneous: str
    simultaneous_mark: str
    pairs: str
    mark: str
    basis: str = ""


class EffectGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The arms of one segment."""

    title: str
    rows: tuple[EffectRow, ...]


class EffectPanel(msgspec.Struct, frozen=True, kw_only=True):
    """One load level of a chart."""

    title: str
    opened: bool
    groups: tuple[EffectGroup, ...]


class EffectChart(msgspec.Struct, frozen=True, kw_only=True):
    """All loads and segments of one metric on one axis, with what its bands mean."""

    metric: str
    statistic: str
    decides: bool
    axis: Axis
    gain_label: str
    harm_label: str
    panels: tuple[EffectPanel, ...]
    notes: tuple[tuple[str, str], ...]


def build_effect_charts(results: Results) -> tuple[EffectChart, ...]:
    """One chart for each metric and statistic that has effects, the deciding one first.

    None where no effect has a value: empty axes would say no more than the reasons of the cells do.
    """
    if all(effect.ratio.value is None for effect in results.effects):
        return ()
    keys = dict.fromkeys((e.metric, e.statistic) for e in results.effects)
    return tuple(_chart(results, *key) for key in sorted(keys, key=lambda k: _rank(results, *k)))


def _rank(results: Results, metric: str, statistic: str) -> tuple[bool, int, str, str]:
    known = _FIRST_METRICS.index(metric) if metric in _FIRST_METRICS else len(_FIRST_METRICS)
    return (not _decides(results, metric, statistic), known, metric, statistic)


def _decides(results: Results, metric: str, statistic: str) -> bool:
    return (metric, statistic) == (results.metric, results.statistic)


def _chart(results: Results, metric: str, statistic: str) -> EffectChart:
    effects = [e for e in results.effects if (e.metric, e.statistic) == (metric, statistic)]
    decides = _decides(results, metric, statistic)
    below, above = _margins(results, metric, decides=decides)
    tone = "gain" if decides else "harm"
    ends = (x for e in effects for f in (e.ratio, e.simultaneous) for x in (f.value, f.low, f.high))
    axis = ratio_axis(ends, below=below, above=above, below_tone=tone)
    notes = Footnotes()
    return EffectChart(
        metric=metric_label(metric),
        statistic=statistic,
        decides=decides,
        axis=axis,
        gain_label=f"gain: below {format_ratio(below)}" if below and decides else "",
        harm_label=_harm_label(below, above, decides=decides),
        panels=_panels(results, effects, axis, notes),
        notes=notes.notes(),
    )


def _margins(results: Results, metric: str, *, decides: bool) -> tuple[float | None, float | None]:
    thresholds = results.thresholds
    if decides:
        gain, harm = thresholds.get("minimum_gain"), thresholds.get("harm_margin")
        return (None if gain is None else 1 - gain), (None if harm is None else 1 + harm)
    margin = thresholds.get(_GUARDRAIL_MARGINS.get(metric, ""))
    if margin is None:
        return None, None
    return (1 - margin if metric in _TWO_SIDED else None), 1 + margin


def _harm_label(below: float | None, above: float | None, *, decides: bool) -> str:
    if above is None:
        return ""
    if decides:
        return f"harm: above {format_ratio(above)}"
    outside = f"below {format_ratio(below)} or " if below is not None else ""
    return f"guardrail: {outside}above {format_ratio(above)}"


def _panels(results: Results, effects: list[Effect], axis: Axis, notes: Footnotes) -> tuple[EffectPanel, ...]:
    opened = panels_are_open([len(effects)])
    loads = [name for name, _ in results.loads if any(e.load == name for e in effects)]
    return tuple(
        EffectPanel(
            title=title_of_load(results, load),
            opened=opened or index == 0,
            groups=_groups(results, load, [e for e in effects if e.load == load], axis, notes),
        )
        for index, load in enumerate(loads)
    )


def _groups(
    results: Results, load: str, effects: list[Effect], axis: Axis, notes: Footnotes
) -> tuple[EffectGroup, ...]:
    """All segments where the metric decides; in a large run else those with the largest effects."""
    arms = order_arms(results, {e.arm for e in effects})
    segments = order_segments(results, {e.segment for e in effects})
    ratios = {e.segment: e.ratio.value for e in effects if e.arm == "candidate"}
    decides = any(_decides(results, e.metric, e.statistic) for e in effects)
    kept = None if decides else choose_segments(results, load, ratios)
    groups = []
    for segment in segments:
        if kept is None or segment in kept:
            here = sorted((e for e in effects if e.segment == segment), key=lambda e: arms.index(e.arm))
            rows = tuple(_row(effect, axis, notes) for effect in here)
            groups.append(EffectGroup(title=segment_label(segment), rows=rows))
    left_out = describe_left_out(len(segments), len(groups))
    return (*groups, *((EffectGroup(title=left_out, rows=()),) if left_out else ()))


def _row(effect: Effect, axis: Axis, notes: Footnotes) -> EffectRow:
    ratio, simultaneous = effect.ratio, effect.simultaneous
    mark = whisker(axis, ratio.value, ratio.low, ratio.high, effect.arm)
    return EffectRow(
        arm=comparison_label(effect.arm, effect.versus),
        tone=mark.tone,
        whisker=mark,
        ratio=MISSING if ratio.value is None else format_ratio(ratio.value),
        interval=_interval(ratio),
        simultaneous=_interval(simultaneous),
        simultaneous_mark=_mark_apart(simultaneous.reason, ratio.reason, notes),
        pairs=f"{effect.pairs:,} / {effect.prompts:,}",
        mark=notes.mark(ratio.reason) if ratio.reason else "",
        basis=describe_basis([effect]),
    )


def _interval(figure: Figure) -> str:
    return format_interval(figure, format_ratio) or needed_text(figure) or MISSING


def _mark_apart(reason: str | None, stated: str | None, notes: Footnotes) -> str:
    """The mark of a reason that the row does not state already."""
    return notes.mark(reason) if reason and reason != stated else ""


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
