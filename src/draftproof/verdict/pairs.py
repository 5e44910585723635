"""Pairing: the same item, turn of the conversation, repeat and block in two arms.

Pure; drops nothing silently.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
import numpy as np

from draftproof.records import RequestRecord
from draftproof.stats.resampling import Ints
from draftproof.verdict.columns import cluster_label
from draftproof.verdict.run_data import ALL_SEGMENTS, Observation, PairKey, PreparedRun

COMPARISONS: tuple[tuple[str, str], ...] = (
    ("candidate", "baseline"),
    ("alternative", "baseline"),
    ("candidate", "alternative"),
    ("baseline_null", "baseline"),
)

Comparison = tuple[str, str]  # arm, versus


class Pair(msgspec.Struct, frozen=True, gc=False):
    """One item in one block as two arms answered it; both were attempted, either may have failed.

    `is_ok`: both were answered to the end. `is_same`: their outputs are the same, see `is_same_output`. Both
    are read off the observations when the pair is made, because many steps of a verdict ask for them.
    """

    arm: Observation
    versus: Observation
    is_ok: bool = False
    is_same: bool = False

    def __post_init__(self) -> None:
        """Read off what is asked for again and again."""
        mine, theirs = self.arm.record, self.versus.record
        msgspec.structs.force_setattr(self, "is_ok", mine.outcome == "ok" == theirs.outcome)
        msgspec.structs.force_setattr(self, "is_same", is_same_output(mine, theirs))

    @property
    def timed(self) -> bool:
        """Whether the client was on time in both turns."""
        return self.arm.timed and self.versus.timed

    @property
    def item_id(self) -> str:
        """The item of both, the cluster of every interval."""
        return self.arm.record.item_id

    @property
    def load(self) -> str:
        """The load level of both."""
        return self.arm.record.load

    @property
    def segment(self) -> str:
        """The segment of both."""
        return self.arm.segment


def is_same_output(mine: RequestRecord, theirs: RequestRecord) -> bool:
    """Return whether both outputs are the same: in token ids where both have them, else in text and tools."""
    if mine.token_ids is not None and theirs.token_ids is not None:
        return mine.token_ids == theirs.token_ids
    return (
        mine.text == theirs.text
        and mine.reasoning_text == theirs.reasoning_text
        and mine.tool_calls == theirs.tool_calls
    )


def cluster_labels(pairs: Iterable[Pair], cluster_by: str | None) -> list[str]:
    """Return what each pair is resampled with: its prompt, or the label of a dimension that groups prompts.

    A prompt without a label in that dimension stays by itself.
    """
    return [cluster_label(pair.arm, cluster_by) for pair in pairs]


class Pairs(tuple[Pair, ...]):  # noqa: SLOT001 - what is looked up is kept in its dict
    """The pairs of one comparison; each cell of them is looked up once."""

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], "Pairs"]:
        """Segment, load -> the pairs there in order; segment "all" holds every segment."""
        found: defaultdict[tuple[str, str], list[Pair]] = defaultdict(list)
        for pair in self:
            load = pair.arm.record.load
            found[pair.arm.segment, load].append(pair)
            found[ALL_SEGMENTS, load].append(pair)
        return {cell: Pairs(inside) for cell, inside in found.items()}

    def cell(self, segment: str, load: str) -> "Pairs":
        """Return the pairs of one cell."""
        return self.cells.get((segment, load), _NO_PAIRS)

    @cached_property
    def greedy(self) -> "Pairs":
        """The pairs of which both answers came to their end and were asked for without any chance in them."""
        return Pairs(pair for pair in self if pair.is_ok and pair.arm.item.sampling.temperature == 0)

    @cached_property
    def differing_items(self) -> Mapping[str, bool]:
        """Item -> whether any of its outputs differs, in the order of the pairs."""
        states = dict.fromkeys((pair.item_id for pair in self), False)
        states.update((pair.item_id, True) for pair in self if not pair.is_same)
        return states

    def places(self, positions: Mapping[int, int]) -> tuple[Ints, Ints]:
        """Return where the arm's and the other's observations of each pair stand among all of the run."""
        if self._found is None:
            self._found = (
                np.fromiter((positions[id(pair.arm)] for pair in self), np.intp, len(self)),
                np.fromiter((positions[id(pair.versus)] for pair in self), np.intp, len(self)),
            )
        return self._found

    _found: tuple[Ints, Ints] | None = None


_NO_PAIRS = Pairs()

PairTable = Mapping[Comparison, Pairs]


def pair_observations(prepared: PreparedRun) -> PairTable:
    """Return the pairs of every comparison whose two arms belong to the run."""
    by_arm = {arm: _index(prepared.of_arm(arm)) for arm in prepared.arms}
    return {
        (arm, versus): _pair(by_arm[arm], by_arm[versus])
        for arm, versus in COMPARISONS
        if arm in by_arm and versus in by_arm
    }


def in_cell(pairs: Iterable[Pair], segment: str, load: str) -> list[Pair]:
    """Return the pairs of one cell; segment "all" takes every segment."""
    if isinstance(pairs, Pairs):
        return list(pairs.cell(segment, load))
    return [pair for pair in pairs if pair.load == load and segment in (ALL_SEGMENTS, pair.segment)]


def _index(observations: Iterable[Observation]) -> dict[PairKey, Observation]:
    """Return key -> the attempt that was due first; of several due at once a failure, else the slowest.

    So no repeated attempt ever replaces a worse one.
    """
    found: dict[PairKey, Observation] = {}
    for seen in observations:
        first = found.setdefault(key := seen.key, seen)
        if first is not seen:
            found[key] = min(first, seen, key=_attempt_order)
    return found


def _attempt_order(seen: Observation) -> tuple[int, bool, int, str]:
    record = seen.record
    return (record.scheduled_ns, seen.is_ok, -record.end_ns, record.request_id)


def _pair(arm: Mapping[PairKey, Observation], versus: Mapping[PairKey, Observation]) -> Pairs:
    return Pairs(Pair(seen, versus[key]) for key, seen in arm.items() if key in versus)
