"""How late the load client may be for what each turn measures: a share of the deciding time. Pure.

Where the kernel stamps arrivals the client's lateness in reading is in no time. Elsewhere (over TLS, on other
systems) it is in each, and an absolute limit that suits long answers passes a large part of short ones.
"""

from collections import defaultdict
from collections.abc import Iterable

from draftproof.plan.schema import Plan
from draftproof.records import BlockRecord, RequestRecord
from draftproof.verdict.client_limits import LAG_PART, LagBound
from draftproof.verdict.observed import RunData, TurnKey

PER_TOKEN = "tpot_ns"  # noqa: S105 - the name of a metric


class Spans:
    """The deciding times of one turn's answers, and how late a client may be for them; of a run's plan."""

    def __init__(self, plan: Plan) -> None:
        self._from_schedule = plan.comparison.metric != PER_TOKEN
        self._share = LAG_PART * plan.thresholds.minimum_gain
        self._sum_ns = self._count = 0

    def add(self, record: RequestRecord) -> None:
        """Take in one answer, if it has a time."""
        span_ns = _measure_span(record, from_schedule=self._from_schedule)
        if span_ns is not None:
            self._sum_ns, self._count = self._sum_ns + span_ns, self._count + 1

    def bound(self, *, reads: bool) -> LagBound | None:
        """Return how late the client may be, None where no answer has a time or its lateness is in none.

        Args:
            reads: its lateness in reading is in the times.
        """
        if not self._count or not (reads or self._from_schedule):
            return None
        return LagBound(
            span_ns=self._sum_ns / self._count, share=self._share, reads=reads, sends=self._from_schedule
        )


def bound_lags(run: RunData, records: Iterable[RequestRecord]) -> dict[TurnKey, LagBound]:
    """Return the bound of every turn in which the client's lateness is in the deciding time.

    Args:
        run: the run.
        records: its measured requests.
    """
    reads = {(one.load, one.block, one.arm): _reads_late(run, one) for one in run.blocks}
    spans: defaultdict[TurnKey, Spans] = defaultdict(lambda: Spans(run.plan))
    for one in records:
        spans[one.load, one.block, one.arm].add(one)
    bounds = {key: own.bound(reads=reads.get(key, False)) for key, own in spans.items()}
    return {key: bound for key, bound in bounds.items() if bound is not None}


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
