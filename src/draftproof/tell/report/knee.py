"""The capacity knee: on-time share against load for every arm, each arm's knee, and every load looked at.

Pure view of `Results.knee`. Positions are per cent of width and height, loads on a logarithmic axis.
"""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from draftproof.judge.knee.compute import ENDINGS, write_load
from draftproof.judge.results.knee import ArmKnee, KneePoint, KneeSearch
from draftproof.judge.results.run import Results
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.charts import Mark, Tick, log_position
from draftproof.tell.report.kit import Column, Table, TableCell

STANDINGS = {"holds": ("holds", ""), "fails": ("fails", "bad"), "open": ("undetermined", "missing")}
_MARGIN = 1.12  # the axis reaches so far beyond the loads that were looked at
_LABELS = 1.35  # and so far to the left, where the shares are written
_DODGE = 0.7  # per cent of the width: marks of several arms at one load stand side by side
_TICK_DISTANCE = 6.0
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_TOP, _BOTTOM = 6.0, 96.0  # per cent of the height: the shares of 1 and of 0


class KneeLine(msgspec.Struct, frozen=True, kw_only=True):
    """The marks of one arm, and the line between them as (x1, y1, x2, y2)."""

    arm: str
    marks: tuple[Mark, ...]
    pieces: tuple[tuple[float, float, float, float], ...]


class KneeBar(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's knee: its bar on the axis of loads, which runs to the edge where an end was not shown."""

    knee: ArmKnee
    start: float | None
    end: float | None


class KneeSection(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the knee search."""

    sentence: str
    method: str
    unit: str
    target: str
    target_y: float
    arms: tuple[str, ...]
    ticks: tuple[Tick, ...]
    shares: tuple[Tick, ...]
    lines: tuple[KneeLine, ...]
    rows: tuple[KneeBar, ...]
    ratios: tuple[str, ...]
    notes: tuple[str, ...]
    points: Table


def build_knee(results: Results) -> KneeSection | None:
    """Lay out the search, None where the plan has none."""
    found = results.knee
    if found is None:
        return None
    arms, span = kit.order_arms(results, {one.arm for one in found.arms}), _span(found)
    return KneeSection(
        sentence=found.sentence,
        method=_describe_method(found),
        unit=found.unit,
        target=write.share(found.target),
        target_y=_height(found.target),
        arms=arms,
        ticks=_ticks(found, span),
        shares=tuple(Tick(_height(share), write.share(share)) for share in _SHARES),
        lines=tuple(_line(found, arm, index, len(arms), span) for index, arm in enumerate(arms)),
        rows=tuple(_bar(one, span) for one in kit.in_arm_order(results, found.arms)),
        ratios=tuple(f"{one.text}." for one in found.ratios),
        notes=found.notes,
        points=_table(found, arms),
    )


def _describe_method(found: KneeSearch) -> str:
    trials = sum(one.trials for one in found.points)
    axis = "requests per second, as they came" if found.axis == "rps" else "requests kept in flight"
    return (
        f"On-time share of all attempted requests by load ({axis}, logarithmic), with intervals at "
        f"{write.share(found.trial_level)}. A load holds if its whole interval lies at "
        f"{write.share(found.target)} or above, and fails if it lies below or the service falls behind. "
        f"{trials} periods took {found.spent_s / 60:.1f} min of {write.number(found.budget_s / 60)}; "
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


def _mark(one: KneePoint, shift: float, span: tuple[float, float]) -> Mark:
    share = one.share
    return Mark(
        x=round(log_position(one.load, *span) + shift, 2),
        y=_height(share.value or 0.0),
        tone=one.arm,
        title=f"{words.arm(one.arm)} at {write_load(one.load)}: {write.share(share.value)}, "
        f"{STANDINGS[one.standing][0]}",
        low=None if share.low is None else _height(share.low),
        high=None if share.high is None else _height(share.high),
        is_open=one.standing == "open",
    )


def _bar(one: ArmKnee, span: tuple[float, float]) -> KneeBar:
    if one.holds is None and one.fails is None:
        return KneeBar(knee=one, start=None, end=None)
    return KneeBar(
        knee=one,
        start=0.0 if one.holds is None else log_position(one.holds, *span),
        end=100.0 if one.fails is None else log_position(one.fails, *span),
    )


def write_end(load: float | None) -> str:
    """Write the load at an end of a knee."""
    return write.MISSING if load is None else write_load(load)


def _table(found: KneeSearch, arms: Sequence[str]) -> Table:
    columns: tuple[Column[KneePoint], ...] = (
        kit.left(f"Load ({found.unit})", lambda one: kit.head(write_load(one.load))),
        kit.left("Standing", _standing),
        kit.right("On time", lambda one: kit.figure(one.share, write.share)),
        kit.right("Requests", lambda one: write.count(one.attempted)),
        kit.right("Effective", lambda one: write.count(one.effective)),
        kit.right(
            "Trials",
            lambda one: kit.text(
                str(one.trials), detail=f"{one.invalid_trials} invalid" if one.invalid_trials else ""
            ),
        ),
        kit.right("good", lambda one: write.number(one.goodput_rps), "Requests/s"),
        kit.right("completed", lambda one: write.number(one.completed_rps), "Requests/s"),
        kit.right(
            "at the start, end", lambda one: " → ".join(map(write.number, one.in_flight or ())), "In flight"
        ),
        kit.right(
            "Conversations per device-hour",
            lambda one: kit.figure(one.conversations_per_device_hour, write.number),
        ),
    )
    groups = [(words.arm(arm), [one for one in found.points if one.arm == arm]) for arm in arms]
    return kit.table("Every load that was looked at", columns, groups)


def _standing(one: KneePoint) -> TableCell:
    word, tone = STANDINGS[one.standing]
    return kit.text(word, tone, reason=words.sentence_case(one.reason) if one.reason else None)
