"""Pairing: the same item, turn of the conversation, repeat and block in two arms."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, overload

import msgspec
import numpy as np

from draftproof.core.records import RequestRecord
from draftproof.judge.observe.columns import Bools, Columns
from draftproof.judge.observe.run_data import ALL_SEGMENTS, Observation, PreparedRun
from draftproof.judge.stats.resampling import Floats, Ints

Comparison = tuple[str, str]  # arm, versus
DECISIVE: Comparison = ("candidate", "baseline")
NULL: Comparison = ("baseline_null", "baseline")
COMPARISONS = (DECISIVE, ("alternative", "baseline"), ("candidate", "alternative"), NULL)


class Pair(msgspec.Struct, frozen=True, gc=False):
    """One item in one block as two arms answered it; both were attempted, either may have failed."""

    arm: Observation
    versus: Observation

    @property
    def is_ok(self) -> bool:
        """Whether both were answered to the end."""
        return self.arm.is_ok and self.versus.is_ok

    @property
    def is_same(self) -> bool:
        """Whether their outputs are the same, see `is_same_output`."""
        return is_same_output(self.arm.record, self.versus.record)

    @property
    def timed(self) -> bool:
        """Whether the client was on time in both periods."""
        return self.arm.timed and self.versus.timed

    @property
    def item_id(self) -> str:
        """The item of both."""
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
    return is_same_text(mine, theirs)


def is_same_text(mine: RequestRecord, theirs: RequestRecord) -> bool:
    """Return whether two outputs read the same: text, reasoning and tool calls."""
    return (
        mine.text == theirs.text
        and mine.reasoning_text == theirs.reasoning_text
        and mine.tool_calls == theirs.tool_calls
    )


class Pairs(Sequence[Pair]):
    """The pairs of one comparison: the indices of both requests among the run's observations, in order.

    Shape (pairs,) each: `mine` and `theirs` are indices into `columns`, `is_same` tells whether the outputs
    are the same. `passed`, shape (observations,), is 1 where an answer is as it should be, 0 where not, NaN
    where nothing tells (`find_passed`). `twins` are what the null arm answered where the other arm is the
    baseline, which it equals; the baseline's own where it has none. A `Pair` is made when it is asked for: a
    long run has millions, and most steps read columns.
    """

    def __init__(
        self,
        columns: Columns,
        mine: Ints,
        theirs: Ints,
        is_same: Bools,
        *,
        passed: Floats | None = None,
        twins: Ints | None = None,
    ) -> None:
        self.columns, self.mine, self.theirs, self.is_same = columns, mine, theirs, is_same
        self.twins, self._passed = theirs if twins is None else twins, passed

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.mine)

    def __iter__(self) -> Iterator[Pair]:
        """Make each pair in turn."""
        seen = self.columns.observations
        for index, other in zip(self.mine.tolist(), self.theirs.tolist(), strict=True):
            yield Pair(seen[index], seen[other])

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> "Pairs": ...
    def __getitem__(self, index: int | slice) -> "Pair | Pairs":
        """Return one pair, or some."""
        if isinstance(index, slice):
            return self._choose(index)
        seen = self.columns.observations
        return Pair(seen[self.mine[index]], seen[self.theirs[index]])

    def where(self, kept: Bools) -> "Pairs":
        """Return the pairs that are to be kept, in order."""
        return self._choose(kept)

    def _choose(self, kept: "Bools | slice") -> "Pairs":
        mine, theirs, twins = self.mine[kept], self.theirs[kept], self.twins[kept]
        return Pairs(self.columns, mine, theirs, self.is_same[kept], passed=self._passed, twins=twins)

    @property
    def passed(self) -> Floats:
        """Whether each observation's answer is as it should be; by its checks where nothing else is known."""
        return self.columns.passed if self._passed is None else self._passed

    def with_passed(self, passed: Floats) -> "Pairs":
        """Return the same pairs, with what else tells whether an answer is as it should be."""
        return Pairs(self.columns, self.mine, self.theirs, self.is_same, passed=passed, twins=self.twins)

    def with_twins(self, twins: Ints | None) -> "Pairs":
        """Return the same pairs with what the null arm answered, shape (pairs,); None: without."""
        return Pairs(self.columns, self.mine, self.theirs, self.is_same, passed=self._passed, twins=twins)

    @cached_property
    def is_ok(self) -> Bools:
        """Whether both were answered to the end."""
        return self.columns.is_ok[self.mine] & self.columns.is_ok[self.theirs]

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], "Pairs"]:
        """Segment, load -> the pairs there in order; segment "all" holds every segment."""
        found = {}
        loads, segments = self.columns.loads[self.mine], self.columns.segments[self.mine]
        for load in np.unique(loads).tolist():
            inside = loads == load
            for segment in np.unique(segments[inside]).tolist():
                one = self.where(inside & (segments == segment))
                found[one[0].segment, one[0].load] = one
            whole = self.where(inside)
            found[ALL_SEGMENTS, whole[0].load] = whole
        return found

    def cell(self, segment: str, load: str) -> "Pairs":
        """Return the pairs of one cell."""
        return self.cells.get((segment, load), NO_PAIRS)

    @cached_property
    def greedy(self) -> "Pairs":
        """The pairs of which both answers came to their end and were asked for without any chance in them."""
        return self.where(self.is_ok & self.columns.is_greedy[self.mine])

    @cached_property
    def differing_prompts(self) -> Mapping[str, bool]:
        """Prompt -> whether any of its outputs differs, in the order of their names."""
        prompts, names = self.columns.prompts[self.mine], self.columns.prompt_names
        seen, differing = np.bincount(prompts), np.bincount(prompts, weights=~self.is_same)
        return {names[prompt]: bool(differing[prompt]) for prompt in np.flatnonzero(seen).tolist()}


_NO_PLACES = np.empty(0, dtype=np.intp)
NO_PAIRS = Pairs(Columns(()), _NO_PLACES, _NO_PLACES, np.empty(0, dtype=np.bool_))

PairTable = Mapping[Comparison, Pairs]


def pair_observations(prepared: PreparedRun) -> PairTable:
    """Return the pairs of every comparison whose two arms belong to the run."""
    by_arm = {arm: _choose_attempts(prepared, arm) for arm in prepared.arms}
    table = {
        (arm, versus): _pair(prepared.columns, by_arm[arm], by_arm[versus])
        for arm, versus in COMPARISONS
        if arm in by_arm and versus in by_arm
    }
    table |= _add_twins(table)
    if prepared.plan.comparison.quality == "agreement":
        passed = find_passed(prepared.columns, table)
        return {comparison: pairs.with_passed(passed) for comparison, pairs in table.items()}
    return table


def _add_twins(table: PairTable) -> dict[Comparison, Pairs]:
    """Return the comparisons with the baseline, each pair with what the null arm answered to the same."""
    null = table.get(NULL)
    if null is None:
        return {}
    answers = dict(zip(null.theirs.tolist(), null.mine.tolist(), strict=True))
    return {
        comparison: pairs.with_twins(
            np.array([answers.get(index, index) for index in pairs.theirs.tolist()], dtype=np.intp)
        )
        for comparison, pairs in table.items()
        if comparison[1] == NULL[1] and comparison != NULL
    }


def find_passed(columns: Columns, table: PairTable) -> Floats:
    """Return whether each answer is as it should be: by its checks, else by the baseline's where greedy.

    A greedy answer whose content no check looks at agrees with the baseline's or not; the baseline's own
    agrees where the null arm's is the same. So what two equal arms differ by is no fault of the candidate. A
    failed request does not agree; without the null arm each baseline's answer does.
    """
    agrees = np.full(len(columns.records), np.nan)
    for (_, versus), pairs in table.items():
        if versus != NULL[1]:
            continue
        known = columns.is_greedy[pairs.mine] & columns.is_ok[pairs.theirs]
        agrees[pairs.mine[known]] = (pairs.is_same & columns.is_ok[pairs.mine])[known]
        agrees[pairs.theirs[known & np.isnan(agrees[pairs.theirs])]] = 1.0
    if NULL in table:
        pairs = table[NULL]
        known = columns.is_greedy[pairs.theirs] & pairs.is_ok
        agrees[pairs.theirs[known]] = pairs.is_same[known]
    form = np.where(columns.has_checks, columns.passed, 1.0)
    found: Floats = np.where(columns.is_held_to_baseline, all_of(agrees, form), columns.passed)
    return found


def _choose_attempts(prepared: PreparedRun, arm: str) -> Ints:
    """Return the indices of an arm's requests, each attempted once, in order.

    Of several attempts the one that was due first counts; of several due at once a failure, else the slowest.
    So no repeated attempt ever replaces a worse one.
    """
    indices, asked = prepared.indices_of(arm), prepared.columns.asked
    if len(np.unique(asked[indices])) == len(indices):
        return indices
    seen = prepared.observations
    attempts = groupby(
        sorted(indices.tolist(), key=lambda index: int(asked[index])), lambda index: asked[index]
    )
    chosen = [min(own, key=lambda index: _attempt_order(seen[index])) for _, own in attempts]
    return np.array(chosen, dtype=np.intp)


def _attempt_order(seen: Observation) -> tuple[int, bool, int, str]:
    record = seen.record
    return (record.scheduled_ns, seen.is_ok, -record.end_ns, record.request_id)


def _pair(columns: Columns, arm: Ints, versus: Ints) -> Pairs:
    """Match the requests of two arms by what was asked."""
    _, mine, theirs = np.intersect1d(
        columns.asked[arm], columns.asked[versus], assume_unique=True, return_indices=True
    )
    order = np.argsort(arm[mine])
    mine, theirs = arm[mine][order], versus[theirs][order]
    records = columns.records
    same = [
        is_same_output(records[index], records[other])
        for index, other in zip(mine.tolist(), theirs.tolist(), strict=True)
    ]
    return Pairs(columns, mine, theirs, np.array(same, dtype=np.bool_))


class Conversations(NamedTuple):
    """The conversations of some requests of one arm at one load.

    `owners`, shape (requests,): whose turn each is. `first`, shape (conversations,): the index among all
    observations of one of its periods. `is_completed`: every period was asked and answered.
    """

    owners: Ints
    first: Ints
    is_completed: Bools

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.first)

    def all_of(self, states: Floats) -> Floats:
        """Return 0 where a turn's state is 0, else NaN where one is NaN, else 1; shape (conversations,)."""
        failed = np.bincount(self.owners, weights=states == 0, minlength=self.size) > 0
        unknown = np.bincount(self.owners, weights=np.isnan(states), minlength=self.size) > 0
        found: Floats = np.where(failed, 0.0, np.where(unknown, np.nan, 1.0))
        return found


def group_conversations(columns: Columns, indices: Ints) -> Conversations:
    """Return the conversations of the observations at these indices."""
    _, first, owners = np.unique(columns.conversations[indices], return_index=True, return_inverse=True)
    owners = owners.reshape(-1)
    turns = columns.turns[indices]
    width = int(turns.max(initial=0)) + 1
    asked = np.bincount(np.unique(owners * width + turns) // width, minlength=len(first))
    lost = np.bincount(owners, weights=~columns.is_ok[indices], minlength=len(first))
    whole = asked == columns.turns_of_item[indices[first]]
    return Conversations(owners, indices[first], whole & (lost == 0))


def all_of(*states: Floats) -> Floats:
    """Return 0 where any state is 0, else NaN where one is NaN, else 1."""
    stacked = np.stack(states)
    failed, unknown = (stacked == 0).any(axis=0), np.isnan(stacked).any(axis=0)
    found: Floats = np.where(failed, 0.0, np.where(unknown, np.nan, 1.0))
    return found
