"""The costs for people: plain lines for a terminal, and one HTML file in the report's style. Pure.

The same costs give the same bytes. Both say a step, a split and a comparison in the same words.

Geometry of a line chart over batch sizes, in units of its view box. Pure.

Positions only: the template draws them, the style sheet colours them, so that the page follows light, dark
and print. Batch sizes lie on a logarithmic axis. Lines are distinguished by mark and label, not by colour
alone.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from draftproof.core.clock import NS_PER_MS
from draftproof.explore.results import Costs, StepCost, StepSplit
from draftproof.judge.results.run import Figure
from draftproof.tell.report import write
from draftproof.tell.report.charts import Part, linear_ticks, stacked_parts
from draftproof.tell.report.page import render_page
from draftproof.tell.report.write import MISSING, printable

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


SOURCES = {
    "rounds": "the engine's rounds",
    "device_timer": "the engine's device timer",
    "ngram": "n-gram steps",
}


def render_costs_text(costs: Costs) -> str:
    """Render what was found for a terminal."""
    steps = "What a step costs and needs (a step that commits more tokens than needed pays)"
    return write.join(
        (
            _head(costs),
            write.section(steps, _steps(costs)),
            write.section(f"Where the time of a step goes, ms, told by {_source(costs)}", _splits(costs)),
            write.section("Beside the run", [f"  {line}" for line in comparison_lines(costs)]),
            write.section("Warnings", write.bullets(costs.warnings)),
            write.section("Taken for granted", write.bullets(costs.assumptions)),
        )
    )


def format_figure(figure: Figure, write: Callable[[float], str]) -> str:
    """Write a value with its interval, or a dash."""
    if figure.value is None:
        return MISSING
    if figure.low is None and figure.high is None:
        return write(figure.value)
    low = MISSING if figure.low is None else write(figure.low)
    high = "none" if figure.high is None else write(figure.high)
    return f"{write(figure.value)} [{low}, {high}]"


def comparison_lines(costs: Costs) -> list[str]:
    """Return a sentence for every cell of the run that was compared."""
    return [f"{printable(one.segment)} × {printable(one.load)}: {one.sentence}" for one in costs.comparisons]


def step_title(step: StepCost) -> str:
    """Return what a step drafts, in words."""
    if not step.draft_length:
        return "ordinary"
    return f"{step.draft_length}{' (n-gram)' if step.drafting == 'ngram' else ''}"


def _step_cells(step: StepCost) -> tuple[str, str, str, str]:
    """Return batch, time, tokens and acceptance needed: "none pays" where accepting all is too little."""
    timed = str(step.batch), format_figure(step.step_ns, write.ms)
    if not step.draft_length:
        return (*timed, "1", "")
    none_pays = step.acceptance.value is None
    acceptance = "none pays" if none_pays else format_figure(step.acceptance, write.share)
    return (*timed, format_figure(step.ratio, write.ratio), acceptance)


def _split_cells(split: StepSplit) -> tuple[str, str, str, str]:
    """Return the ordinary step, what checking adds, drafting, and the longest drafting that pays."""
    limit = split.draft_limit_ns.value
    return (
        write.ms(split.ordinary_ns.value),
        format_figure(split.verification_ns, write.ms),
        format_figure(split.draft_ns, write.ms),
        "none pays" if limit is None else write.ms(limit),
    )


def _head(costs: Costs) -> list[str]:
    engine = f"{printable(costs.engine)} {printable(costs.engine_version)}, {printable(costs.method)}"
    how = (
        f"acceptance while timing: {costs.acceptance_while_timing}; {costs.repeats} waves a start, "
        f"answers of {costs.answer_tokens} tokens; intervals of {costs.confidence:.0%}"
    )
    return [f"Step costs of {printable(costs.plan_name)}: {engine}", f"  {how}"]


def _steps(costs: Costs) -> list[str]:
    header = ("Drafts", "Batch", "Step, ms", "Needs tokens per step", "Needs acceptance", "Waves")
    return _align([header, *((step_title(one), *_step_cells(one), str(one.waves)) for one in costs.steps)])


def _splits(costs: Costs) -> list[str]:
    if not costs.splits:
        return []
    header = ("Drafts", "Batch", "Ordinary step", "Checking adds", "Drafting", "Drafting may take")
    rows = [(str(one.draft_length), str(one.batch), *_split_cells(one)) for one in costs.splits]
    last = f"  The last column is the longest drafting that pays at an acceptance of {costs.acceptance:.0%}."
    return [*_align([header, *rows]), last]


def _source(costs: Costs) -> str:
    return " and ".join(SOURCES[source] for source in dict.fromkeys(split.source for split in costs.splits))


def _align(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
    ]


# What a comparison comes to -> its words and its tone.
_JUDGED = {
    "pays": ("pays", "gain"),
    "does_not_pay": ("does not pay", "harm"),
    "too_close": ("too close to call", "inconclusive"),
    "unknown": ("not known", "missing"),
}


def render_costs_html(costs: Costs) -> str:
    """Render the whole page."""
    own = [step for step in costs.steps if step.draft_length and step.drafting == "own"]
    full_ms = max((_total_ns(split) for split in costs.splits), default=0.0) / NS_PER_MS
    return render_page(
        "costs.html.j2",
        "draftproof.explore",
        costs=costs,
        headline=_headline(own),
        facts=_facts(costs),
        confidence=f"{costs.confidence:.0%}",
        acceptance=f"{costs.acceptance:.0%}",
        acceptance_plot=_plot_acceptance(costs, own),
        ratio_plot=_plot_ratio(costs, own),
        own_steps=_group_steps(step for step in costs.steps if step.drafting == "own"),
        lookup_steps=_group_steps(step for step in costs.steps if step.drafting == "ngram"),
        split_source=_source(costs),
        split_ticks=linear_ticks(full_ms),
        splits=_group_splits(costs, full_ms),
        judged=_JUDGED,
        figure=lambda one: format_figure(one, write.ratio),
    )


def _headline(own: list[StepCost]) -> str:
    """Say in one sentence where drafts pay most easily and where hardest."""
    known = [(step.acceptance.value, step) for step in own if step.acceptance.value is not None]
    never = [step for step in own if step.acceptance.value is None]
    if not known:
        return "Drafts never pay here: every step costs more than all its tokens."
    low, easy = min(known, key=lambda pair: pair[0])
    high, hard = max(known, key=lambda pair: pair[0])
    best = f"Drafts pay from an acceptance of {write.share(low)} at best ({_name(easy)})"
    if never:
        return f"{best}; with {_name(never[-1])}, none is enough."
    return f"{best} and of {write.share(high)} at worst ({_name(hard)})."


def _name(step: StepCost) -> str:
    return f"{_count_drafts(step.draft_length)}, batch {step.batch}"


def _count_drafts(length: int) -> str:
    return "1 draft" if length == 1 else f"{length} drafts"


def _facts(costs: Costs) -> tuple[tuple[str, str], ...]:
    prompts = {step.prompt_tokens for step in costs.steps if step.prompt_tokens is not None}
    memory = costs.host.get("memory_bytes")
    host = [str(costs.host[key]) for key in ("cpu", "system", "kernel") if costs.host.get(key)]
    return (
        ("Engine", f"{costs.engine} {costs.engine_version}"),
        ("Drafter", costs.method),
        ("Target", costs.target),
        ("Acceptance while timing", costs.acceptance_while_timing),
        ("Waves a start", str(costs.repeats)),
        ("Tokens of an answer", str(costs.answer_tokens)),
        ("Tokens of a prompt", _span(prompts)),
        ("Host", ", ".join(host) or MISSING),
        (
            "Cores, memory",
            f"{costs.host.get('cores')}, {write.size(memory if isinstance(memory, int) else None)}",
        ),
    )


def _span(numbers: set[int]) -> str:
    if not numbers:
        return MISSING
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _plot_acceptance(costs: Costs, own: list[StepCost]) -> Plot:
    series = _by_length(costs, own, lambda step: step.acceptance)
    scale = Scale(low=0.0, high=1.0, step=0.2, as_share=True)
    return draw_plot("Acceptance needed to break even", series, costs.batches, scale)


def _plot_ratio(costs: Costs, own: list[StepCost]) -> Plot:
    series = _by_length(costs, own, lambda step: step.ratio)
    highest = [s.ratio.value for s in own if s.ratio.value is not None]
    return draw_plot("Step with drafts / ordinary step", series, costs.batches, scale_for(highest, unity=1.0))


def _by_length(costs: Costs, own: list[StepCost], read: Callable[[StepCost], Figure]) -> list[Series]:
    """Return one curve over the batch for each draft length."""
    return [
        Series(
            label=f"K = {length}",
            readings=tuple(
                Reading(batch=s.batch, value=read(s).value, low=read(s).low, high=read(s).high)
                for s in own
                if s.draft_length == length
            ),
        )
        for length in costs.draft_lengths
    ]


def _group_steps(steps: Iterable[StepCost]) -> dict[str, list[tuple[str, ...]]]:
    """Return what steps draft -> the cells of their rows."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for step in steps:
        drafted = MISSING if step.drafted is None else f"{step.drafted:.2f}"
        last = drafted if step.draft_length else "", f"{step.waves} / {step.requests}"
        groups.setdefault(step_title(step), []).append((*_step_cells(step), *last))
    return groups


def _group_splits(costs: Costs, full_ms: float) -> dict[str, list[tuple[Any, ...]]]:
    """Return drafts -> batch, parts of the bar and cells of each row."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for length in costs.draft_lengths:
        for split in (one for one in costs.splits if one.draft_length == length):
            row = (split.batch, _parts(split, full_ms), *_split_cells(split))
            groups.setdefault(_count_drafts(length), []).append(row)
    return groups


def _parts(split: StepSplit, full_ms: float) -> tuple[Part, ...]:
    parts = (
        ("ordinary", "ordinary step", split.ordinary_ns.value),
        ("verify", "checking", split.verification_ns.value),
        ("draft", "drafting", split.draft_ns.value),
    )
    in_ms = [(tone, label, None if value is None else value / NS_PER_MS) for tone, label, value in parts]
    return stacked_parts(in_ms, full_ms)


def _total_ns(split: StepSplit) -> float:
    parts = (split.ordinary_ns.value, split.verification_ns.value, split.draft_ns.value)
    return sum(max(value or 0.0, 0.0) for value in parts)
