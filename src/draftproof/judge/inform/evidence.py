"""What a reason points to: the rows of the results that its reference names. Pure.

A reference that says anything that no row bears out leads to no row at all: it is wrong, and a test finds it.
"""

from typing import Any

import msgspec

from draftproof.core.manifests import Manifest
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.decide import ALL_LOADS, Reference
from draftproof.judge.results.run import Reason, Results
from draftproof.plan.schema import Plan

# Names that readers know, and the field of the results that holds their rows.
TABLES = {
    "acceptance": "arm_cells",
    "checks": "arm_cells",
    "outcomes": "arm_cells",
    "counters": "services",
    "tails": "tail_effects",
    "telemetry": "services",
}
ALIASES = {"ttft": "ttft_from_schedule_ns", "e2e": "e2e_from_schedule_ns"}
QUANTITY_FIELDS = ("metric", "quantity", "estimator", "key", "dimension", "probe")
# Tables whose rows bear no metric of their own: the deciding one is meant.
DECIDING = frozenset({"effects"})


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that a reference leads to: `results.<table>[index]`."""

    table: str
    index: int
    row: Any


def find_evidence(
    results: Results,
    reason: Reason | Reference,
    *,
    manifest: Manifest | None = None,
    plan: Plan | None = None,
) -> tuple[EvidenceRow, ...]:
    """Return the rows that a reason or a reference is based on; none if it leads nowhere.

    References of the review questions may also lead to an arm in the manifest or to the plan, if these are
    given.
    """
    reference = reason if isinstance(reason, Reference) else reason.evidence
    table = TABLES.get(reference.table, reference.table)
    rows = {
        "thresholds": tuple(results.thresholds.items()),
        "plan": (plan,),
        "contracts": manifest.contracts if manifest else (),
        "manifest": manifest.arms if manifest else (),
    }.get(table, getattr(results, table, None))
    if not isinstance(rows, tuple):
        return ()
    return tuple(
        EvidenceRow(table=table, index=index, row=row)
        for index, row in enumerate(rows)
        if _matches(results, reference, row)
    )


def _matches(results: Results, reference: Reference, row: Any) -> bool:
    """Return whether a row bears out all that a reference says of it."""
    load = None if reference.load == ALL_LOADS else reference.load
    named = reference.quantity or reference.name
    quantity = ALIASES.get(named, named) if named else results.metric if reference.table in DECIDING else None
    return (
        _agrees(row, "arm", reference.arm)
        and _agrees(row, "segment", reference.segment)
        and _agrees(row, "load", load)
        and _agrees(row, "versus", reference.versus, may_lack=True)
        and (quantity is None or _bears(row, quantity))
    )


def _agrees(row: Any, name: str, wanted: str | None, *, may_lack: bool = False) -> bool:
    if wanted is None:
        return True
    if hasattr(row, name):
        return bool(getattr(row, name) == wanted)
    # Rows about both arms of the comparison name neither; those about all segments name none.
    both_arms = name == "arm" and wanted in ("candidate", "baseline")
    return may_lack or both_arms or (name == "segment" and wanted == ALL_SEGMENTS)


def _bears(row: Any, quantity: str) -> bool:
    return any(getattr(row, name, None) == quantity for name in QUANTITY_FIELDS) or hasattr(row, quantity)
