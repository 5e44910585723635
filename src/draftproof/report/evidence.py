"""The rows that the verdict's reasons point to, gathered in one table so that a reader need not search.

Pure. Each row has an anchor, to which the reasons at the top of the page link.
"""

from collections.abc import Iterable

import msgspec

from draftproof.report.labels import (
    POOLED,
    arm_label,
    comparison_label,
    metric_label,
    segment_label,
    sentence_case,
)
from draftproof.report.quantities import NS_PER_MS, format_count, format_points, format_ratio, format_share
from draftproof.report.view import Column, Group, Row, Table, TableCell, text_cell
from draftproof.verdict.diagnosis.step_cost import compute_step_ns
from draftproof.verdict.evidence import EvidenceRow, find_evidence
from draftproof.verdict.figure import Figure
from draftproof.verdict.results import Progress, Reason, Results

MOST_REASONS = 12
MOST_LINKED = 60
MOST_ROWS = 6


class LinkedReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason at the top of the page, with the anchor of what it rests on; no anchor, no link."""

    text: str
    evidence: str
    anchor: str


class EvidenceSection(msgspec.Struct, frozen=True, kw_only=True):
    """The table of cited rows; `left_out` counts references beyond the most that a page shows."""

    table: Table
    left_out: int


def anchor_of(references: Iterable[str], evidence: str) -> str:
    """Return the anchor of a reference among those that the page shows, "" if it is not among them."""
    shown = list(dict.fromkeys(references))[:MOST_LINKED]
    return f"evidence-{shown.index(evidence) + 1}" if evidence in shown else ""


def link_reasons(results: Results, reasons: Iterable[Reason]) -> tuple[LinkedReason, ...]:
    """Return the reasons with their links into the table of cited rows."""
    references = [one.evidence for one in results.verdict.reasons]
    return tuple(
        LinkedReason(
            text=sentence_case(one.text), evidence=one.evidence, anchor=anchor_of(references, one.evidence)
        )
        for one in reasons
    )


def build_evidence(results: Results) -> EvidenceSection:
    """Return the rows that the verdict's reasons rest on, each reference once, in their order."""
    references = list(dict.fromkeys(one.evidence for one in results.verdict.reasons))
    groups = tuple(
        Group(title="", rows=_rows(results, reference, anchor_of(references, reference)))
        for reference in references[:MOST_LINKED]
    )
    return EvidenceSection(
        table=Table(
            caption="Rows that the verdict rests on",
            columns=(
                Column(label="Reference", numeric=False),
                Column(label="Row of results.json", numeric=False),
                Column(label="Where", numeric=False),
                Column(label="What it says", numeric=False),
            ),
            groups=groups,
        ),
        left_out=max(len(references) - MOST_LINKED, 0),
    )


def _rows(results: Results, reference: str, anchor: str) -> tuple[Row, ...]:
    found = find_evidence(results, reference)
    head = TableCell(text=reference, head=True, anchor=anchor, tone="prose")
    if not found:
        return (Row(cells=(head, text_cell(""), text_cell(""), text_cell("no such row in these results"))),)
    rows = [
        Row(cells=(head if place == 0 else TableCell(text=""), *_row_cells(one)))
        for place, one in enumerate(found[:MOST_ROWS])
    ]
    if len(found) > MOST_ROWS:
        rest = f"{len(found) - MOST_ROWS:,} more rows of {found[0].table}"
        rows.append(Row(cells=(TableCell(text=""), text_cell(rest), TableCell(text=""), TableCell(text=""))))
    return tuple(rows)


def _row_cells(found: EvidenceRow) -> tuple[TableCell, ...]:
    row = found.row
    return (
        TableCell(text=f"{found.table}[{found.index}]", tone="nowrap"),
        text_cell(_where(row)),
        text_cell(_say(row), tone="prose"),
    )


def _where(row: object) -> str:
    segment, load = getattr(row, "segment", None), getattr(row, "load", None)
    parts = [segment_label(segment) if segment and segment != POOLED else "", str(load or "")]
    if segment == POOLED:
        parts[0] = "all segments"
    return " × ".join(part for part in parts if part)


def _say(row: object) -> str:
    """Return what a row holds, in one line."""
    arm, versus = getattr(row, "arm", None), getattr(row, "versus", None)
    who = comparison_label(arm, versus) if arm and versus else arm_label(arm) if arm else ""
    parts = [who, *_list_figures(row)]
    return ", ".join(part for part in parts if part)


def _list_figures(row: object) -> list[str]:
    told = []
    if (metric := getattr(row, "metric", None)) is not None:
        told.append(f"{metric_label(metric).lower()}, {getattr(row, 'statistic', '')}".rstrip(", "))
    for name, write in (("effect", format_ratio), ("ratio", format_ratio), ("difference", format_points)):
        figure = getattr(row, name, None)
        if isinstance(figure, Figure):
            told.append(_figure(figure, write))
    if isinstance(getattr(row, "simultaneous", None), Figure):
        joint = row.simultaneous  # type: ignore[attr-defined]
        told += [f"simultaneous {_figure(joint, format_ratio)}"] if joint.low is not None else []
    return told + _list_plain(row)


def _list_plain(row: object) -> list[str]:
    """Return the counts and words of rows that are no ratio."""
    named = dict.fromkeys(("status", "bound", "reading", "phrase", "detail"), "{}")
    named["attempted"] = "{} requests"
    told = [words.format(getattr(row, name)) for name, words in named.items() if hasattr(row, name)]
    outcomes = getattr(row, "outcomes", None)
    if isinstance(outcomes, dict):
        told.append(", ".join(f"{format_count(n)} {name}" for name, n in outcomes.items()))
    acceptance = getattr(row, "acceptance", None)
    if acceptance is not None and acceptance.draft_acceptance_rate is not None:
        told.append(f"{format_share(acceptance.draft_acceptance_rate)} of drafts accepted")
    progress = getattr(row, "progress", None)
    if progress is not None and progress.rounds:
        told += _list_step(progress)
    if hasattr(row, "turns") and hasattr(row, "completed"):
        told.append(f"{row.turns} turns, {row.completed} ended, {row.lagged} with a late client")  # type: ignore[attr-defined]
    return told


def _list_step(progress: Progress) -> list[str]:
    """Return what a step brings and takes; the arms' rows beside each other give the cost in steps."""
    told = [f"{format_ratio(progress.committed_tokens / progress.rounds)} tokens a step"]
    step_ns = compute_step_ns(progress)
    return told if step_ns is None else [*told, f"{step_ns / NS_PER_MS:,.4g} ms a step"]


def _figure(figure: Figure, write: object) -> str:
    assert callable(write)  # noqa: S101 - narrowed for the type checker
    if figure.value is None:
        return f"none ({figure.reason or 'not known'})"
    span = f" [{write(figure.low)}, {write(figure.high)}]" if figure.low is not None else ""
    return f"{write(figure.value)}{span}"
