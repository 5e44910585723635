"""The decision that the same run would get by another estimator of time per token.

Pure view of `Results.rival_verdicts`.
"""

from collections import Counter
from collections.abc import Iterable

from draftproof.report.grouping import label_column
from draftproof.report.labels import DECISIONS, METRICS, STATUSES
from draftproof.report.view import Column, Group, Row, Table, TableCell, count_cell, text_cell
from draftproof.verdict.results import Cell, Results
from draftproof.verdict.rivals.results import RivalCell

_OURS = "tpot_ns"
_RAW_GAPS = "chunk_gap"


def build_rivals(results: Results) -> Table:
    """Ours first, then each rival: its decision and how many cells get which status."""
    rows = [
        _row(rival.estimator, rival.used_by, rival.decision, rival.cells, differs=not rival.agrees)
        for rival in results.rival_verdicts
    ]
    own = _row(_OURS, "this report", results.verdict.decision, results.cells, differs=False)
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
    if results.metric != _OURS:
        return (
            f"{METRICS.get(results.metric, results.metric)} decides this run, not time per token, so no "
            "estimator of time per token would change the verdict."
        )
    return "These results hold no verdict by other estimators; re-compute them with draftproof report."


def _row(name: str, used_by: str, decision: str, cells: Iterable[Cell | RivalCell], *, differs: bool) -> Row:
    counts = Counter(cell.status for cell in cells)
    word = DECISIONS.get(decision)
    return Row(
        cells=(
            TableCell(text=name, detail=used_by, head=True),
            text_cell(word.label if word else decision, tone="bad" if differs else "strong"),
            *(count_cell(counts[status]) for status in STATUSES),  # type: ignore[index]
        )
    )
