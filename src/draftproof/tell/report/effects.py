"""The effects as dot-and-whisker charts on one log axis, and the envelope as a map of segments × loads.

Pure view of `Results.effects`, `Results.cells` and `Results.context_bands`. The deciding metric comes first;
the margins of the plan are shaded.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from draftproof.judge.results.decide import ContextBand
from draftproof.judge.results.run import Cell, Effect, Figure, Reason, Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Axis, ratio_axis
from draftproof.tell.report.kit import ChartPanel, Column, Footnotes, Group, Panel, Table, TableCell

_FIRST_METRICS = ("tpot_ns", "ttft_from_schedule_ns", "e2e_from_schedule_ns")
_GUARDRAIL_MARGINS = {
    "ttft_from_schedule_ns": "ttft_margin",
    "e2e_from_schedule_ns": "e2e_margin",
    "output_tokens": "output_length_margin",
}
_TWO_SIDED = frozenset({"output_tokens"})
MOST_BANDS = 120


class EffectChart(msgspec.Struct, frozen=True, kw_only=True):
    """All loads and segments of one metric on one axis, with what its bands mean.

    The groups of the panels hold effects; `notes` collects their reasons as the page is laid out.
    """

    metric: str
    statistic: str
    decides: bool
    axis: Axis
    gain_label: str
    harm_label: str
    panels: tuple[ChartPanel[Effect], ...]
    notes: Footnotes


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
    return ((metric, statistic) != (results.metric, results.statistic), known, metric, statistic)


def _chart(results: Results, metric: str, statistic: str) -> EffectChart:
    effects = [e for e in results.effects if (e.metric, e.statistic) == (metric, statistic)]
    decides = (metric, statistic) == (results.metric, results.statistic)
    below, above = deciding_margins(results) if decides else _guardrail_margins(results, metric)
    ends = (x for e in effects for f in (e.ratio, e.simultaneous) for x in (f.value, f.low, f.high))
    opened = kit.panels_are_open([len(effects)])
    loads = [load for load in kit.order_loads(results) if any(e.load == load for e in effects)]
    return EffectChart(
        metric=words.metric(metric),
        statistic=statistic,
        decides=decides,
        axis=ratio_axis(ends, below=below, above=above, below_tone="gain" if decides else "harm"),
        gain_label=f"gain: below {write.ratio(below)}" if below and decides else "",
        harm_label=_harm_label(below, above, decides=decides),
        panels=tuple(
            ChartPanel(
                title=kit.load_title(results, load),
                opened=opened or index == 0,
                groups=_groups(results, load, [e for e in effects if e.load == load], decides=decides),
            )
            for index, load in enumerate(loads)
        ),
        notes=Footnotes(),
    )


def deciding_margins(results: Results) -> tuple[float | None, float | None]:
    """Return the ratios below which the plan sees a gain, above which a harm; None without a margin."""
    gain, harm = results.thresholds.get("minimum_gain"), results.thresholds.get("harm_margin")
    return (None if gain is None else 1 - gain), (None if harm is None else 1 + harm)


def _guardrail_margins(results: Results, metric: str) -> tuple[float | None, float | None]:
    margin = results.thresholds.get(_GUARDRAIL_MARGINS.get(metric, ""))
    if margin is None:
        return None, None
    return (1 - margin if metric in _TWO_SIDED else None), 1 + margin


def _harm_label(below: float | None, above: float | None, *, decides: bool) -> str:
    if above is None:
        return ""
    if decides:
        return f"harm: above {write.ratio(above)}"
    outside = f"below {write.ratio(below)} or " if below is not None else ""
    return f"guardrail: {outside}above {write.ratio(above)}"


def _groups(
    results: Results, load: str, effects: list[Effect], *, decides: bool
) -> tuple[Group[Effect], ...]:
    """All segments where the metric decides; in a large run else those with the largest effects."""
    ratios = {e.segment: e.ratio.value for e in effects if e.arm == "candidate"}
    kept = None if decides else kit.choose_segments(results, load, ratios)
    chosen = [e for e in kit.in_arm_order(results, effects) if kept is None or e.segment in kept]
    groups = [Group(title=title, rows=tuple(rows)) for title, rows in kit.by_segment(results, chosen)]
    left_out = kit.describe_left_out(len({e.segment for e in effects}), len(groups))
    return (*groups, *((Group[Effect](title=left_out, rows=()),) if left_out else ()))


class EnvelopeMap(msgspec.Struct, frozen=True, kw_only=True):
    """The map, its legend with counts, and why each cell has its status; `loads` are (name, size)."""

    heading: str
    loads: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    legend: tuple[tuple[str, words.Word], ...]
    metric: str
    sentence: str
    bands: tuple[Panel, ...]
    bands_sentence: str
    reasons: Table
    reasons_open: bool


def build_map(results: Results) -> EnvelopeMap:
    """Lay the cells out as segments × loads."""
    cells = {(cell.segment, cell.load): cell for cell in results.cells}
    segments = kit.order_segments(results, {cell.segment for cell in results.cells})
    loads = kit.order_loads(results)
    return EnvelopeMap(
        heading=words.segment_heading(results.segments),
        loads=tuple((load, size.short) for load, size in results.sizes.items()),
        rows=tuple((words.segment(s), tuple(cells.get((s, load)) for load in loads)) for s in segments),
        legend=tuple(words.STATUSES.items()),
        metric=words.metric(results.metric),
        sentence=_sentence(results),
        bands=build_bands(results),
        bands_sentence="The effect was not judged apart by length of context: too few prompts, or all alike.",
        reasons=_reasons_table(results),
        reasons_open=len(results.cells) <= 24,
    )


def _sentence(results: Results) -> str:
    total, counts = len(results.cells), Counter[str](cell.status for cell in results.cells)
    if not total:
        return "No cell was judged."
    named = [f"{counts[s]} {word.label.lower()}" for s, word in words.STATUSES.items() if counts[s]]
    return f"Of {total} cell{'s' if total > 1 else ''}: {', '.join(named)}."


def _reasons_table(results: Results) -> Table:
    loads = kit.order_loads(results)
    has_alternative = any(cell.alternative_effect for cell in results.cells)
    alternative: Column[Cell] = kit.right(
        "Alternative vs baseline",
        lambda one: kit.figure(one.alternative_effect, write.change) if one.alternative_effect else "",
    )
    columns: tuple[Column[Cell], ...] = (
        kit.left("Load", lambda one: kit.head(words.load(one.load, one.size), "nowrap")),
        kit.left("Status", lambda one: kit.status(one.status)),
        kit.right("Candidate vs baseline", lambda one: kit.figure(one.effect, write.change)),
        *((alternative,) if has_alternative else ()),
        kit.left("Reasons", lambda one: reasons_cell(one.reasons)),
    )
    ordered = sorted(results.cells, key=lambda cell: loads.index(cell.load))
    return kit.table("Why each cell has its status", columns, kit.by_segment(results, ordered))


def reasons_cell(reasons: tuple[Reason, ...]) -> TableCell:
    """All reasons in one cell, each with the row it is based on below."""
    if not reasons:
        return kit.text("")
    (text, evidence), *more = ((words.sentence_case(r.text), r.evidence) for r in reasons)
    return TableCell(text=text, detail=evidence, tone="prose", more=tuple(more))


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
