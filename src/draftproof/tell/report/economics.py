"""What every arm costs: device time, energy, capacity, and money as ranges with a plot.

Pure view of `Results.economics`.
"""

import msgspec

from draftproof.judge.inform.economics.money import amount
from draftproof.judge.results.economics import ArmUse, Economics, Span, Worth
from draftproof.judge.results.figure import Figure
from draftproof.judge.results.run import Results
from draftproof.tell.report.charts import Axis, Tick, Whisker, ratio_axis, whisker
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    comparison_label,
    format_count,
    format_ratio,
    format_share,
    format_significant,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Row,
    Table,
    TableCell,
    figure_cell,
    format_interval,
    label_column,
    order_arms,
    order_loads,
    text_cell,
    title_of_load,
)

STANDINGS = {"worth": "worth it", "not_worth": "not worth it", "unknown": MISSING}
UNPRICED = (
    "The plan names no price, so only physical quantities are given; a [prices] table turns them into money."
)
AT_CAPACITY = "each at its own capacity"


class WorthRow(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: its ratio on the axis, its saving on the other, and both in words."""

    label: str
    tone: str
    mark: Whisker
    ratio: str
    interval: str
    token_ratio: str
    noise: str
    saving_bar: tuple[float, float] | None
    saving: str
    break_even: str
    standing: str
    text: str


class WorthGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The comparisons at one load."""

    title: str
    rows: tuple[WorthRow, ...]


class EconomicsSection(msgspec.Struct, frozen=True, kw_only=True):
    """Use by load, capacities, and what each arm is worth with the axes of its two plots."""

    sentence: str
    few_good: str
    unpriced: str
    uses: Table
    capacities: Table
    axis: Axis
    money_ticks: tuple[Tick, ...]
    money_title: str
    groups: tuple[WorthGroup, ...]
    left_out: tuple[str, ...]


def build_economics(results: Results) -> EconomicsSection | None:
    """Lay out the economics; None for results of an earlier version, which lack them."""
    found = results.economics
    if found is None:
        return None
    scale = _money_scale(found)
    ratios = [one.good_ratio for one in found.worths]
    axis = ratio_axis(
        [end for one in ratios for end in (one.low, one.value, one.high)], below=None, above=None
    )
    return EconomicsSection(
        sentence=_sentence(found),
        few_good=found.few_good or "",
        unpriced="" if found.priced else UNPRICED,
        uses=_use_table(results, found),
        capacities=_capacity_table(results, found),
        axis=axis,
        money_ticks=_money_ticks(scale),
        money_title=f"Saved over {found.horizon_months:g} months, {found.currency}".rstrip(", "),
        groups=_groups(results, found, axis, scale),
        left_out=tuple(dict.fromkeys(what for one in found.worths for what in one.left_out)),
    )


def _sentence(found: Economics) -> str:
    deadline = "within every deadline" if found.has_deadline else "in time (the plan sets no deadline)"
    return (
        f"A good request is answered, {deadline}, and fails no check. Device time is the turns' wall time "
        "filled by the counted requests, failures included, times the devices in the arm's budget. Energy, "
        "where it is known, is that of the whole machine."
    )


def _use_table(results: Results, found: Economics) -> Table:
    notes = Footnotes()
    arms = order_arms(results, {one.arm for one in found.uses})
    talks = any(one.multi_turn for one in results.conversations)
    groups = tuple(
        Group(
            title=title_of_load(results, load),
            rows=tuple(
                _use_row(one, found, notes, talks=talks)
                for arm in arms
                for one in found.uses
                if (one.arm, one.load) == (arm, load)
            ),
        )
        for load in order_loads(results)
    )
    money = f"Money {found.currency}".strip()
    return Table(
        caption="What every arm took at each load",
        columns=(
            label_column("Arm"),
            Column(label="Devices"),
            Column(label="Good of attempted"),
            Column(label="per 1,000 tokens", over="Device seconds"),
            Column(label="per 1,000 good requests", over="Device seconds"),
            Column(label="Good requests per device and hour"),
            *((Column(label="Completed conversations per device and hour"),) if talks else ()),
            Column(label="Joules per 1,000 tokens"),
            *(
                (
                    Column(label="per 1,000 tokens", over=money),
                    Column(label="per 1,000 good requests", over=money),
                )
                if found.priced
                else ()
            ),
        ),
        groups=tuple(group for group in groups if group.rows),
        notes=notes.notes(),
    )


def _use_row(one: ArmUse, found: Economics, notes: Footnotes, *, talks: bool) -> Row:
    spoken = one.completed_conversations_per_device or Figure(value=None)
    money = (_span_cell(one.money_per_1000_tokens, notes), _span_cell(one.money_per_1000_good, notes))
    unchecked = f"{format_count(one.unchecked)} not checked" if one.unchecked else ""
    return Row(
        cells=(
            text_cell(arm_label(one.arm), tone=f"arm {one.arm}", head=True),
            text_cell(format_count(one.devices)),
            text_cell(f"{format_count(one.good)} of {format_count(one.attempted)}", detail=unchecked),
            figure_cell(one.device_s_per_1000_tokens, format_significant, notes),
            figure_cell(one.device_s_per_1000_good, format_significant, notes),
            figure_cell(one.good_per_device_hour, format_significant, notes),
            *((figure_cell(spoken, format_significant, notes),) if talks else ()),
            TableCell(
                text=format_significant(one.joules_per_1000_tokens),
                mark=notes.mark(one.joules_reason) if one.joules_reason else "",
                tone="missing" if one.joules_reason else "",
            ),
            *(money if found.priced else ()),
        )
    )


def _capacity_table(results: Results, found: Economics) -> Table:
    notes = Footnotes()
    rows = tuple(
        Row(
            cells=(
                text_cell(arm_label(one.arm), tone=f"arm {one.arm}", head=True),
                text_cell(title_of_load(results, one.load) if one.load else ""),
                figure_cell(one.good_per_device_hour, format_significant, notes),
            )
        )
        for one in found.capacities
    )
    target = format_share(found.on_time_target)
    return Table(
        caption="Capacity at equal quality and deadline",
        columns=(
            label_column("Arm"),
            label_column(f"Highest measured load with {target} on time"),
            Column(label="Good requests per device and hour"),
        ),
        groups=(Group(title="", rows=rows),) if rows else (),
        notes=notes.notes(),
    )


def _groups(
    results: Results, found: Economics, axis: Axis, scale: tuple[float, float] | None
) -> tuple[WorthGroup, ...]:
    places: list[tuple[str | None, str]] = [
        *((load, title_of_load(results, load)) for load in order_loads(results)),
        (None, AT_CAPACITY.capitalize()),
    ]
    groups = [
        WorthGroup(
            title=title, rows=tuple(_worth_row(one, axis, scale) for one in found.worths if one.load == load)
        )
        for load, title in places
    ]
    return tuple(group for group in groups if group.rows)


def _worth_row(one: Worth, axis: Axis, scale: tuple[float, float] | None) -> WorthRow:
    ratio = one.good_ratio
    return WorthRow(
        label=comparison_label(one.arm, one.versus),
        tone=one.arm,
        mark=whisker(axis, ratio.value, ratio.low, ratio.high, one.arm),
        ratio=format_ratio(ratio.value),
        interval=format_interval(ratio, format_ratio),
        token_ratio=format_ratio(one.token_ratio.value),
        noise=MISSING if one.noise is None else format_share(one.noise - 1),
        saving_bar=_bar(one.saving_over_horizon, scale),
        saving=_write_span(one.saving_over_horizon),
        break_even=_write_volume(one),
        standing=STANDINGS[one.standing],
        text=one.text,
    )


def _write_span(span: Span) -> str:
    if span.low is None and span.high is None:
        return MISSING
    return f"{_write_end(span.low)} to {_write_end(span.high)}"


def _write_end(value: float | None) -> str:
    return "∞" if value is None else amount(value)


def _write_volume(one: Worth) -> str:
    written = _write_span(one.break_even_per_month)
    return written if written == MISSING else f"{written} {one.unit}"


def _span_cell(span: Span, notes: Footnotes) -> TableCell:
    written = _write_span(span)
    if written != MISSING:
        return text_cell(written)
    return TableCell(text=MISSING, mark=notes.mark(span.reason) if span.reason else "", tone="missing")


def _money_scale(found: Economics) -> tuple[float, float] | None:
    """Return the ends of the axis of savings, 0 always on it; None where no saving is stated."""
    ends = [
        end
        for one in found.worths
        for end in (one.saving_over_horizon.low, one.saving_over_horizon.high)
        if end is not None
    ]
    if not ends:
        return None
    low, high = min(0.0, *ends), max(0.0, *ends)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _money_ticks(scale: tuple[float, float] | None) -> tuple[Tick, ...]:
    """Return ticks at the ends of what is shown and at 0, where they do not touch."""
    if scale is None:
        return ()
    places = [Tick(_at(value, scale), amount(value)) for value in (scale[0], 0.0, scale[1])]
    zero = places[1]
    return tuple(one for one in places if one is zero or abs(one.at - zero.at) > 20)


def _bar(span: Span, scale: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return (start, width) of a range, per cent of the axis; at least a visible sliver."""
    if scale is None or span.low is None or span.high is None:
        return None
    start = _at(span.low, scale)
    return start, max(round(_at(span.high, scale) - start, 2), 0.6)


def _at(value: float, scale: tuple[float, float]) -> float:
    return round(100 * (value - scale[0]) / (scale[1] - scale[0]), 2)
