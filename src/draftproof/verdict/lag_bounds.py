"""How late the load client may be for what each turn measures: a share of the deciding time. Pure.

Where the kernel stamps arrivals the client's lateness in reading is in no time. Elsewhere (over TLS, on other
systems) it is in each, and an absolute limit that suits long answers passes a large part of short ones.
"""

from collections import defaultdict
from collections.abc import Iterable

from draftproof.records import BlockRecord, RequestRecord
from draftproof.verdict.client_limits import LAG_PART, LagBound
from draftproof.verdict.observed import RunData, TurnKey

PER_TOKEN = "tpot_ns"  # noqa: S105 - the name of a metric


def bound_lags(run: RunData, records: Iterable[RequestRecord]) -> dict[TurnKey, LagBound]:
    """Return the bound of every turn in which the client's lateness is in the deciding time.

    Args:
        run: the run.
        records: its measured requests.
    """
    from_schedule = run.plan.comparison.metric != PER_TOKEN
    reads = {(one.load, one.block, one.arm): _reads_late(run, one) for one in run.blocks}
    if not from_schedule and not any(reads.values()):
        return {}
    spans: defaultdict[TurnKey, list[int]] = defaultdict(list)
    for one in records:
        if (span_ns := _measure_span(one, from_schedule=from_schedule)) is not None:
            spans[one.load, one.block, one.arm].append(span_ns)
    share = LAG_PART * run.plan.thresholds.minimum_gain
    return {
        key: LagBound(
            span_ns=sum(own) / len(own), share=share, reads=reads.get(key, False), sends=from_schedule
        )
        for key, own in spans.items()
    }


def _reads_late(run: RunData, block: BlockRecord) -> bool:
    """Return whether the client stamped arrivals itself; where no record says so, by system and address."""
    if block.unstamped is not None:
        return block.unstamped > 0
    urls = [arm.url for arm in run.manifest.arms if arm.arm == block.arm]
    is_linux = run.manifest.host.get("system") == "Linux"
    return not is_linux or any(url.startswith("https:") for url in urls)


def _measure_span(record: RequestRecord, *, from_schedule: bool) -> int | None:
    """Return the time of an answer that decides, ns; None of a request that has none."""
    if record.outcome != "ok" or not record.chunks:
        return None
    start_ns = record.scheduled_ns if from_schedule else record.chunks[0].arrival_ns
    end_ns = record.end_ns if from_schedule else record.chunks[-1].arrival_ns
    return end_ns - start_ns if end_ns > start_ns else None
