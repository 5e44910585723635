"""What every arm costs: device time, energy, capacity, and money as ranges with a plot.

Pure view of `Results.economics`.
"""

import msgspec

from draftproof.judge.inform.economics import amount
from draftproof.judge.results.decide import Figure
from draftproof.judge.results.inform import ArmUse, Capacity, Economics, Span, Worth
from draftproof.judge.results.run import Results
from draftproof.tell.report import kit, write
from draftproof.tell.report.charts import Axis, Tick, ratio_axis
from draftproof.tell.report.kit import Column, Group, Table, TableCell

STANDINGS = {"worth": "worth it", "not_worth": "not worth it", "unknown": write.MISSING}
UNPRICED = (
    "The plan names no price, so only physical quantities are given; a [prices] table turns them into money."
)
AT_CAPACITY = "Each at its own capacity"


class EconomicsSection(msgspec.Struct, frozen=True, kw_only=True):
    """Use by load, capacities, and what each arm is worth with the axes of its two plots."""

    sentence: str
    few_good: str
    unpriced: str
    uses: Table
    capacities: Table
    axis: Axis
    scale: tuple[float, float] | None
    money_title: str
    groups: tuple[Group[Worth], ...]
    left_out: tuple[str, ...]

    @property
    def money_ticks(self) -> tuple[Tick, ...]:
        """Ticks at the ends of the axis of savings and at 0, where they do not touch."""
        if self.scale is None:
            return ()
        ends = (self.scale[0], 0.0, self.scale[1])
        low, zero, high = (Tick(_place(value, self.scale), amount(value)) for value in ends)
        return tuple(one for one in (low, zero, high) if one is zero or abs(one.at - zero.at) > 20)

    def bar(self, span: Span) -> tuple[float, float] | None:
        """Return (start, width) of a range of savings, per cent of the axis; at least a visible sliver."""
        if self.scale is None or span.low is None or span.high is None:
            return None
        start = _place(span.low, self.scale)
        return start, max(round(_place(span.high, self.scale) - start, 2), 0.6)


def build_economics(results: Results) -> EconomicsSection | None:
    """Lay out the economics; None for results of an earlier version, which lack them."""
    found = results.economics
    if found is None:
        return None
    ratios = [one.good_ratio for one in found.worths]
    ends = [end for one in ratios for end in (one.low, one.value, one.high)]
    groups = [
        *((kit.load_title(results, load), load) for load in kit.order_loads(results)),
        (AT_CAPACITY, None),
    ]
    by_place = {title: [one for one in found.worths if one.load == load] for title, load in groups}
    return EconomicsSection(
        sentence=_sentence(found),
        few_good=found.few_good or "",
        unpriced="" if found.priced else UNPRICED,
        uses=_use_table(results, found),
        capacities=_capacity_table(results, found),
        axis=ratio_axis(ends, below=None, above=None),
        scale=_money_scale(found),
        money_title=f"Saved over {found.horizon_months:g} months, {found.currency}".rstrip(", "),
        groups=tuple(Group(title=title, rows=tuple(rows)) for title, rows in by_place.items() if rows),
        left_out=tuple(dict.fromkeys(what for one in found.worths for what in one.left_out)),
    )


def _sentence(found: Economics) -> str:
    deadline = "within every deadline" if found.has_deadline else "in time (the plan sets no deadline)"
    return (
        f"A good request is answered, {deadline}, and fails no check. Device time is the periods' wall time "
        "filled by the counted requests, failures included, times the devices in the arm's budget. Energy, "
        "where it is known, is that of the whole machine."
    )


def _use_table(results: Results, found: Economics) -> Table:
    talks = any(one.multi_turn for one in results.conversations)
    money = f"Money {found.currency}".strip()
    conversations: Column[ArmUse] = kit.right(
        "Completed conversations per device and hour",
        lambda one: kit.figure(one.completed_conversations_per_device or Figure(value=None), write.number),
    )
    prices: tuple[Column[ArmUse], ...] = (
        kit.right("per 1,000 tokens", lambda one: _span_cell(one.money_per_1000_tokens), money),
        kit.right("per 1,000 good requests", lambda one: _span_cell(one.money_per_1000_good), money),
    )
    columns = (*_USES, *((conversations,) if talks else ()), _JOULES, *(prices if found.priced else ()))
    return kit.table("What every arm took at each load", columns, kit.by_load(results, found.uses))


_SECONDS = "Device seconds"
_USES: tuple[Column[ArmUse], ...] = (
    kit.ARM,
    kit.right("Devices", lambda one: write.count(one.devices)),
    kit.right(
        "Good of attempted",
        lambda one: kit.text(
            f"{write.count(one.good)} of {write.count(one.attempted)}",
            detail=f"{write.count(one.unchecked)} not checked" if one.unchecked else "",
        ),
    ),
    kit.right(
        "per 1,000 tokens", lambda one: kit.figure(one.device_s_per_1000_tokens, write.number), _SECONDS
    ),
    kit.right(
        "per 1,000 good requests", lambda one: kit.figure(one.device_s_per_1000_good, write.number), _SECONDS
    ),
    kit.right(
        "Good requests per device and hour", lambda one: kit.figure(one.good_per_device_hour, write.number)
    ),
)
_JOULES: Column[ArmUse] = kit.right(
    "Joules per 1,000 tokens",
    lambda one: kit.explained(write.number(one.joules_per_1000_tokens), one.joules_reason),
)


def _capacity_table(results: Results, found: Economics) -> Table:
    target = write.share(found.on_time_target)
    columns: tuple[Column[Capacity], ...] = (
        kit.ARM,
        kit.left(
            f"Highest measured load with {target} on time",
            lambda one: kit.load_title(results, one.load) if one.load else "",
        ),
        kit.right(
            "Good requests per device and hour",
            lambda one: kit.figure(one.good_per_device_hour, write.number),
        ),
    )
    return kit.table("Capacity at equal quality and deadline", columns, [("", found.capacities)])


def write_span(span: Span) -> str:
    """Write a range of amounts; an end without a bound is ∞."""
    if span.low is None and span.high is None:
        return write.MISSING
    low, high = ("∞" if end is None else amount(end) for end in (span.low, span.high))
    return f"{low} to {high}"


def write_volume(one: Worth) -> str:
    """Write the monthly volume that breaks even."""
    written = write_span(one.break_even_per_month)
    return written if written == write.MISSING else f"{written} {one.unit}"


def _span_cell(span: Span) -> TableCell:
    written = write_span(span)
    if written == write.MISSING:
        return kit.text(written, "missing", reason=span.reason)
    return kit.text(written)


def _money_scale(found: Economics) -> tuple[float, float] | None:
    """Return the ends of the axis of savings, 0 always on it; None where no saving is stated."""
    savings = [one.saving_over_horizon for one in found.worths]
    ends = [end for one in savings for end in (one.low, one.high) if end is not None]
    if not ends:
        return None
    low, high = min(0.0, *ends), max(0.0, *ends)
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def _place(value: float, scale: tuple[float, float]) -> float:
    return round(100 * (value - scale[0]) / (scale[1] - scale[0]), 2)
