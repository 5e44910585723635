"""Acceptance by position and by segment, and the two lengths that are so often taken for one another.

Pure view of `ArmCell.acceptance`: the conditional mean acceptance length beside the unconditional tokens
per decode step.

Committed progress: where the time of one committed token goes, as stacked bars per arm, load and segment.

Pure view of `ArmCell.progress`. All bars of the page share one axis.
"""

import msgspec

from draftproof.judge.results.run import Acceptance, ArmCell, Progress, Results
from draftproof.tell.report.charts import Part, Tick, linear_ticks, stacked_parts
from draftproof.tell.report.quantities import (
    MISSING,
    NS_PER_MS,
    arm_label,
    format_count,
    format_ms,
    format_ratio,
    format_share,
    segment_heading,
    segment_label,
)
from draftproof.tell.report.view import (
    Column,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    arm_cells_by_segment,
    candidate_ratios,
    choose_segments,
    count_cell,
    describe_left_out,
    label_column,
    make_panels,
    order_loads,
    panels_are_open,
    text_cell,
    title_of_load,
)

_POSITION = "Accepted at draft position (%), given that all before it were"


def build_acceptance(results: Results) -> tuple[Panel, ...]:
    """One table per load that has an arm with drafts."""
    tables = [(title_of_load(results, load), _table(results, load)) for load in order_loads(results)]
    return make_panels(tables)


def acceptance_sentence(results: Results) -> str:
    """How the two lengths compare over the run, in one sentence."""
    cells = [c for c in results.arm_cells if c.acceptance and c.arm == "candidate" and c.segment != "all"]
    pairs = [
        (c.acceptance.mean_acceptance_length, c.acceptance.tokens_per_decode_step)
        for c in cells
        if c.acceptance
    ]
    both = [(m, t) for m, t in pairs if m is not None and t is not None]
    if not both:
        return "No arm reported drafts and decode steps together, so the two lengths cannot be compared."
    lengths, steps = zip(*both, strict=True)
    return (
        f"Counted only where a draft was made, a step gave {_range(lengths)} tokens; "
        f"counted over all decode steps, {_range(steps)}. The second one bounds the speed-up."
    )


def is_drafting(cell: ArmCell) -> bool:
    """Whether the arm drafted here; the candidate always counts, so that a silent drafter is seen."""
    return cell.acceptance is not None and (cell.arm == "candidate" or cell.acceptance.num_spec_steps > 0)


def _range(values: tuple[float, ...]) -> str:
    low, high = format_ratio(min(values)), format_ratio(max(values))
    return low if low == high else f"{low} to {high}"


def _table(results: Results, load: str) -> Table:
    drafted = [c.acceptance for c in results.arm_cells if c.load == load and c.acceptance and is_drafting(c)]
    positions = max((len(a.position_acceptance) for a in drafted), default=0)
    rows = tuple(
        _row(cell, cell.acceptance, positions)
        for _, cells in arm_cells_by_segment(results, load)
        for cell in cells
        if cell.acceptance and is_drafting(cell)
    )
    return Table(
        caption=f"Acceptance, {title_of_load(results, load)}",
        columns=_columns(segment_heading(results.segments), positions),
        groups=(Group(title="", rows=rows),) if rows else (),
    )


def _columns(heading: str, positions: int) -> tuple[Column, ...]:
    return (
        label_column(heading),
        label_column("Arm"),
        Column(label="Verification steps"),
        Column(label="Decode steps"),
        Column(label="Draft acceptance rate"),
        Column(label="Mean acceptance length (conditional)", over="Tokens"),
        Column(label="Per decode step (unconditional)", over="Tokens"),
        *(Column(label=str(i + 1), over=_POSITION) for i in range(positions)),
    )


def _row(cell: ArmCell, acceptance: Acceptance, positions: int) -> Row:
    return Row(
        cells=(
            text_cell(segment_label(cell.segment), head=True, tone="strong"),
            text_cell(arm_label(cell.arm), tone=f"arm {cell.arm}"),
            count_cell(acceptance.num_spec_steps),
            count_cell(acceptance.decode_steps),
            text_cell(format_share(acceptance.draft_acceptance_rate)),
            text_cell(format_ratio(acceptance.mean_acceptance_length)),
            text_cell(format_ratio(acceptance.tokens_per_decode_step), tone="strong"),
            *_position_cells(acceptance, positions),
        )
    )


def _position_cells(acceptance: Acceptance, positions: int) -> tuple[TableCell, ...]:
    shares = acceptance.position_acceptance
    padded = shares + (None,) * (positions - len(shares))
    return tuple(
        TableCell(text=MISSING, tone="missing")
        if share is None
        else TableCell(text=f"{share * 100:.0f}", heat=round(share * 100))
        for share in padded
    )


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
            rows = tuple(_progress_row(cell, progress, full_ns) for cell, progress in measured)
            groups.append(ProgressGroup(title=segment_label(segment), rows=rows))
    left_out = describe_left_out(present, len(groups))
    return (*groups, *((ProgressGroup(title=left_out, rows=()),) if left_out else ()))


def _progress_row(cell: ArmCell, progress: Progress, full_ns: float) -> ProgressRow:
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
