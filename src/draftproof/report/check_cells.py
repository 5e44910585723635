"""What every table of checks shows of an arm: how many were judged, passed, failed where it is critical."""

from typing import Protocol

from draftproof.report.grouping import label_column
from draftproof.report.labels import arm_label
from draftproof.report.quantities import format_share
from draftproof.report.view import Column, TableCell, count_cell, text_cell

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
