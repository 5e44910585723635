"""The observations of a run as columns: what every step of a verdict reads of them, read once. Pure.

A long run has millions of values and few prompts: whoever counts, sorts or resamples does it on these arrays,
shape (observations,), in the order of `PreparedRun.observations`. Labels are numbers in the sorted order of
what they stand for, so that `index_labels` gives the same of either.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from draftproof.stats.resampling import Floats, Ints

if TYPE_CHECKING:
    from draftproof.verdict.run_data import Observation

Bools = npt.NDArray[np.bool_]


class Columns:
    """Columns of some observations, each made when it is asked for."""

    def __init__(self, observations: Sequence["Observation"]) -> None:
        self._seen = observations
        self._metrics: dict[str, Floats] = {}
        self._clusters: dict[str | None, Ints] = {}

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
        return np.fromiter((one.record.block for one in self._seen), np.intp, len(self._seen))

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

    def read(self, read: Callable[["Observation"], float | None]) -> Floats:
        """Return what `read` gives of each observation, NaN for None."""
        values = (np.nan if (value := read(one)) is None else value for one in self._seen)
        return np.fromiter(values, np.float64, len(self._seen))

    def _flags(self, flags: Iterable[bool]) -> Bools:
        return np.fromiter(flags, np.bool_, len(self._seen))

    def _places(self, labels: Iterable[str]) -> Ints:
        rows = list(labels)
        places = {name: place for place, name in enumerate(sorted(set(rows)))}
        return np.fromiter(map(places.__getitem__, rows), np.intp, len(rows))


def cluster_label(seen: "Observation", cluster_by: str | None) -> str:
    """Return what a request is resampled with: its prompt, or the label that groups it with others."""
    label = seen.item.segments.get(cluster_by) if cluster_by else None
    return f"{cluster_by}={label}" if label else seen.record.item_id
