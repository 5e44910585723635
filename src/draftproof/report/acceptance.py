"""Acceptance by position and by segment, and the two lengths that are so often taken for one another.

Pure view of `ArmCell.acceptance`: the conditional mean acceptance length beside the unconditional tokens
per decode step.
"""

from draftproof.report.grouping import (
    arm_cells_by_segment,
    label_column,
    make_panels,
    order_loads,
    title_of_load,
)
from draftproof.report.labels import arm_label, segment_heading, segment_label
from draftproof.report.quantities import MISSING, format_ratio, format_share
from draftproof.report.view import Column, Group, Panel, Row, Table, TableCell, count_cell, text_cell
from draftproof.verdict.results import Acceptance, ArmCell, Results

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
