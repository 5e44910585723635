"""The observations of a run as columns, shape (observations,), each made when it is asked for.

A long run has millions of values and few prompts: whoever counts, sorts or resamples does it on these arrays.
Labels are numbers in the sorted order of what they stand for, so that `index_labels` gives the same of
either.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from draftproof.judge.metrics.identities import acceptance_faults
from draftproof.judge.metrics.request import is_answered
from draftproof.judge.metrics.service import Objectives, evaluate_times
from draftproof.judge.observe.observed import Observation
from draftproof.judge.stats.resampling import Floats, Ints
from draftproof.workload.checks import CheckResult
from draftproof.workload.clusters import name_clusters
from draftproof.workload.items import is_of_form

Bools = npt.NDArray[np.bool_]
CheckCounts = tuple[int, int, int, int]
NO_BASIS, COUNTED, ASSUMED = 0, 1, 2  # how the tokens of a first chunk came off, see `RequestMetrics`
FROM_PROMPT = frozenset({"ttft_ns", "ttft_from_schedule_ns", "e2e_ns", "e2e_from_schedule_ns"})
_LARGEST = 2**62
_BASES = {None: NO_BASIS, "counted": COUNTED, "single_first_token_assumed": ASSUMED}


def _numbers(name: str) -> "cached_property[Ints]":
    """Return a column of whole numbers that every observation has."""

    def make(columns: "Columns") -> Ints:
        return np.array([*map(attrgetter(name), columns.observations)], dtype=np.intp)

    return cached_property(make)


def _flags(name: str) -> "cached_property[Bools]":
    def make(columns: "Columns") -> Bools:
        return np.array([*map(attrgetter(name), columns.observations)], dtype=np.bool_)

    return cached_property(make)


def _named(name: str) -> "cached_property[Ints]":
    def make(columns: "Columns") -> Ints:
        return _index_names([*map(attrgetter(name), columns.observations)])

    return cached_property(make)


class Columns:
    """Columns of some observations, each made when it is asked for."""

    timed = _flags("timed")  # whether the client was on time in the request's period
    in_order = _flags("in_order")  # whether the record's times run forwards
    segments = _named("segment")  # indices of names among the sorted names
    arms = _named("record.arm")
    loads = _named("record.load")
    items = _named("record.item_id")
    blocks = _numbers("record.block")
    scheduled_ns = _numbers("record.scheduled_ns")
    end_ns = _numbers("record.end_ns")
    turns = _numbers("record.conversation_turn")  # which turn of its conversation a request is
    stalls = _numbers("metrics.stall_count")

    def __init__(self, observations: Sequence[Observation]) -> None:
        self.observations = observations
        self.records = [one.record for one in observations]
        self._measured = [one.metrics for one in observations]
        self._figures: dict[str, Floats] = {}
        self._metrics: dict[str, Floats] = {}
        self._clusters: dict[str | None, Ints] = {}
        self._names: dict[str | None, Mapping[str, str]] = {}
        self._on_time: tuple[Objectives, Floats] | None = None

    @cached_property
    def is_ok(self) -> Bools:
        """Whether the request was answered to the end, and with content."""
        return np.array([is_answered(one) for one in self.records], dtype=np.bool_)

    @cached_property
    def passed(self) -> Floats:
        """1 where every check passed, 0 where one did not, NaN where that is not known."""
        judged, passed, _, unjudged = self.checks.T
        known = np.where((unjudged > 0) | (judged == 0), np.nan, 1.0)
        return np.where(self.has_checks, np.where(judged > passed, 0.0, known), np.nan)

    @cached_property
    def chunks(self) -> Ints:
        """How many chunks of content an answer has."""
        return np.array([len(one.chunks) for one in self.records], dtype=np.intp)

    @cached_property
    def fallbacks(self) -> Floats:
        """How often the arm fell back to ordinary decoding, NaN where that is not known."""
        return _read(self.records, "fallbacks")

    @cached_property
    def asks_again(self) -> Bools:
        """Whether an attempt that does not count asked the same of the arm before: it may know the prompt."""
        return self._whole("attempt") > 0

    @cached_property
    def item_ids(self) -> list[str]:
        """The ids that `items` counts."""
        return sorted({one.item_id for one in self.records})

    @cached_property
    def asked(self) -> Ints:
        """A number for what was asked: the same of requests of one item, turn, repeat, block and load."""
        return number_rows(self.loads, self.blocks, self._whole("repeat"), self.items, self.turns)

    @cached_property
    def requests(self) -> Ints:
        """A number for the request that was made: item, repeat and turn of the conversation."""
        return number_rows(self.items, self._whole("repeat"), self.turns)

    @cached_property
    def period_numbers(self) -> Ints:
        """A number for the period that a request was made in: load, block and arm."""
        return number_rows(self.loads, self.blocks, self.arms)

    @cached_property
    def conversations(self) -> Ints:
        """A number for the conversation: block, repeat and item of one arm at one load."""
        return number_rows(self.arms, self.loads, self.blocks, self._whole("repeat"), self.items)

    @cached_property
    def is_sound(self) -> Bools:
        """Whether the request was answered and its counters of drafts agree with themselves."""
        return self.is_ok & np.array(
            [
                (one.speculation is None and one.rounds is None) or not acceptance_faults(one)
                for one in self.records
            ],
            dtype=np.bool_,
        )

    @cached_property
    def discloses(self) -> Bools:
        """Whether the record tells anything of decode steps or drafts."""
        return np.array(
            [
                one.speculation is not None or one.rounds is not None or one.decode_steps is not None
                for one in self.records
            ],
            dtype=np.bool_,
        )

    @cached_property
    def residence_ns(self) -> Ints:
        """From the scheduled time to the end."""
        return self.end_ns - self.scheduled_ns

    @cached_property
    def lateness_ns(self) -> Floats:
        """From the scheduled time to sending, NaN where it was not sent."""
        return _between(_Times(self.scheduled_ns, np.ones(len(self.records), dtype=np.bool_)), self._sent_at)

    @cached_property
    def sent_ns(self) -> Floats:
        """From sending to the end, NaN where it was not sent."""
        return _between(self._sent_at, _Times(self.end_ns, np.ones(len(self.records), dtype=np.bool_)))

    @cached_property
    def span_ns(self) -> Floats:
        """From the first chunk to the last, NaN without chunks."""
        first = [one.chunks[0].arrival_ns if one.chunks else None for one in self.records]
        return _between(_to_times(first), self._last_at)

    @cached_property
    def before_first_ns(self) -> Floats:
        """From the scheduled time to the first chunk, NaN without chunks."""
        return self.figure("ttft_from_schedule_ns")

    @cached_property
    def context_tokens(self) -> Floats:
        """Prompt and answer of an answered request in tokens, NaN where either is unknown."""
        prompts = np.array([one.prompt_tokens for one in self.records], dtype=np.float64)
        return prompts + self.metric("output_tokens")

    @cached_property
    def is_cut(self) -> Floats:
        """1 where the limit on tokens ended the answer, 0 where it did not, NaN where that is unknown."""
        reasons = [one.finish_reason for one in self.records]
        return np.array([None if one is None else one == "length" for one in reasons], dtype=np.float64)

    @cached_property
    def tpot_basis(self) -> Ints:
        """How the tokens of the first chunk came off: NO_BASIS, COUNTED or ASSUMED."""
        return np.array([_BASES[one.tpot_basis] for one in self._measured], dtype=np.intp)

    @cached_property
    def turns_of_item(self) -> Ints:
        """How many turns the item's conversation has."""
        first = np.unique(self.items, return_index=True)[1].tolist()
        turns: Ints = np.array([self.observations[index].item.turns for index in first], dtype=np.intp)
        return turns[self.items]

    @cached_property
    def is_greedy(self) -> Bools:
        """Whether the answer was asked for without any chance in it."""
        return np.array([one.item.sampling.temperature == 0 for one in self.observations], dtype=np.bool_)

    @cached_property
    def has_checks(self) -> Bools:
        """Whether the turn that was asked has checks."""
        return self._of_turns(lambda seen: bool(seen.wanted_checks))

    @cached_property
    def is_held_to_baseline(self) -> Bools:
        """Whether only the baseline's answer can show what is in a greedy answer: no check looks at that."""
        return self.is_greedy & self._of_turns(lambda seen: all(map(is_of_form, seen.wanted_checks)))

    def _of_turns(self, tell: Callable[[Observation], bool]) -> Bools:
        """Return what is told of one observation of each turn of each item."""
        _, first, owners = np.unique(
            number_rows(self.items, self.turns), return_index=True, return_inverse=True
        )
        found = np.array([tell(self.observations[index]) for index in first.tolist()], np.bool_)
        return found[owners.reshape(-1)]

    @cached_property
    def checks(self) -> npt.NDArray[np.int64]:
        """Checks judged, passed, critical and failed, unjudged; shape (observations, 4)."""
        known: dict[int, CheckCounts] = {}
        rows = []
        for one, is_ok in zip(self.observations, self.is_ok.tolist(), strict=True):
            # Equal answers share their results, which live as long as the observations.
            key = id(one.checks)
            if not is_ok:
                rows.append((len(one.wanted_checks), 0, 0, 0))
                continue
            if key not in known:
                known[key] = _count_checks(one.checks)
            rows.append(known[key])
        return np.array(rows, dtype=np.int64).reshape(-1, 4)

    @cached_property
    def gap_counts(self) -> Ints:
        """How many gaps between chunks an answer has."""
        return np.array([len(one.icl_ns) for one in self._measured], dtype=np.intp)

    @cached_property
    def gaps_ns(self) -> Floats:
        """Every gap of every answer, one after the other, shape (sum of `gap_counts`,)."""
        flat = chain.from_iterable(one.icl_ns for one in self._measured)
        return np.fromiter(flat, np.float64, int(self.gap_counts.sum()))

    def gaps_of(self, chosen: Ints) -> Floats:
        """Return the gaps of some observations."""
        wanted = np.zeros(len(self.observations), dtype=np.bool_)
        wanted[chosen] = True
        found: Floats = self.gaps_ns[np.repeat(wanted, self.gap_counts)]
        return found

    def server_ns(self, name: str) -> Floats:
        """Return a part of the server's own timings, NaN where it is not disclosed."""
        if f"server.{name}" not in self._figures:
            self._figures[f"server.{name}"] = _read(self.records, f"server.{name}")
        return self._figures[f"server.{name}"]

    def on_time(self, objectives: Objectives) -> Floats:
        """Return 1 where a request met every objective, 0 where not, NaN where that is not known."""
        if self._on_time is None or self._on_time[0] != objectives:
            self._on_time = (
                objectives,
                evaluate_times(
                    self.is_ok,
                    self.chunks,
                    ttft_ns=self.figure("ttft_from_schedule_ns"),
                    tpot_ns=self.figure("tpot_ns"),
                    tpot_most_ns=self.figure("tpot_most_ns"),
                    e2e_ns=self.figure("e2e_from_schedule_ns"),
                    tokens=self.figure("output_tokens"),
                    objectives=objectives,
                ),
            )
        return self._on_time[1]

    def figure(self, name: str) -> Floats:
        """Return a metric of all requests, answered or not, NaN where it is not known."""
        if name not in self._figures:
            self._figures[name] = _read(self._measured, name)
        return self._figures[name]

    def metric(self, name: str) -> Floats:
        """Return a metric of answered requests, NaN where it is not known or not one of a first asking."""
        if name not in self._metrics:
            counts = self.is_ok & ~self.asks_again if name in FROM_PROMPT else self.is_ok
            self._metrics[name] = np.where(counts, self.figure(name), np.nan)
        return self._metrics[name]

    @property
    def prompts(self) -> Ints:
        """Number of the prompt: items with the same messages are one, see `name_clusters`."""
        return self.clusters(None)

    @cached_property
    def prompt_names(self) -> list[str]:
        """The names that `prompts` counts."""
        return sorted(set(self.cluster_names(None).values()))

    def clusters(self, cluster_by: str | None) -> Ints:
        """Return the number of what each observation is resampled with, in the order of the names."""
        if cluster_by not in self._clusters:
            names = self.cluster_names(cluster_by)
            of_item = _index_names([names[item_id] for item_id in self.item_ids])
            self._clusters[cluster_by] = of_item[self.items]
        return self._clusters[cluster_by]

    def cluster_names(self, cluster_by: str | None) -> Mapping[str, str]:
        """Return item id -> name of what it is resampled with."""
        if cluster_by not in self._names:
            first = np.unique(self.items, return_index=True)[1].tolist()
            found = [self.observations[index] for index in first]
            named = name_clusters([one.item for one in found], cluster_by)
            self._names[cluster_by] = {one.record.item_id: named[one.item.id] for one in found}
        return self._names[cluster_by]

    def read(self, read: Callable[[Observation], float | None]) -> Floats:
        """Return what `read` gives of each observation, NaN for None."""
        return np.array([read(one) for one in self.observations], dtype=np.float64)

    @cached_property
    def _sent_at(self) -> "_Times":
        return _to_times([one.sent_ns for one in self.records])

    @cached_property
    def _last_at(self) -> "_Times":
        return _to_times([one.chunks[-1].arrival_ns if one.chunks else None for one in self.records])

    def _whole(self, name: str) -> Ints:
        return np.array([*map(attrgetter(name), self.records)], dtype=np.intp)


class _Times(NamedTuple):
    """Times of the client's clock, ns, as whole numbers, and where they are known."""

    ns: Ints
    known: Bools


def number_rows(*parts: Ints) -> Ints:
    """Return one number for each row, equal where all parts, shape (rows,) each, are; in their order."""
    numbers, width = np.zeros(len(parts[0]), dtype=np.intp), 1
    for part in parts:
        lowest, highest = int(part.min(initial=0)), int(part.max(initial=0))
        span = highest - lowest + 1
        if width * span > _LARGEST:
            numbers, part, width, span = _rank(numbers), _rank(part), len(part), len(part)  # noqa: PLW2901
            lowest = 0
        numbers, width = numbers * span + (part - lowest), width * span
    return numbers


def _rank(values: Ints) -> Ints:
    return np.unique(values, return_inverse=True)[1].reshape(-1)


def _index_names(labels: list[str]) -> Ints:
    indices = {name: index for index, name in enumerate(sorted(set(labels)))}
    return np.fromiter(map(indices.__getitem__, labels), np.intp, len(labels))


def _read(rows: Sequence[Any], name: str) -> Floats:
    """Return an attribute of every row, NaN for None."""
    return np.array([*map(attrgetter(name), rows)], dtype=np.float64)


def _to_times(values: list[int | None]) -> _Times:
    known = np.array([value is not None for value in values], dtype=np.bool_)
    return _Times(np.array([value or 0 for value in values], dtype=np.intp), known)


def _between(start: _Times, end: _Times) -> Floats:
    """Return end − start, NaN where either is not known; a clock's numbers may be too large for floats."""
    return np.where(start.known & end.known, (end.ns - start.ns).astype(np.float64), np.nan)


def _count_checks(checks: Iterable[CheckResult]) -> CheckCounts:
    results = list(checks)
    judged = [check for check in results if check.passed is not None]
    return (
        len(judged),
        sum(check.passed is True for check in judged),
        sum(check.critical and check.passed is False for check in judged),
        len(results) - len(judged),
    )
