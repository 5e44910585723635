"""The capacity knee: on-time share against load for every arm, each arm's knee, and every load looked at.

Pure view of `Results.knee`. Positions are per cent of width and height, loads on a logarithmic axis.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from draftproof.judge.knee.wording import ENDINGS, write_load
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeSearch
from draftproof.judge.results.run import Results
from draftproof.tell.report.charts import Tick, log_position
from draftproof.tell.report.quantities import (
    MISSING,
    arm_label,
    format_count,
    format_share,
    format_significant,
    sentence_case,
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
    text_cell,
)

STANDINGS = {"holds": ("holds", ""), "fails": ("fails", "bad"), "open": ("not told", "missing")}
_SHAPES = {"alternative": "square", "baseline_null": "diamond"}
_MARGIN = 1.12  # the axis reaches so far beyond the loads that were looked at
_LABELS = 1.35  # and so far to the left, where the shares are written
_DODGE = 0.7  # per cent of the width: marks of several arms at one load stand side by side
_TICK_DISTANCE = 6.0
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TOP, _BOTTOM = 6.0, 96.0  # per cent of the height: the shares of 1 and of 0


class KneeMark(msgspec.Struct, frozen=True, kw_only=True):
    """One arm at one load: where its share lies, the ends of its interval, and what it says."""

    x: float
    y: float
    low: float | None
    high: float | None
    shape: str
    is_open: bool
    title: str


class KneeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The marks of one arm, and the line between them as (x1, y1, x2, y2)."""

    arm: str
    marks: tuple[KneeMark, ...]
    pieces: tuple[tuple[float, float, float, float], ...]


class KneeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's knee: its bar on the axis of loads, open where an end was not shown, and its figures."""

    arm: str
    label: str
    start: float | None
    end: float | None
    has_start: bool
    has_end: bool
    holds: str
    fails: str
    goodput: str
    conversations: str
    interval: str


class KneeSection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the knee search."""

    sentence: str
    method: str
    unit: str
    target: str
    target_y: float
    arms: tuple[tuple[str, str], ...]
    ticks: tuple[Tick, ...]
    shares: tuple[Tick, ...]
    lines: tuple[KneeLine, ...]
    rows: tuple[KneeRow, ...]
    ratios: tuple[str, ...]
    notes: tuple[str, ...]
    points: Table


def build_knee(results: Results) -> KneeSection | None:
    """Lay out the search, None where the plan has none."""
    found = results.knee
    if found is None:
        return None
    arms, span = order_arms(results, {one.arm for one in found.arms}), _span(found)
    return KneeSection(
        sentence=found.sentence,
        method=_describe_method(found),
        unit=found.unit,
        target=format_share(found.target),
        target_y=_height(found.target),
        arms=tuple((arm, arm_label(arm)) for arm in arms),
        ticks=_ticks(found, span),
        shares=tuple(Tick(_height(share), format_share(share)) for share in _SHARES),
        lines=tuple(_line(found, arm, index, len(arms), span) for index, arm in enumerate(arms)),
        rows=tuple(_row(one, span) for arm in arms for one in found.arms if one.arm == arm),
        ratios=tuple(f"{one.text}." for one in found.ratios),
        notes=found.notes,
        points=_table(found, arms),
    )


def knee_lines(results: Results) -> list[str]:
    """Return what the terminal says of the search."""
    found = results.knee
    return [] if found is None else [found.sentence, *found.notes]


def _describe_method(found: KneeSearch) -> str:
    looks = sum(one.looks for one in found.points)
    axis = "requests per second, as they came" if found.axis == "rps" else "requests kept in flight"
    return (
        f"On-time share of all attempted requests by load ({axis}, logarithmic), with intervals at "
        f"{format_share(found.look_level)}. A load holds if its whole interval lies at "
        f"{format_share(found.target)} or above, and fails if it lies below or the service falls behind. "
        f"{looks} turns took {found.spent_s / 60:.1f} min of {format_significant(found.budget_s / 60)}; "
        f"the search ended because {ENDINGS[found.ended]}."
    )


def _span(found: KneeSearch) -> tuple[float, float]:
    """Return the ends of the axis: the loads that were looked at, and a margin."""
    loads = [one.load for one in found.points] or list(found.grid)
    return min(loads) / _LABELS, max(loads) * _MARGIN


def _height(share: float) -> float:
    return round(_BOTTOM - share * (_BOTTOM - _TOP), 2)


def _ticks(found: KneeSearch, span: tuple[float, float]) -> tuple[Tick, ...]:
    """Return the loads that were looked at, none so close to another that the labels touch."""
    kept: list[Tick] = []
    for load in sorted({one.load for one in found.points}):
        tick = Tick(log_position(load, *span), write_load(load))
        if not kept or tick.at - kept[-1].at > _TICK_DISTANCE:
            kept.append(tick)
    return tuple(kept)


def _line(found: KneeSearch, arm: str, index: int, count: int, span: tuple[float, float]) -> KneeLine:
    shift = (index - (count - 1) / 2) * _DODGE
    known = [one for one in found.points if one.arm == arm and one.share.value is not None]
    marks = [_mark(one, shift, span) for one in known]
    return KneeLine(
        arm=arm,
        marks=tuple(marks),
        pieces=tuple((before.x, before.y, after.x, after.y) for before, after in pairwise(marks)),
    )


def _mark(one: KneePoint, shift: float, span: tuple[float, float]) -> KneeMark:
    share = one.share
    return KneeMark(
        x=round(log_position(one.load, *span) + shift, 2),
        y=_height(share.value or 0.0),
        low=None if share.low is None else _height(share.low),
        high=None if share.high is None else _height(share.high),
        shape=_SHAPES.get(one.arm, "dot"),
        is_open=one.standing == "open",
        title=f"{arm_label(one.arm)} at {write_load(one.load)}: {format_share(share.value)}, "
        f"{STANDINGS[one.standing][0]}",
    )


def _row(one: ArmKnee, span: tuple[float, float]) -> KneeRow:
    known = one.holds is not None or one.fails is not None
    figure = one.conversations_per_device_hour
    ends = [format_significant(end) for end in (figure.low, figure.high)]
    return KneeRow(
        arm=one.arm,
        label=arm_label(one.arm),
        start=(log_position(one.holds, *span) if one.holds is not None else 0.0) if known else None,
        end=(log_position(one.fails, *span) if one.fails is not None else 100.0) if known else None,
        has_start=one.holds is not None,
        has_end=one.fails is not None,
        holds=MISSING if one.holds is None else write_load(one.holds),
        fails=MISSING if one.fails is None else write_load(one.fails),
        goodput=format_significant(one.goodput_rps),
        conversations=format_significant(figure.value),
        interval="" if figure.low is None else f"[{ends[0]}, {ends[1]}]",
    )


def _table(found: KneeSearch, arms: Sequence[str]) -> Table:
    notes = Footnotes()
    groups = (
        Group(
            title=arm_label(arm),
            rows=tuple(_point_row(one, notes) for one in found.points if one.arm == arm),
        )
        for arm in arms
    )
    return Table(
        caption="Every load that was looked at",
        columns=(
            label_column(f"Load ({found.unit})"),
            label_column("Standing"),
            Column(label="On time"),
            Column(label="Requests"),
            Column(label="Worth"),
            Column(label="Looks"),
            Column(label="good", over="Requests/s"),
            Column(label="completed", over="Requests/s"),
            Column(label="at the start, end", over="In flight"),
            Column(label="Conversations per device-hour"),
        ),
        groups=tuple(group for group in groups if group.rows),
        notes=notes.notes(),
    )


def _point_row(one: KneePoint, notes: Footnotes) -> Row:
    word, tone = STANDINGS[one.standing]
    in_flight = (
        None if one.in_flight is None else " → ".join(format_significant(end) for end in one.in_flight)
    )
    return Row(
        cells=(
            text_cell(write_load(one.load), head=True),
            TableCell(text=word, tone=tone, mark=notes.mark(sentence_case(one.reason)) if one.reason else ""),
            figure_cell(one.share, format_share, notes),
            text_cell(format_count(one.attempted)),
            text_cell(format_count(None if one.effective is None else round(one.effective))),
            text_cell(str(one.looks), detail=f"{one.invalid_looks} invalid" if one.invalid_looks else ""),
            text_cell(format_significant(one.goodput_rps)),
            text_cell(format_significant(one.completed_rps)),
            text_cell(in_flight or MISSING),
            figure_cell(one.conversations_per_device_hour, format_significant, notes),
        )
    )
