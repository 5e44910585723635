"""Where the time of every arm goes, as stacked bars per load and segment, with what decoding can give.

Pure view of `Results.diagnoses`. All bars stand for the same whole, so they share one axis of per cent.

What the baseline's time is spent on at each load, and the most that faster decoding could give.

Pure view of `Results.diagnosis`.
"""

import msgspec

from draftproof.judge.results.diagnosis import Diagnoses, TimeParts
from draftproof.judge.results.run import Diagnosis, Figure, Results
from draftproof.tell.report.charts import Part, Tick, linear_ticks, stacked_parts
from draftproof.tell.report.quantities import MISSING, arm_label, format_ratio, format_share, segment_label
from draftproof.tell.report.view import (
    Column,
    Group,
    Row,
    Table,
    label_column,
    order_loads,
    order_segments,
    panels_are_open,
    text_cell,
    title_of_load,
)

TONES = (
    ("queue", "Queue"),
    ("prefill", "Prefill"),
    ("before_first", "Before the first token, where the engine does not split it"),
    ("decode", "Decoding"),
    ("other", "Other: client, network, tools, between steps"),
)


class TimeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its bar, its bound, and (value, interval) of decode share, ceiling, predicted, measured."""

    arm: str
    tone: str
    parts: tuple[Part, ...]
    bound: str
    shown: bool
    source: str
    figures: tuple[tuple[str, str], ...]


class TimeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The arms of one segment."""

    title: str
    rows: tuple[TimeRow, ...]


class TimePanel(msgspec.Struct, frozen=True, kw_only=True):
    """One load."""

    title: str
    opened: bool
    groups: tuple[TimeGroup, ...]


class RemedyView(msgspec.Struct, frozen=True, kw_only=True):
    """One remedy: what to look at, where, why, and the figures it rests on as (text, row)."""

    title: str
    loads: str
    stake: str
    text: str
    evidence: tuple[tuple[str, str], ...]


class TimeSection(msgspec.Struct, frozen=True, kw_only=True):
    """All bars, the remedies in their order, and the bounds that the traces say nothing of."""

    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    panels: tuple[TimePanel, ...]
    remedies: tuple[RemedyView, ...]
    not_measured: tuple[tuple[str, str], ...]


def build_time_section(results: Results) -> TimeSection | None:
    """Lay out where time goes; None for results of an earlier version, which lack it."""
    found = results.diagnoses
    if found is None:
        return None
    told = [one for one in found.parts if one.source != "none"]
    used = {tone for one in told for tone, _, _ in _triples(one)}
    is_short = panels_are_open([len(told)])
    panels = tuple(
        TimePanel(title=title_of_load(results, load), opened=is_short or index == 0, groups=groups)
        for index, load in enumerate(order_loads(results))
        if (groups := _groups(results, told, load))
    )
    return TimeSection(
        ticks=linear_ticks(100),
        legend=tuple((tone, label) for tone, label in TONES if tone in used),
        panels=panels,
        remedies=_remedies(results, found),
        not_measured=found.not_measured,
    )


def write_figure(figure: Figure | None, *, times: bool = False) -> tuple[str, str]:
    """Return (value, interval) as per cent, or as a factor; the dash and why where there is none."""
    if figure is None:
        return "", ""
    write = _write_times if times else format_share
    if figure.value is None:
        return MISSING, figure.reason or ""
    if figure.low is None and figure.high is None:
        return write(figure.value), figure.reason or ""
    return write(figure.value), f"[{write(figure.low)}, {write(figure.high)}]"


def _write_times(value: float | None) -> str:
    return MISSING if value is None else f"{format_ratio(value)}×"


def _groups(results: Results, told: list[TimeParts], load: str) -> tuple[TimeGroup, ...]:
    here = [one for one in told if one.load == load]
    return tuple(
        TimeGroup(
            title=segment_label(segment),
            rows=tuple(_row(one) for one in here if one.segment == segment),
        )
        for segment in order_segments(results, {one.segment for one in here})
    )


def _row(parts: TimeParts) -> TimeRow:
    triples = [(tone, f"{label} {format_share(value)}", value) for tone, label, value in _triples(parts)]
    return TimeRow(
        arm=arm_label(parts.arm),
        tone=parts.arm,
        parts=stacked_parts(triples, max(1.0, sum(value or 0.0 for _, _, value in triples))),
        bound=parts.bound,
        shown=parts.is_shown,
        source=parts.source,
        figures=(
            write_figure(parts.decode),
            write_figure(parts.ceiling, times=True),
            write_figure(parts.predicted, times=True),
            write_figure(parts.measured, times=True),
        ),
    )


def _triples(parts: TimeParts) -> list[tuple[str, str, float | None]]:
    """Return (tone, label, share) of what is known; by the client's clock the first token stands for two."""
    figures = {
        "queue": parts.queue,
        "prefill": parts.prefill,
        "before_first": parts.before_first if parts.source == "client" else None,
        "decode": parts.decode,
        "other": parts.other,
    }
    labels = dict(TONES)
    return [
        (tone, labels[tone], figure.value)
        for tone, figure in figures.items()
        if figure is not None and figure.value is not None
    ]


def _remedies(results: Results, found: Diagnoses) -> tuple[RemedyView, ...]:
    return tuple(
        RemedyView(
            title=one.title,
            loads="; ".join(title_of_load(results, load) for load in one.loads),
            stake="" if one.stake is None else format_share(one.stake),
            text=one.text,
            evidence=tuple((sign.text, sign.row) for sign in one.evidence),
        )
        for one in found.remedies
    )


_SHARES = "Share of the baseline's time"
_GAIN = "End-to-end gain (baseline / candidate)"


def build_diagnosis(results: Results) -> Table:
    """One row per load level."""
    return Table(
        caption="Where the baseline's time goes, and what faster decoding can give",
        columns=(
            label_column("Load"),
            label_column("Bound by"),
            *(Column(label=label, over=_SHARES) for label in ("queue", "prefill", "decode", "other")),
            Column(label="Decode speed-up"),
            *(Column(label=label, over=_GAIN) for label in ("ceiling", "predicted", "measured")),
            label_column("Reading"),
        ),
        groups=(Group(title="", rows=tuple(_bound_row(results, d) for d in results.diagnosis)),)
        if results.diagnosis
        else (),
    )


def _bound_row(results: Results, diagnosis: Diagnosis) -> Row:
    shares = (
        diagnosis.queue_share,
        diagnosis.prefill_share,
        diagnosis.decode_share,
        diagnosis.other_share,
    )
    gains = (diagnosis.ceiling_gain, diagnosis.predicted_gain, diagnosis.measured_gain)
    return Row(
        cells=(
            text_cell(title_of_load(results, diagnosis.load), head=True),
            text_cell(diagnosis.bound),
            *(text_cell(format_share(share)) for share in shares),
            text_cell(_times(diagnosis.decode_speedup)),
            *(text_cell(_times(gain)) for gain in gains),
            text_cell(diagnosis.text, tone="prose"),
        )
    )


def _times(ratio: float | None) -> str:
    return MISSING if ratio is None else f"{format_ratio(ratio)}×"
