"""The delivery of every arm at every load, beside what the arm's contract says of its mechanism. Pure."""

from collections.abc import Iterable

import msgspec

from draftproof.metrics.delivery import describe_hint, find_hint, summarise_delivery
from draftproof.records import RequestRecord
from draftproof.verdict.results import Delivery
from draftproof.verdict.run_data import Observation, PreparedRun


def compute_deliveries(prepared: PreparedRun) -> tuple[Delivery, ...]:
    """Return the delivery of each arm at each load, segments pooled."""
    mechanisms = {contract.arm: contract.algorithm for contract in prepared.run.manifest.contracts}
    return tuple(
        _to_delivery(arm, load, mechanisms.get(arm), list_delivered(prepared.of_arm(arm, load)))
        for arm in prepared.arms
        for load in prepared.loads
    )


def list_delivered(seen: Iterable[Observation]) -> list[RequestRecord]:
    """Return the records of answers whose arrival times can be trusted."""
    return [one.record for one in seen if one.is_ok and one.timed and one.in_order]


def _to_delivery(arm: str, load: str, mechanism: str | None, records: Iterable[RequestRecord]) -> Delivery:
    summary = summarise_delivery(records)
    told = {"arm": arm, "load": load, "mechanism": mechanism}
    hint = {"hint": find_hint(summary), "hint_text": describe_hint(summary)}
    return msgspec.convert(msgspec.structs.asdict(summary) | told | hint, Delivery)
