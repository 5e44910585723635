"""How far apart the processes of an arm are, over all arms and loads of a run.

One value for each measurement period, free of what its prompts do to every arm and its segments to one; what
equal arms differ by stays.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from draftproof.judge.observe.observed import Labels, list_processes
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.decide import ProcessSummary
from draftproof.judge.stats.periods import ProcessSpread, ProcessTable, process_spread
from draftproof.judge.stats.resampling import Floats, Ints, index_labels

EQUAL_ARMS = ("baseline", "baseline_null")


class PeriodTable(msgspec.Struct, frozen=True, kw_only=True):
    """The periods of one load in which every arm answered something alike.

    `values`, shape (blocks, arms): mean over the requests that every arm answered of the log value less its
    mean over the arms, less what segments do to the arm and to those that equal it.
    """

    load: str
    blocks: tuple[int, ...]
    arms: tuple[str, ...]
    values: Floats


def tabulate_periods(prepared: PreparedRun, values: Floats) -> Iterator[PeriodTable]:
    """Yield the table of each load that has one; `values`, shape (observations,), NaN where there is none."""
    columns = prepared.columns
    usable = columns.timed & columns.in_order & (values > 0)
    for load in prepared.loads:
        found = {arm: _first_asked(prepared, arm, load, usable) for arm in prepared.arms}
        arms = tuple(arm for arm, indices in found.items() if len(indices))
        if arms:
            yield _tabulate(prepared, load, {arm: found[arm] for arm in arms}, values)


def number_kinds(arms: Sequence[str]) -> Ints:
    """Return what each arm is: the null arm is the baseline once more."""
    return index_labels([EQUAL_ARMS[0] if arm in EQUAL_ARMS else arm for arm in arms])


def _first_asked(prepared: PreparedRun, arm: str, load: str, usable: np.typing.NDArray[np.bool_]) -> Ints:
    """Return the indices of the usable requests of an arm, one for each that was asked, by what was asked."""
    indices = prepared.indices_of(arm, load)
    indices = indices[usable[indices]]
    return indices[np.unique(prepared.columns.asked[indices], return_index=True)[1]]


def _tabulate(prepared: PreparedRun, load: str, indices: dict[str, Ints], values: Floats) -> PeriodTable:
    columns, arms = prepared.columns, tuple(indices)
    asked = [columns.asked[own] for own in indices.values()]
    shared = asked[0]
    for other in asked[1:]:
        shared = np.intersect1d(shared, other, assume_unique=True)
    kept = [
        own[np.isin(of, shared, assume_unique=True)] for own, of in zip(indices.values(), asked, strict=True)
    ]
    logs = np.log(values[np.array(kept, dtype=np.intp)])  # (arms, requests)
    free = logs - logs.mean(axis=0)
    segments = index_labels(columns.segments[kept[0]])
    blocks, rows = np.unique(columns.blocks[kept[0]], return_inverse=True)
    kinds = number_kinds(arms)
    effects = [_mean_by(segments, free[kinds == kind].mean(axis=0)) for kind in range(int(kinds.max()) + 1)]
    means = [_mean_by(rows, own - effects[kind][segments]) for own, kind in zip(free, kinds, strict=True)]
    return PeriodTable(
        load=load,
        blocks=tuple(blocks.tolist()),
        arms=arms,
        values=np.array(means, dtype=np.float64).T.reshape(len(blocks), len(arms)),
    )


def _mean_by(groups: Ints, values: Floats) -> Floats:
    means: Floats = np.bincount(groups, weights=values) / np.bincount(groups)
    return means


def spread_processes(prepared: PreparedRun, values: Floats) -> ProcessSpread | None:
    """Return how far apart processes are in a value, shape (observations,); None where nothing tells."""
    labels = prepared.process_labels
    if not _are_separable_from_blocks(labels):
        return None
    tables = [
        ProcessTable(values=table.values, processes=found, kinds=number_kinds(table.arms))
        for table in tabulate_periods(prepared, values)
        if (found := _number(labels, table.load, table.blocks, table.arms)) is not None
    ]
    return process_spread(tables)


def summarise_processes(prepared: PreparedRun) -> ProcessSummary | None:
    """Return which processes answered, and how far apart they are in the deciding metric.

    None where the arms share their processes, whose luck is then in no ratio.
    """
    mine, theirs = (
        {load: list_processes(prepared.process_labels, load, arm) for load in prepared.loads}
        for arm in ("candidate", "baseline")
    )
    if mine == theirs and not any(None in own for own in mine.values()):
        return None
    metric = prepared.plan.comparison.metric
    found = spread_processes(prepared, prepared.columns.metric(metric))
    return ProcessSummary(
        metric=metric,
        counts={arm: _count_fewest(prepared, arm) for arm in prepared.arms},
        spread=None if found is None else math.exp(math.sqrt(found.variance)),
        degrees=None if found is None else found.degrees,
    )


def _count_fewest(prepared: PreparedRun, arm: str) -> int | None:
    """Return the fewest processes that answered for an arm at a load, None where that is not known."""
    found = [own for load in prepared.loads if (own := list_processes(prepared.process_labels, load, arm))]
    return None if not found or any(None in own for own in found) else min(map(len, found))


def _are_separable_from_blocks(labels: Labels) -> bool:
    """Tell whether an arm has several processes at a load, one of which answered several blocks of it."""
    found: defaultdict[tuple[str, str], list[str | None]] = defaultdict(list)
    for (load, _, arm), label in labels.items():
        found[load, arm].append(label)
    return any(1 < len(set(own)) < len(own) for own in found.values())


def _number(labels: Labels, load: str, blocks: Sequence[int], arms: Sequence[str]) -> Ints | None:
    """Return the number of each period's process, shape (blocks, arms), the same at every load."""
    order = {label: number for number, label in enumerate(sorted({one for one in labels.values() if one}))}
    found = [[labels.get((load, block, arm)) for arm in arms] for block in blocks]
    if any(label is None for row in found for label in row):
        return None
    return np.array([[order[label] for label in row if label] for row in found], dtype=np.intp)
