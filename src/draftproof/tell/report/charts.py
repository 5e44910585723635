"""Geometry of the charts: where a value lies on an axis, in per cent of the axis' width.

Pure numbers. Charts are rows of a table, each with one small inline SVG whose horizontal positions are per
cent: they stretch with the page, follow its colours in light, dark and print, and keep their labels as text.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from draftproof.judge.results.decide import Figure
from draftproof.tell.report import write

_RATIO_TICKS = (
    *(0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0),
    *(1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0),
)
_WIDEST = (0.01, 100.0)
_TICK_DISTANCE = 9.0  # per cent: labels stay apart on a narrow screen and on paper
# The mark of an arm that is no dot, so that arms differ by more than colour.
SHAPES = {"alternative": "square", "baseline_null": "diamond"}


class Tick(msgspec.Struct, frozen=True):
    """A labelled place on an axis, per cent of its width."""

    at: float
    label: str


class Band(msgspec.Struct, frozen=True):
    """A shaded stretch of an axis, per cent of its width; `tone` says what it means."""

    start: float
    width: float
    tone: str


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio axis on a logarithmic scale between `low` and `high`, with its ticks and bands."""

    low: float
    high: float
    ticks: tuple[Tick, ...]
    bands: tuple[Band, ...]
    unity: float


class Whisker(msgspec.Struct, frozen=True, kw_only=True):
    """A value with its interval on an axis; `clipped_*` marks an end beyond the axis."""

    at: float | None
    start: float | None
    end: float | None
    clipped_low: bool
    clipped_high: bool
    style: str
    tone: str


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A point of a plot: its place in per cent of width and height, the ends of an interval, what it says."""

    x: float
    y: float
    tone: str
    title: str
    low: float | None = None
    high: float | None = None
    is_open: bool = False

    @property
    def shape(self) -> str:
        """The mark of its arm."""
        return SHAPES.get(self.tone, "dot")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a stacked bar, per cent of the axis' width."""

    start: float
    width: float
    tone: str
    label: str


PLOT_WIDTH, PLOT_HEIGHT = 100.0, 30.0


class PlotLine(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's line: the points of an SVG polyline, x from 0 to 100 and y from 30 (zero) up to 0."""

    arm: str
    points: str


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of several arms: what they show, the highest value, how long the axis is."""

    title: str
    highest: str
    length: str
    lines: tuple[PlotLine, ...]


def plot_points(points: Iterable[tuple[float, float]], length: float, highest: float) -> str:
    """Place points in a plot, x up to `length`, y up to `highest` with room for half of the stroke above."""
    room = PLOT_HEIGHT - 2
    return " ".join(
        f"{PLOT_WIDTH * x / length if length else 0:.2f},{PLOT_HEIGHT - room * y / highest - 1:.2f}"
        for x, y in points
    )


def log_position(value: float, low: float, high: float) -> float:
    """Place `value` on a log axis, per cent, held inside 0 to 100."""
    if value <= low:
        return 0.0
    share = math.log(min(value, high) / low) / math.log(high / low)
    return round(100 * share, 2)


def ratio_axis(
    values: Iterable[float | None],
    *,
    below: float | None,
    above: float | None,
    label: write.Write = write.ratio,
) -> Axis:
    """Build the axis that shows all finite positive `values`, 1, and the margins.

    Ratios under `below` are shaded as gain, ratios over `above` as harm; None draws no such band. `label`
    writes the ticks.
    """
    shown = [v for v in values if v is not None and math.isfinite(v) and v > 0]
    shown += [edge for edge in (below, above) if edge is not None]
    low = max(min([0.9, *shown]) / 1.06, _WIDEST[0])
    high = min(max([1.1, *shown]) * 1.06, _WIDEST[1])
    bands = [] if below is None else [Band(0.0, log_position(below, low, high), "gain")]
    if above is not None:
        start = log_position(above, low, high)
        bands.append(Band(start, round(100 - start, 2), "harm"))
    unity = log_position(1.0, low, high)
    return Axis(low=low, high=high, ticks=_ticks(low, high, label), bands=tuple(bands), unity=unity)


def whisker(axis: Axis, figure: Figure, arm: str) -> Whisker:
    """Place a value and its interval on the axis; nothing is drawn for what is missing."""
    return Whisker(
        at=_place(axis, figure.value),
        start=_place(axis, figure.low),
        end=_place(axis, figure.high),
        clipped_low=figure.low is not None and figure.low < axis.low,
        clipped_high=figure.high is not None and figure.high > axis.high,
        style=SHAPES.get(arm, "dot"),
        tone=arm if arm in SHAPES else "candidate",
    )


def stacked_parts(parts: Sequence[tuple[str, str, float | None]], full: float) -> tuple[Part, ...]:
    """Lay (tone, label, value) end to end on a linear axis up to `full`; missing parts are left out."""
    laid: list[Part] = []
    start = 0.0
    for tone, label, value in parts:
        if value is None or value <= 0 or full <= 0:
            continue
        width = 100 * value / full
        laid.append(Part(start=round(start, 2), width=round(width, 2), tone=tone, label=label))
        start += width
    return tuple(laid)


def linear_ticks(full: float, *, count: int = 7) -> tuple[Tick, ...]:
    """Ticks at round numbers from 0 to `full`, at most about `count`."""
    if full <= 0:
        return (Tick(0.0, "0"),)
    step = _round_step(full / count)
    return tuple(Tick(round(100 * i * step / full, 2), f"{i * step:g}") for i in range(int(full / step) + 1))


def _place(axis: Axis, value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return log_position(value, axis.low, axis.high)


def _ticks(low: float, high: float, label: write.Write) -> tuple[Tick, ...]:
    """Ticks inside the axis, 1 always among them, none so close to another that the labels touch."""
    apart = _TICK_DISTANCE if label is write.ratio else 1.6 * _TICK_DISTANCE  # a change is a longer text
    placed = [Tick(log_position(r, low, high), label(r)) for r in _RATIO_TICKS if low < r < high]
    unity = log_position(1.0, low, high)
    kept: list[Tick] = []
    for tick in placed:
        is_unity = tick.at == unity
        clear = not kept or tick.at - kept[-1].at > apart
        if is_unity and not clear:
            kept.pop()
        if is_unity or (clear and abs(tick.at - unity) > apart):
            kept.append(tick)
    return tuple(kept)


def _round_step(raw: float) -> float:
    scale = 10.0 ** math.floor(math.log10(raw))
    return next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= raw * 0.999)
