"""How rival estimators of inter-token latency would have judged this very run, ours marked.

Pure view of `Results.estimators`.

The decision that the same run would get by another estimator of time per token.

Pure view of `Results.rival_verdicts`.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from draftproof.judge.results.rivals import RivalCell
from draftproof.judge.results.run import Cell, EstimatorRow, Results
from draftproof.tell.report.charts import Axis, Whisker, ratio_axis, whisker
from draftproof.tell.report.quantities import (
    DECISIONS,
    METRICS,
    STATUSES,
    format_change,
    format_ms,
    format_ratio,
)
from draftproof.tell.report.view import (
    Column,
    Group,
    Row,
    Table,
    TableCell,
    count_cell,
    label_column,
    order_loads,
    text_cell,
    title_of_load,
)

_OURS = "tpot_ns"


class RivalRow(msgspec.Struct, frozen=True, kw_only=True):
    """One estimator: what it says in figures and its mean ratio on the axis."""

    estimator: str
    used_by: str
    ours: bool
    baseline: str
    candidate: str
    ratio_mean: str
    ratio_p50: str
    ratio_p99: str
    mean_mark: Whisker
    p99_mark: Whisker


class RivalPanel(msgspec.Struct, frozen=True, kw_only=True):
    """All estimators at one load, and how far they disagree in a sentence."""

    title: str
    opened: bool
    sentence: str
    rows: tuple[RivalRow, ...]


class RivalChart(msgspec.Struct, frozen=True, kw_only=True):
    """All loads on one axis."""

    axis: Axis
    panels: tuple[RivalPanel, ...]


def build_estimators(results: Results) -> RivalChart:
    """Lay the estimators of each load on one ratio axis."""
    ends = [r for row in results.estimators for r in (row.ratio_mean, row.ratio_p99)]
    axis = ratio_axis(ends, below=None, above=None)
    loads = [load for load in order_loads(results) if any(r.load == load for r in results.estimators)]
    panels = tuple(
        _panel(results, load, axis, opened=len(loads) <= 4 or index == 0) for index, load in enumerate(loads)
    )
    return RivalChart(axis=axis, panels=panels)


def disagreement_sentence(rows: list[EstimatorRow]) -> str:
    """Say the range that the same requests span over the estimators, and how many see a gain."""
    ratios = [row.ratio_mean for row in rows if row.ratio_mean is not None]
    if not ratios:
        return "No estimator had both arms to compare."
    sides = [_read_side(row.ratio_mean, row.null_ratio_mean) for row in rows if row.ratio_mean is not None]
    beyond = " by more than it sees two equal arms differ" if any(row.null_ratio_mean for row in rows) else ""
    return (
        f"The same requests read as {format_change(min(ratios))} by one estimator's mean and "
        f"{format_change(max(ratios))} by another's: {sides.count(-1)} of {len(ratios)} see the candidate "
        f"faster, {sides.count(1)} slower{beyond}."
    )


def _read_side(ratio: float, null: float | None) -> int:
    """Return −1 where a ratio lies below 1 by more than that of two equal arms, 1 above, 0 where neither."""
    floor = max(null, 1 / null) if null else 1.0
    return -1 if ratio * floor < 1 else int(ratio > floor)


def _panel(results: Results, load: str, axis: Axis, *, opened: bool) -> RivalPanel:
    rows = [row for row in results.estimators if row.load == load]
    return RivalPanel(
        title=title_of_load(results, load),
        opened=opened,
        sentence=disagreement_sentence(rows),
        rows=tuple(_row(row, axis) for row in sorted(rows, key=lambda r: not _is_ours(r))),
    )


def _is_ours(row: EstimatorRow) -> bool:
    return row.estimator == _OURS or "draftproof" in row.used_by.lower()


def _row(row: EstimatorRow, axis: Axis) -> RivalRow:
    return RivalRow(
        estimator=row.estimator,
        used_by=row.used_by,
        ours=_is_ours(row),
        baseline=format_ms(row.baseline_mean_ns),
        candidate=format_ms(row.candidate_mean_ns),
        ratio_mean=format_ratio(row.ratio_mean),
        ratio_p50=format_ratio(row.ratio_p50),
        ratio_p99=format_ratio(row.ratio_p99),
        mean_mark=whisker(axis, row.ratio_mean, None, None, "candidate"),
        p99_mark=whisker(axis, row.ratio_p99, None, None, "alternative"),
    )


_OWN_VERDICT = "tpot_ns"
_RAW_GAPS = "chunk_gap"


def build_rivals(results: Results) -> Table:
    """Ours first, then each rival: its decision and how many cells get which status."""
    rows = [
        _verdict_row(rival.estimator, rival.used_by, rival.decision, rival.cells, differs=not rival.agrees)
        for rival in results.rival_verdicts
    ]
    own = _verdict_row(_OWN_VERDICT, "this report", results.verdict.decision, results.cells, differs=False)
    return Table(
        caption="The verdict by estimator: same pairs, resamples, margins and guardrails",
        columns=(
            label_column("Estimator"),
            label_column("Decision"),
            *(Column(label=STATUSES[status].label) for status in STATUSES),
        ),
        groups=(Group(title="", rows=(own, *rows)),) if rows else (),
    )


def rivals_sentences(results: Results) -> tuple[str, ...]:
    """Say what raw chunk gaps would have decided, and which other estimators would decide otherwise."""
    if not results.rival_verdicts:
        return (_why_none(results),)
    raw = [one.sentence for one in results.rival_verdicts if one.estimator == _RAW_GAPS]
    others = [one for one in results.rival_verdicts if one.estimator != _RAW_GAPS]
    changed = [one.estimator for one in others if one.decision != results.verdict.decision]
    moved = [one.estimator for one in others if not one.agrees and one.estimator not in changed]
    texts = []
    if changed:
        texts.append(f"The decision would also be another by {', '.join(changed)}.")
    if moved:
        texts.append(
            f"The decision would be the same, but not the status of every cell, by {', '.join(moved)}."
        )
    if others and not changed and not moved:
        texts.append("Every other estimator agrees in every cell.")
    return (*raw, *texts)


def _why_none(results: Results) -> str:
    if results.metric != _OWN_VERDICT:
        return (
            f"{METRICS.get(results.metric, results.metric)} decides this run, not time per token, so no "
            "estimator of time per token would change the verdict."
        )
    return "These results hold no verdict by other estimators; re-compute them with draftproof report."


def _verdict_row(
    name: str, used_by: str, decision: str, cells: Iterable[Cell | RivalCell], *, differs: bool
) -> Row:
    counts = Counter(cell.status for cell in cells)
    word = DECISIONS.get(decision)
    return Row(
        cells=(
            TableCell(text=name, detail=used_by, head=True),
            text_cell(word.label if word else decision, tone="bad" if differs else "strong"),
            *(count_cell(counts[status]) for status in STATUSES),  # type: ignore[index]
        )
    )
