"""What a reason points to: the written reference of its evidence, read back as rows of the results.

Pure. The written form is `TABLE [QUANTITY][: [QUANTITY] ARM[ / VERSUS][, PLACE]]`, with PLACE one of
`SEGMENT × LOAD`, `load LOAD`, `period LOAD/BLOCK` and `all loads`, such as
"effects: tpot_ns candidate / baseline, task=chat × busy". A reference that says anything that no row bears
out leads to no row at all: it is wrong, and a test finds it.
"""

from typing import Any

import msgspec

from draftproof.core.manifests import ArmManifest, Contract, Manifest
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.run import Reason, Results
from draftproof.plan.schema import Plan

# Names that readers know, and the field of the results in which their rows lie.
TABLES = {
    "acceptance": "arm_cells",
    "checks": "arm_cells",
    "outcomes": "arm_cells",
    "progress": "arm_cells",
    "counters": "services",
    "tails": "tail_effects",
    "telemetry": "services",
}
ALIASES = {"ttft": "ttft_from_schedule_ns", "e2e": "e2e_from_schedule_ns"}
QUANTITY_FIELDS = ("metric", "quantity", "estimator", "key", "dimension", "probe")
# Tables whose rows bear no metric of their own: the deciding one is meant.
DECIDING = frozenset({"effects"})


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """A reference in its parts; None where it leaves one open. `table` is a field of `Results`."""

    table: str
    quantity: str | None = None
    arm: str | None = None
    versus: str | None = None
    segment: str | None = None
    load: str | None = None


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that a reference leads to: `results.<table>[index]`."""

    table: str
    index: int
    row: Any


def find_evidence(
    results: Results,
    reason: Reason | str,
    *,
    manifest: Manifest | None = None,
    plan: Plan | None = None,
) -> tuple[EvidenceRow, ...]:
    """Return the rows that a reason or a written reference is based on; none if it leads nowhere.

    References of the review questions may also lead to the manifest ("contracts: candidate",
    "manifest: candidate") and to a table of the plan ("plan: rollback"), if these are given.
    """
    text = reason if isinstance(reason, str) else reason.evidence
    outside = _find_outside(results, text, manifest, plan)
    if outside is not None:
        return outside
    reference = parse_evidence(results, text)
    if reference is None:
        return ()
    rows = getattr(results, reference.table)
    return tuple(
        EvidenceRow(table=reference.table, index=index, row=row)
        for index, row in enumerate(rows)
        if _matches(reference, row)
    )


def parse_evidence(results: Results, text: str) -> Reference | None:
    """Return a written reference in its parts; None if it names no table or place of these results."""
    head, _, rest = text.partition(": ")
    name, _, quantity = head.partition(" ")
    table = TABLES.get(name, name)
    if not isinstance(getattr(results, table, None), tuple):
        return None
    what, place = _split_place(results, rest)
    if place is None:
        return None
    words = what.replace(" / ", "/").split()
    arms = [word for word in words if word.partition("/")[0] in results.arms]
    others = [word for word in (*quantity.split(), *words) if word not in arms and word not in TABLES]
    if len(arms) > 1 or len(others) > 1:
        return None
    arm, _, versus = arms[0].partition("/") if arms else ("", "", "")
    named = ALIASES.get(others[0], others[0]) if others else None
    return Reference(
        table=table,
        quantity=named or (results.metric if name in DECIDING else None),
        arm=arm or None,
        versus=versus or None,
        **place,
    )


def _find_outside(
    results: Results, text: str, manifest: Manifest | None, plan: Plan | None
) -> tuple[EvidenceRow, ...] | None:
    """Return what a reference to something that is no table of the results leads to, None if it is one."""
    table, _, name = text.partition(": ")
    if text == "thresholds":
        return tuple(
            EvidenceRow(table=table, index=index, row=pair)
            for index, pair in enumerate(results.thresholds.items())
        )
    if table == "plan":
        row = getattr(plan, name, None)
        return () if row is None else (EvidenceRow(table=table, index=0, row=row),)
    if table not in ("contracts", "manifest"):
        return None
    rows: tuple[Contract | ArmManifest, ...] = ()
    if manifest is not None:
        rows = manifest.contracts if table == "contracts" else manifest.arms
    return tuple(
        EvidenceRow(table=table, index=index, row=row) for index, row in enumerate(rows) if row.arm == name
    )


def _split_place(results: Results, text: str) -> tuple[str, dict[str, str | None] | None]:
    """Cut the place off the end; the names come from the results, so that they may hold any character."""
    if not text or text == "all loads" or text.endswith(", all loads"):
        return text.removesuffix("all loads").removesuffix(", "), {}
    loads = [load for load, _ in results.loads]
    for load in sorted(loads, key=len, reverse=True):
        for segment in sorted((*results.segments, ALL_SEGMENTS), key=len, reverse=True):
            if text.endswith(place := f"{segment} × {load}"):
                return text.removesuffix(place).removesuffix(", "), {"segment": segment, "load": load}
        if text.endswith(place := f"load {load}"):
            return text.removesuffix(place).removesuffix(", "), {"load": load}
        if text.startswith(place := f"period {load}/"):
            return "", {"load": load}
    return text, None if "×" in text or text.startswith(("load ", "period ")) else {}


def _matches(reference: Reference, row: Any) -> bool:
    """Return whether a row bears out all that a reference says of it."""
    return (
        all(_agrees(row, name, getattr(reference, name)) for name in ("arm", "segment", "load"))
        and _agrees(row, "versus", reference.versus, may_lack=True)
        and (reference.quantity is None or _bears(row, reference.quantity))
    )


def _agrees(row: Any, name: str, wanted: str | None, *, may_lack: bool = False) -> bool:
    if wanted is None:
        return True
    if hasattr(row, name):
        return bool(getattr(row, name) == wanted)
    # Rows about both arms of the comparison name neither; those about all segments name none.
    both_arms = name == "arm" and wanted in ("candidate", "baseline") and not hasattr(row, "arm")
    return may_lack or both_arms or (name == "segment" and wanted == ALL_SEGMENTS)


def _bears(row: Any, quantity: str) -> bool:
    return any(getattr(row, name, None) == quantity for name in QUANTITY_FIELDS) or hasattr(row, quantity)
