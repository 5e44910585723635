"""Runs of known truth whose periods the host disturbed, with second attempts at some. Deterministic."""

from collections.abc import Collection, Mapping

import msgspec

from draftproof.core.records import BlockRecord, HostUse, RequestRecord
from draftproof.judge.observe.observed import PeriodKey, RunData

QUIET = HostUse(span_s=30.0, cores=2, busy_s=55.0, own_s=54.5, steal_s=0.0, pressure_s=20.0)
BUSY = HostUse(span_s=30.0, cores=2, busy_s=60.0, own_s=20.0, steal_s=0.0, pressure_s=29.0)


def note_hosts(run: RunData, uses: Mapping[PeriodKey, HostUse], *, quiet: HostUse = QUIET) -> RunData:
    """Return a run whose periods say what their host did: what `uses` has for them, else `quiet`."""
    blocks = (msgspec.structs.replace(one, host=uses.get(_key(one), quiet)) for one in run.blocks)
    return msgspec.structs.replace(run, blocks=tuple(blocks))


def add_attempts(run: RunData, again: RunData, periods: Collection[PeriodKey]) -> RunData:
    """Return a run in which some periods were measured once more, as they are in another such run."""
    records = (
        msgspec.structs.replace(one, attempt=1, request_id=f"{one.request_id}~1")
        for one in again.records
        if _key(one) in periods
    )
    blocks = (
        msgspec.structs.replace(one, attempt=1, order=one.order + len(run.manifest.arms))
        for one in again.blocks
        if _key(one) in periods
    )
    return msgspec.structs.replace(run, records=(*run.records, *records), blocks=(*run.blocks, *blocks))


def _key(line: RequestRecord | BlockRecord) -> PeriodKey:
    return (line.load, line.block, line.arm)
