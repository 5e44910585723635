"""How far the processes of an arm lie apart, over all arms and loads of a run. Pure."""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from draftproof.stats.processes import ProcessSpread, ProcessTable, process_spread
from draftproof.stats.resampling import Floats, Ints
from draftproof.verdict.order.periods import number_kinds, tabulate_periods
from draftproof.verdict.order.results import ProcessSummary
from draftproof.verdict.process_labels import Labels, list_processes
from draftproof.verdict.run_data import PreparedRun


def spread_processes(prepared: PreparedRun, values: Floats) -> ProcessSpread | None:
    """Return how far processes lie apart in a value, see `stats/processes.py`; None where nothing tells.

    Args:
        prepared: the run.
        values: shape (observations,), NaN where a request has none.
    """
    labels = prepared.process_labels
    if not _are_told_from_blocks(labels):
        return None
    tables = [
        ProcessTable(values=table.values, processes=found, kinds=number_kinds(table.arms))
        for table in tabulate_periods(prepared, values)
        if (found := _number(labels, table.load, table.blocks, table.arms)) is not None
    ]
    return process_spread(tables)


def summarise_processes(prepared: PreparedRun) -> ProcessSummary | None:
    """Return which processes answered, and how far they lie apart in the deciding metric.

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


def _are_told_from_blocks(labels: Labels) -> bool:
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
