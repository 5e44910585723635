"""The observations of a run as columns: what every step of a verdict reads of them, read once. Pure.

A long run has millions of values and few prompts: whoever counts, sorts or resamples does it on these arrays,
shape (observations,), in the order of `PreparedRun.observations`. Labels are numbers in the sorted order of
what they stand for, so that `index_labels` gives the same of either.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from draftproof.metrics.identities import acceptance_faults
from draftproof.metrics.service import Objectives, is_on_time
from draftproof.records import RequestRecord
from draftproof.stats.resampling import Floats, Ints
from draftproof.verdict.observed import Observation
from draftproof.workload.checks import CheckResult

Bools = npt.NDArray[np.bool_]
CheckCounts = tuple[int, int, int, int]


class Columns:
    """Columns of some observations, each made when it is asked for."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._seen = observations
        self._metrics: dict[str, Floats] = {}
        self._clusters: dict[str | None, Ints] = {}
        self._on_time: tuple[Objectives, Floats] | None = None

    @cached_property
    def is_ok(self) -> Bools:
        """Whether the request was answered to the end."""
        return self._flags(one.record.outcome == "ok" for one in self._seen)

    @cached_property
    def passed(self) -> Floats:
        """1 where every check passed, 0 where one did not, NaN where that cannot be told."""
        return self.read(lambda one: one.is_passed)

    @cached_property
    def timed(self) -> Bools:
        """Whether the client was on time in the request's turn."""
        return self._flags(one.timed for one in self._seen)

    @cached_property
    def in_order(self) -> Bools:
        """Whether the record's times run forwards."""
        return self._flags(one.in_order for one in self._seen)

    @cached_property
    def blocks(self) -> Ints:
        """Number of the block."""
        return self._whole(one.record.block for one in self._seen)

    @cached_property
    def segments(self) -> Ints:
        """Place of the segment's name among the sorted names."""
        return self._places(one.segment for one in self._seen)

    @cached_property
    def items(self) -> Ints:
        """Place of the item's id among the sorted ids."""
        return self._places(one.record.item_id for one in self._seen)

    @cached_property
    def positions(self) -> dict[int, int]:
        """Identity of an observation -> its place."""
        return {id(one): place for place, one in enumerate(self._seen)}

    @cached_property
    def item_ids(self) -> list[str]:
        """The ids that `items` counts."""
        return sorted({one.record.item_id for one in self._seen})

    @cached_property
    def is_sound(self) -> Bools:
        """Whether the request was answered and its counters of drafts agree with themselves."""
        return self._flags(
            one.record.outcome == "ok" and not acceptance_faults(one.record) for one in self._seen
        )

    @cached_property
    def stalls(self) -> Ints:
        """How many gaps of an answer are stalls."""
        return self._whole(one.metrics.stall_count for one in self._seen)

    @cached_property
    def chunks(self) -> Ints:
        """How many chunks of content an answer has."""
        return self._whole(len(one.record.chunks) for one in self._seen)

    @cached_property
    def residence_ns(self) -> Ints:
        """From the scheduled time to the end."""
        return self._whole(one.record.end_ns - one.record.scheduled_ns for one in self._seen)

    @cached_property
    def sent_ns(self) -> Floats:
        """From sending to the end, NaN where it was not sent."""
        return self.read(_sent_ns)

    @cached_property
    def span_ns(self) -> Floats:
        """From the first chunk to the last, NaN without chunks."""
        return self.read(lambda one: _span_ns(one.record))

    @cached_property
    def before_first_ns(self) -> Floats:
        """From the scheduled time to the first chunk, NaN without chunks."""
        return self.read(lambda one: one.metrics.ttft_from_schedule_ns)

    @cached_property
    def waited_ns(self) -> Floats:
        """From sending to the last chunk, NaN where either is missing."""
        return self.read(lambda one: _waited_ns(one.record))

    @cached_property
    def turns(self) -> Ints:
        """Which turn of its conversation a request is."""
        return self._whole(one.record.conversation_turn for one in self._seen)

    @cached_property
    def turns_of_item(self) -> Ints:
        """How many turns the item's conversation has."""
        return self._whole(one.item.turns for one in self._seen)

    @cached_property
    def has_checks(self) -> Bools:
        """Whether the turn that was asked has checks."""
        return self._flags(bool(one.wanted_checks) for one in self._seen)

    @cached_property
    def conversations(self) -> Ints:
        """Number of the conversation: block, repeat and item of one arm at one load."""
        names = ((one.record.arm, one.record.load) for one in self._seen)
        places = self._places("\x1f".join(pair) for pair in names)
        repeats = self._whole(one.record.repeat for one in self._seen)
        parts = (self.blocks, repeats, self.items)
        number = places
        for part in parts:
            number = number * (int(part.max(initial=0)) + 1) + part
        found: Ints = np.unique(number, return_inverse=True)[1].reshape(-1)
        return found

    @cached_property
    def checks(self) -> npt.NDArray[np.int64]:
        """Checks judged, passed, critical and failed, unjudged; shape (observations, 4)."""
        known: dict[int, CheckCounts] = {}
        rows = np.empty((len(self._seen), 4), dtype=np.int64)
        for place, one in enumerate(self._seen):
            if one.record.outcome != "ok":
                rows[place] = (len(one.wanted_checks), 0, 0, 0)
                continue
            # Equal answers share their results, which live as long as the observations.
            key = id(one.checks)
            if key not in known:
                known[key] = _count_checks(one.checks)
            rows[place] = known[key]
        return rows

    def server_ns(self, name: str) -> Floats:
        """Return a part of the server's own timings, NaN where it is not disclosed."""
        if f"server.{name}" not in self._metrics:
            self._metrics[f"server.{name}"] = self.read(lambda one: getattr(one.record.server, name))
        return self._metrics[f"server.{name}"]

    def on_time(self, objectives: Objectives) -> Floats:
        """Return 1 where a request met every objective, 0 where not, NaN where that cannot be told."""
        if self._on_time is None or self._on_time[0] != objectives:
            found = self.read(lambda one: is_on_time(one.record, one.metrics, objectives))
            self._on_time = objectives, found
        return self._on_time[1]

    @cached_property
    def gap_counts(self) -> Ints:
        """How many gaps between chunks an answer has."""
        return np.fromiter((len(one.metrics.icl_ns) for one in self._seen), np.intp, len(self._seen))

    @cached_property
    def gaps_ns(self) -> Floats:
        """Every gap of every answer, one after the other, shape (sum of `gap_counts`,)."""
        flat = chain.from_iterable(one.metrics.icl_ns for one in self._seen)
        return np.fromiter(flat, np.float64, int(self.gap_counts.sum()))

    def gaps_of(self, chosen: Ints) -> Floats:
        """Return the gaps of some observations."""
        wanted = np.zeros(len(self._seen), dtype=np.bool_)
        wanted[chosen] = True
        found: Floats = self.gaps_ns[np.repeat(wanted, self.gap_counts)]
        return found

    def metric(self, name: str) -> Floats:
        """Return a metric of answered requests, NaN where it is not known."""
        if name not in self._metrics:
            self._metrics[name] = self.read(
                lambda one: getattr(one.metrics, name) if one.record.outcome == "ok" else None
            )
        return self._metrics[name]

    def clusters(self, cluster_by: str | None) -> Ints:
        """Return the place of what each observation is resampled with among the sorted labels."""
        if cluster_by not in self._clusters:
            self._clusters[cluster_by] = self._places(cluster_label(one, cluster_by) for one in self._seen)
        return self._clusters[cluster_by]

    def read(self, read: Callable[[Observation], float | None]) -> Floats:
        """Return what `read` gives of each observation, NaN for None."""
        values = (np.nan if (value := read(one)) is None else value for one in self._seen)
        return np.fromiter(values, np.float64, len(self._seen))

    def _flags(self, flags: Iterable[bool]) -> Bools:
        return np.fromiter(flags, np.bool_, len(self._seen))

    def _whole(self, values: Iterable[int]) -> Ints:
        return np.fromiter(values, np.intp, len(self._seen))

    def _places(self, labels: Iterable[str]) -> Ints:
        rows = list(labels)
        places = {name: place for place, name in enumerate(sorted(set(rows)))}
        return np.fromiter(map(places.__getitem__, rows), np.intp, len(rows))


def _sent_ns(seen: Observation) -> float | None:
    return None if seen.record.sent_ns is None else seen.record.end_ns - seen.record.sent_ns


def _span_ns(record: RequestRecord) -> float | None:
    return record.chunks[-1].arrival_ns - record.chunks[0].arrival_ns if record.chunks else None


def _waited_ns(record: RequestRecord) -> float | None:
    if record.sent_ns is None or not record.chunks:
        return None
    return record.chunks[-1].arrival_ns - record.sent_ns


def _count_checks(checks: Iterable[CheckResult]) -> CheckCounts:
    results = list(checks)
    judged = [check for check in results if check.passed is not None]
    return (
        len(judged),
        sum(check.passed is True for check in judged),
        sum(check.critical and check.passed is False for check in judged),
        len(results) - len(judged),
    )


def cluster_label(seen: Observation, cluster_by: str | None) -> str:
    """Return what a request is resampled with: its prompt, or the label that groups it with others."""
    label = seen.item.segments.get(cluster_by) if cluster_by else None
    return f"{cluster_by}={label}" if label else seen.record.item_id
