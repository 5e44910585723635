"""Committed progress: where the time of one committed token goes, as stacked bars per arm, load and segment.

Pure view of `ArmCell.progress`. All bars of the page share one axis.
"""

import msgspec

from draftproof.report.charts import Part, Tick, linear_ticks, stacked_parts
from draftproof.report.grouping import (
    arm_cells_by_segment,
    candidate_ratios,
    choose_segments,
    describe_left_out,
    order_loads,
    title_of_load,
)
from draftproof.report.labels import arm_label, segment_label
from draftproof.report.quantities import NS_PER_MS, format_count, format_ms
from draftproof.report.view import panels_are_open
from draftproof.verdict.results import ArmCell, Progress, Results

PARTS = (
    ("draft", "Drafting"),
    ("verify", "Verification or ordinary decoding"),
    ("sample", "Sampling"),
    ("schedule", "Scheduling"),
)


class ProgressRow(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its bar, the total and the split in ms, and what it rests on."""

    arm: str
    tone: str
    parts: tuple[Part, ...]
    total: str
    split: tuple[str, ...]
    committed: str
    per_round: str


class ProgressGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The arms of one segment."""

    title: str
    rows: tuple[ProgressRow, ...]


class ProgressPanel(msgspec.Struct, frozen=True, kw_only=True):
    """One load level."""

    title: str
    opened: bool
    groups: tuple[ProgressGroup, ...]


class ProgressChart(msgspec.Struct, frozen=True, kw_only=True):
    """All bars with their common axis in ms and the legend as (tone, label)."""

    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    panels: tuple[ProgressPanel, ...]


def build_progress(results: Results) -> ProgressChart:
    """Stack the time per committed token of every arm cell that has it."""
    measured = [cell for cell in results.arm_cells if _has_progress(cell)]
    full_ns = max((_total_ns(cell.progress) for cell in measured if cell.progress), default=0.0) * 1.04
    panels = tuple(
        ProgressPanel(
            title=title_of_load(results, load),
            opened=panels_are_open([len(measured)]) or index == 0,
            groups=groups,
        )
        for index, load in enumerate(order_loads(results))
        if (groups := _groups(results, load, full_ns))
    )
    return ProgressChart(ticks=linear_ticks(full_ns / NS_PER_MS), legend=PARTS, panels=panels)


def _has_progress(cell: ArmCell) -> bool:
    return cell.progress is not None and cell.progress.time_per_committed_token_ns is not None


def _total_ns(progress: Progress) -> float:
    return max(progress.time_per_committed_token_ns or 0.0, sum(v or 0.0 for v in _split_ns(progress)))


def _split_ns(progress: Progress) -> tuple[float | None, ...]:
    return (progress.draft_ns, progress.verify_ns, progress.sample_ns, progress.schedule_ns)


def _groups(results: Results, load: str, full_ns: float) -> tuple[ProgressGroup, ...]:
    kept = choose_segments(results, load, candidate_ratios(results, load))
    groups, present = [], 0
    for segment, cells in arm_cells_by_segment(results, load):
        measured = [(cell, cell.progress) for cell in cells if cell.progress and _has_progress(cell)]
        present += bool(measured)
        if measured and (kept is None or segment in kept):
            rows = tuple(_row(cell, progress, full_ns) for cell, progress in measured)
            groups.append(ProgressGroup(title=segment_label(segment), rows=rows))
    left_out = describe_left_out(present, len(groups))
    return (*groups, *((ProgressGroup(title=left_out, rows=()),) if left_out else ()))


def _row(cell: ArmCell, progress: Progress, full_ns: float) -> ProgressRow:
    split = _split_ns(progress)
    triples = [
        (tone, f"{label} {format_ms(value)} ms", value)
        for (tone, label), value in zip(PARTS, split, strict=True)
    ]
    per_round = progress.committed_tokens / progress.rounds if progress.rounds else None
    return ProgressRow(
        arm=arm_label(cell.arm),
        tone=cell.arm,
        parts=stacked_parts(triples, full_ns),
        total=format_ms(progress.time_per_committed_token_ns),
        split=tuple(format_ms(value) for value in split),
        committed=format_count(progress.committed_tokens),
        per_round="—" if per_round is None else f"{per_round:.2f}",
    )
