"""Geometry of a line chart over batch sizes, in units of its view box. Pure.

Positions only: the template draws them, the style sheet colours them, so that the page follows light, dark
and print. Batch sizes lie on a logarithmic axis. Lines are told apart by mark and label, not by colour alone.
"""

import math
from collections.abc import Sequence

import msgspec

WIDTH, HEIGHT = 640, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 86, 12, 44
_SHELF = 26  # height of the strip above the axis for values that do not exist
_DODGE = 7.0  # whiskers of several lines at one batch size stand side by side
_LABEL_GAP = 15.0
MARKS = ("dot", "square", "diamond", "triangle")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value of a line; a value of None lies on the shelf above the axis."""

    batch: int
    value: float | None
    low: float | None = None
    high: float | None = None


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line: its label and its readings."""

    label: str
    readings: tuple[Reading, ...]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A mark with the ends of its whisker, None where there is no interval; `is_beyond`: on the shelf."""

    x: float
    y: float
    low_y: float | None
    high_y: float | None
    is_beyond: bool


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn line: marks, the path between them, and where its label stands."""

    label: str
    mark: str
    tone: int
    path: str
    places: tuple[Place, ...]
    label_x: float
    label_y: float


class Guide(msgspec.Struct, frozen=True):
    """A grid line with its label."""

    at: float
    label: str


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a chart's template draws. `shelf_y` is None where every value exists."""

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    title: str
    x_guides: tuple[Guide, ...]
    y_guides: tuple[Guide, ...]
    lines: tuple[Line, ...]
    shelf_y: float | None
    unity_y: float | None


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A linear vertical axis: limits, distance of grid lines, how they are written, and a line to stress."""

    low: float
    high: float
    step: float
    as_share: bool = False
    unity: float | None = None


def draw_plot(title: str, series: Sequence[Series], batches: Sequence[int], scale: Scale) -> Plot:
    """Return the geometry of a chart with one line for each series."""
    has_shelf = any(one.value is None for line in series for one in line.readings)
    top = _TOP + (_SHELF if has_shelf else 0)
    shelf_y = _TOP + _SHELF / 2 if has_shelf else None
    frame = _Frame(batches=tuple(batches), scale=scale, top=top, shelf_y=shelf_y)
    lines = [_draw_line(line, index, len(series), frame) for index, line in enumerate(series)]
    return Plot(
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=WIDTH - _RIGHT,
        top=top,
        bottom=HEIGHT - _BOTTOM,
        title=title,
        x_guides=tuple(Guide(frame.x(batch), str(batch)) for batch in batches),
        y_guides=frame.y_guides(),
        lines=_spread_labels(lines),
        shelf_y=shelf_y,
        unity_y=None if scale.unity is None else frame.y(scale.unity),
    )


def scale_for(values: Sequence[float], *, unity: float) -> Scale:
    """Return an axis from 0 that holds all values and `unity`, with about six grid lines."""
    highest = max([unity * 1.2, *values]) * 1.04
    step = _round_step(highest / 6)
    return Scale(low=0.0, high=math.ceil(highest / step) * step, step=step, unity=unity)


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    """From values to places."""

    batches: tuple[int, ...]
    scale: Scale
    top: float
    shelf_y: float | None

    def x(self, batch: int) -> float:
        first, last = self.batches[0], self.batches[-1]
        share = 0.5 if first == last else math.log(batch / first) / math.log(last / first)
        inner = WIDTH - _RIGHT - _LEFT - 60
        return round(_LEFT + 30 + share * inner, 1)

    def y(self, value: float) -> float:
        held = min(max(value, self.scale.low), self.scale.high)
        share = (held - self.scale.low) / (self.scale.high - self.scale.low)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - self.top), 1)

    def y_guides(self) -> tuple[Guide, ...]:
        count = round((self.scale.high - self.scale.low) / self.scale.step)
        values = [self.scale.low + index * self.scale.step for index in range(count + 1)]
        return tuple(
            Guide(self.y(value), f"{value:.0%}" if self.scale.as_share else f"{value:g}") for value in values
        )


def _draw_line(line: Series, index: int, count: int, frame: _Frame) -> Line:
    shift = (index - (count - 1) / 2) * _DODGE
    places = tuple(_place(one, shift, frame) for one in line.readings)
    path = "M" + " L".join(f"{place.x:g} {place.y:g}" for place in places)
    return Line(
        label=line.label,
        mark=MARKS[index % len(MARKS)],
        tone=index % 6,
        path=path,
        places=places,
        label_x=WIDTH - _RIGHT + 8,
        label_y=places[-1].y,
    )


def _place(one: Reading, shift: float, frame: _Frame) -> Place:
    x = round(frame.x(one.batch) + shift, 1)
    if one.value is None:
        return Place(x=x, y=frame.shelf_y or frame.top, low_y=None, high_y=None, is_beyond=True)
    if one.low is None and one.high is None:
        return Place(x=x, y=frame.y(one.value), low_y=None, high_y=None, is_beyond=False)
    ends = (frame.y(one.low or 0.0), frame.top if one.high is None else frame.y(one.high))
    return Place(x=x, y=frame.y(one.value), low_y=ends[0], high_y=ends[1], is_beyond=False)


def _spread_labels(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Move labels at the lines' ends apart, downwards from the highest, then back up into the chart."""
    order = sorted(range(len(lines)), key=lambda index: lines[index].label_y)
    heights = [lines[index].label_y for index in order]
    for at in range(1, len(heights)):
        heights[at] = max(heights[at], heights[at - 1] + _LABEL_GAP)
    overshoot = heights[-1] - (HEIGHT - _BOTTOM) if heights else 0.0
    if overshoot > 0:
        heights = [height - overshoot for height in heights]
    moved = dict(zip(order, heights, strict=True))
    return tuple(
        msgspec.structs.replace(line, label_y=round(moved[index], 1)) for index, line in enumerate(lines)
    )


def _round_step(raw: float) -> float:
    scale = 10.0 ** math.floor(math.log10(raw))
    return next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= raw * 0.999)
