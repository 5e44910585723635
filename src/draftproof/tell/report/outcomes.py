"""Output agreement, checks of answers, and what became of every request.

Pure view of `Results.agreements`, `ArmCell.checks`, `ArmCell.outcomes` and `Results.differences`.

What every table of checks shows of an arm: how many were judged, passed, failed where it is critical.
"""

from collections import Counter
from statistics import median_low
from typing import Protocol

from draftproof.judge.results.run import Agreement, ArmCell, Difference, Results
from draftproof.tell.report.quantities import (
    MISSING,
    OUTCOME_LABELS,
    OUTCOMES,
    POOLED,
    QUANTITIES,
    arm_label,
    format_points,
    format_share,
    segment_label,
)
from draftproof.tell.report.view import (
    Column,
    Footnotes,
    Group,
    Panel,
    Row,
    Table,
    TableCell,
    count_cell,
    figure_cell,
    label_column,
    make_panels,
    order_arms,
    order_loads,
    order_segments,
    segment_groups,
    text_cell,
    title_of_load,
)

CHECK_COLUMNS = (
    label_column("Arm"),
    Column(label="Judged"),
    Column(label="Passed"),
    Column(label="Share passed"),
    Column(label="Critical failures"),
    Column(label="Not judged"),
)


class CheckCounts(Protocol):
    """Counts of checks, of one kind or of all."""

    @property
    def judged(self) -> int:
        """How many were judged."""
        ...

    @property
    def passed(self) -> int:
        """How many of these passed."""
        ...

    @property
    def critical_failed(self) -> int:
        """How many critical ones failed."""
        ...

    @property
    def unjudged(self) -> int:
        """How many could not be judged."""
        ...


def check_cells(arm: str, counts: CheckCounts) -> tuple[TableCell, ...]:
    """Return the cells below `CHECK_COLUMNS`; a share of nothing is missing."""
    return (
        text_cell(arm_label(arm), head=True, tone=f"arm {arm}"),
        count_cell(counts.judged),
        count_cell(counts.passed),
        text_cell(format_share(counts.passed / counts.judged if counts.judged else None)),
        count_cell(counts.critical_failed, tone="bad" if counts.critical_failed else "zero"),
        count_cell(counts.unjudged, tone="" if counts.unjudged else "zero"),
    )


_DIVERGENCES_SHOWN = 6


def build_agreement(results: Results) -> Table:
    """How often two arms gave the same greedy output, and where they first part."""
    notes = Footnotes()
    arms = order_arms(results, {a.arm for a in results.agreements})
    groups = []
    for load in order_loads(results):
        here = sorted((a for a in results.agreements if a.load == load), key=lambda a: arms.index(a.arm))
        if here:
            rows = tuple(_agreement_row(a, notes) for a in here)
            groups.append(Group(title=title_of_load(results, load), rows=rows))
    return Table(
        caption="Greedy outputs compared with the baseline's",
        columns=(
            label_column("Arms"),
            Column(label="Compared"),
            Column(label="Identical"),
            Column(label="Share identical"),
            Column(label="First difference, by token", numeric=False),
            Column(label="Reading", numeric=False),
        ),
        groups=tuple(groups),
        notes=notes.notes(),
    )


def agreement_sentence(results: Results) -> str:
    """Compare the candidate's agreement with the off-off null's, pooled over the loads."""
    null, candidate = _pooled(results, "baseline_null"), _pooled(results, "candidate")
    if candidate is None:
        return "No greedy outputs were compared between candidate and baseline."
    said = f"The candidate gave the baseline's greedy output in {candidate[0]:,} of {candidate[1]:,} cases"
    if null is None:
        return f"{said}; without an off-off null, the service's own variation is not known."
    return f"{said}; the baseline repeated itself in {null[0]:,} of {null[1]:,}."


def _pooled(results: Results, arm: str) -> tuple[int, int] | None:
    rows = [a for a in results.agreements if a.arm == arm and a.versus == "baseline"]
    compared = sum(a.compared for a in rows)
    return (sum(a.identical for a in rows), compared) if compared else None


def _agreement_row(agreement: Agreement, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(
                f"{arm_label(agreement.arm)} vs {arm_label(agreement.versus).lower()}",
                head=True,
                tone=f"arm {agreement.arm}",
            ),
            count_cell(agreement.compared),
            count_cell(agreement.identical),
            figure_cell(agreement.identical_share, format_share, notes),
            text_cell(_divergences(agreement.first_divergence_tokens)),
            text_cell(agreement.statement or "", tone="prose"),
        )
    )


def _divergences(tokens: tuple[int, ...]) -> str:
    if not tokens:
        return MISSING
    ordered = sorted(tokens)
    if len(ordered) <= _DIVERGENCES_SHOWN:
        return ", ".join(f"{t:,}" for t in ordered)
    return f"{ordered[0]:,} to {ordered[-1]:,}, median {median_low(ordered):,}"


def build_checks(results: Results) -> tuple[Panel, ...]:
    """Checks per segment and arm, one table per load."""
    return make_panels(
        [(title_of_load(results, load), _checks_table(results, load)) for load in order_loads(results)]
    )


def checks_sentence(results: Results) -> str:
    """Passed checks and critical failures of each arm over all loads and segments."""
    said = []
    for arm in order_arms(results, {cell.arm for cell in results.arm_cells}):
        checks = [c.checks for c in _pooled_cells(results.arm_cells, arm)]
        judged, passed = sum(c.judged for c in checks), sum(c.passed for c in checks)
        critical = sum(c.critical_failed for c in checks)
        said.append(f"{arm_label(arm)}: {passed:,} of {judged:,} passed, {critical:,} critical failed")
    return "; ".join(said) + "." if said else "No answer was judged."


def _pooled_cells(cells: tuple[ArmCell, ...], arm: str) -> list[ArmCell]:
    """The arm's pooled cells, or all of its cells where none is pooled."""
    own = [cell for cell in cells if cell.arm == arm]
    return [cell for cell in own if cell.segment == POOLED] or own


def _checks_table(results: Results, load: str) -> Table:
    return Table(
        caption=f"Checks of answers, {title_of_load(results, load)}",
        columns=(*CHECK_COLUMNS, Column(label="Fallbacks to ordinary decoding")),
        groups=segment_groups(results, load, _checks_row, lambda cell: cell.checks.critical_failed > 0),
    )


def _checks_row(cell: ArmCell) -> Row:
    return Row(cells=(*check_cells(cell.arm, cell.checks), count_cell(cell.fallbacks)))


def build_outcomes(results: Results) -> Table:
    """Every request of every arm and load by its outcome, segments pooled."""
    kinds = [*OUTCOMES, *sorted({k for c in results.arm_cells for k in c.outcomes} - set(OUTCOMES))]
    arms = order_arms(results, {cell.arm for cell in results.arm_cells})
    groups = tuple(
        Group(
            title=title_of_load(results, load),
            rows=tuple(_outcome_row(results, load, arm, kinds) for arm in arms),
        )
        for load in order_loads(results)
    )
    return Table(
        caption="Requests by outcome",
        columns=(
            label_column("Arm"),
            Column(label="Attempted"),
            *(Column(label=OUTCOME_LABELS.get(kind, kind)) for kind in kinds),
        ),
        groups=groups if arms else (),
    )


def _outcome_row(results: Results, load: str, arm: str, kinds: list[str]) -> Row:
    pooled = _pooled_cells(tuple(c for c in results.arm_cells if c.load == load), arm)
    counts = Counter[str]()
    for cell in pooled:
        counts.update(cell.outcomes)
    return Row(
        cells=(
            text_cell(arm_label(arm), head=True, tone=f"arm {arm}"),
            count_cell(sum(c.attempted for c in pooled)),
            *(count_cell(counts[k], tone=_failure_tone(k, counts[k])) for k in kinds),
        )
    )


def _failure_tone(kind: str, count: int) -> str:
    if kind == "ok":
        return ""
    return "bad" if count else "zero"


def build_differences(results: Results) -> Table:
    """Differences of shares against the baseline, with intervals."""
    notes = Footnotes()
    segments = order_segments(results, {d.segment for d in results.differences})
    arms = order_arms(results, {d.arm for d in results.differences})
    groups = []
    for load in order_loads(results):
        here = [d for d in results.differences if d.load == load]
        ordered = sorted(here, key=lambda d: (d.quantity, segments.index(d.segment), arms.index(d.arm)))
        if ordered:
            rows = tuple(_difference_row(d, notes) for d in ordered)
            groups.append(Group(title=title_of_load(results, load), rows=rows))
    return Table(
        caption="Differences of shares, in percentage points",
        columns=(
            label_column("Quantity"),
            label_column("Segment"),
            label_column("Arms"),
            Column(label="Difference"),
        ),
        groups=tuple(groups),
        notes=notes.notes(),
    )


def _difference_row(difference: Difference, notes: Footnotes) -> Row:
    return Row(
        cells=(
            text_cell(QUANTITIES.get(difference.quantity, difference.quantity), head=True),
            text_cell(segment_label(difference.segment)),
            text_cell(f"{arm_label(difference.arm)} − {arm_label(difference.versus).lower()}"),
            figure_cell(difference.difference, format_points, notes),
        )
    )
