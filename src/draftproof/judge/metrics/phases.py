"""The parts of one arm's period (ramp, steady window, drain), and when a service is warm. Times in ns.

A service is warm once two successive groups of requests take as long as each other, by the medians of time
per token and of first token; what the client itself cannot tell apart is no difference.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from draftproof.core.records import BlockRecord, RequestRecord, WarmupGroup
from draftproof.judge.metrics.request import compute_request_metrics, is_answered


class PeriodPhases(msgspec.Struct, frozen=True, kw_only=True):
    """How long a period brought its load up, kept it, and waited for its last answers.

    The three add up to the period.
    """

    ramp_ns: int
    steady_ns: int
    drain_ns: int


def split_period(block: BlockRecord, counted: Iterable[RequestRecord]) -> PeriodPhases | None:
    """Split a period at the time from which requests counted and at that when the last of them was due.

    None of a period that was not completed, does not say when counting began, or has no counted request.
    """
    last_ns = max((one.scheduled_ns for one in counted), default=None)
    if last_ns is None or block.counted_from_ns is None or not block.completed:
        return None
    # A request that was due while the ramp ended counts from there on.
    last_ns = min(max(last_ns, block.counted_from_ns), block.ended_ns)
    return PeriodPhases(
        ramp_ns=block.counted_from_ns - block.started_ns,
        steady_ns=last_ns - block.counted_from_ns,
        drain_ns=block.ended_ns - last_ns,
    )


MOST_GROUPS = 10
TTFT_RESOLUTION_NS = 2_000_000
TPOT_RESOLUTION_NS = 100_000

Step = Literal["more", "stable", "given_up"]


class WarmupRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long a warm-up goes on.

    At least two groups of at least `requests` requests each, until the medians of two successive groups
    differ by at most `tolerance`; no group begins after `max_s`, and there are no more than `most_groups`.
    """

    requests: int
    tolerance: float = 0.1
    max_s: float = 60.0
    most_groups: int = MOST_GROUPS

    def group_size(self, concurrency: int | None) -> int:
        """Return the requests of one group: as many as the level keeps in flight, or as the plan asks for."""
        return max(self.requests, concurrency or 1)

    def next_step(self, groups: Sequence[WarmupGroup], elapsed_s: float) -> Step:
        """Say what follows after some groups: one more, or the end and whether the service is stable.

        The first is asked however little time there is.
        """
        change = last_change(groups)
        if change is not None and change <= self.tolerance:
            return "stable"
        has_room = elapsed_s < self.max_s and len(groups) < self.most_groups
        return "more" if has_room or not groups else "given_up"


def summarise_group(records: Iterable[RequestRecord]) -> WarmupGroup:
    """Return the medians over the answered requests of a group; first token from the time of sending."""
    asked = list(records)
    answered = [compute_request_metrics(one, 0) for one in asked if is_answered(one)]
    return WarmupGroup(
        requests=len(asked),
        answered=len(answered),
        ttft_ns=_median(one.ttft_ns for one in answered),
        tpot_ns=_median(one.tpot_ns for one in answered),
    )


def last_change(groups: Sequence[WarmupGroup]) -> float | None:
    """Return the largest relative change of a median from the last group but one to the last.

    None where there are no two groups, or where they do not tell the same quantities.
    """
    if len(groups) < 2:
        return None
    before, now = groups[-2], groups[-1]
    if (before.ttft_ns is None, before.tpot_ns is None) != (now.ttft_ns is None, now.tpot_ns is None):
        return None
    return max(_changes(before, now), default=None)


def _changes(before: WarmupGroup, now: WarmupGroup) -> Iterator[float]:
    for then_ns, now_ns, resolution_ns in (
        (before.ttft_ns, now.ttft_ns, TTFT_RESOLUTION_NS),
        (before.tpot_ns, now.tpot_ns, TPOT_RESOLUTION_NS),
    ):
        if then_ns is not None and now_ns is not None:
            difference_ns = abs(now_ns - then_ns)
            yield 0.0 if difference_ns <= resolution_ns else difference_ns / max(then_ns, resolution_ns)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
