"""What precedes each measurement period: which arm was measured before, and how long the host was idle.

A pause cools a host down and an arm leaves heat, caches and queues behind. An arm whose periods follow either
more often than those of its partner inherits that; the null arm shows it only if it shares the circumstance.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from draftproof.core.records import BlockRecord, Warmup
from draftproof.judge.decide.order.processes import EQUAL_ARMS, PeriodTable, number_kinds, tabulate_periods
from draftproof.judge.observe.observed import TurnKey, place_in_time
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.order import PrecedingRow
from draftproof.judge.stats.order import Bias, estimate_bias
from draftproof.judge.stats.resampling import Floats

PAUSE_S = 1.0  # clocks and temperatures of a host hardly change in less
# Of a smaller share a circumstance would have to change times by three times the effect to carry it.
LEAST_SHARE, LEAST_PERIODS = 1 / 3, 2


class Preceding(msgspec.Struct, frozen=True, kw_only=True):
    """What came before a period: the arm measured last, and how long the host was idle since."""

    arm: str
    idle_s: float

    @property
    def is_paused(self) -> bool:
        """Whether the host had a pause."""
        return self.idle_s > PAUSE_S


class Circumstance(msgspec.Struct, frozen=True, kw_only=True):
    """A way in which the periods of two arms differ: shares of the periods of each, and of whom."""

    text: str
    candidate: float
    baseline: float

    @property
    def difference(self) -> float:
        """Difference of the shares."""
        return self.candidate - self.baseline


class Imbalance(msgspec.Struct, frozen=True, kw_only=True):
    """How the candidate's periods of a load differ from the baseline's in what precedes them.

    `circumstances` are those that differ enough to carry an effect; `bias` is what they add to the log ratio.
    """

    load: str
    circumstances: tuple[Circumstance, ...]
    bias: Bias


def find_preceding(prepared: PreparedRun) -> dict[TurnKey, Preceding]:
    """Return what came before each period but the first; of one measured in several parts, before its first.

    The host is idle from the end of one period to the beginning of the next, but for the warm-up in between.
    """
    manifest = prepared.run.manifest
    offset_ns = manifest.anchor_wall_ns - manifest.anchor_monotonic_ns
    placed = place_in_time(prepared.every.blocks, anchor_offset_ns=offset_ns)
    warmed = _sum_warmups(prepared.run.warmups)
    found: dict[TurnKey, Preceding] = {}
    for (began_ns, before), (next_ns, period) in pairwise(placed):
        gap_ns = next_ns - began_ns - (before.ended_ns - before.started_ns)
        idle_ns = gap_ns - warmed.get(_key(period), 0)
        found.setdefault(_key(period), Preceding(arm=before.arm, idle_s=max(0, idle_ns) / 1e9))
    if placed:
        found.pop(_key(placed[0][1]), None)  # where its later part follows something
    return found


def summarise_preceding(prepared: PreparedRun) -> tuple[PrecedingRow, ...]:
    """Return one row for each load and arm."""
    found: defaultdict[tuple[str, str], list[Preceding]] = defaultdict(list)
    for (load, _, arm), one in find_preceding(prepared).items():
        found[load, arm].append(one)
    return tuple(
        _summarise(load, arm, found[load, arm])
        for load in prepared.loads
        for arm in prepared.arms
        if found[load, arm]
    )


def find_imbalances(prepared: PreparedRun, values: Floats) -> dict[str, Imbalance]:
    """Return by load how the arms that are compared differ in what precedes their periods, where they do.

    `values`, shape (observations,): the deciding metric.
    """
    preceding = find_preceding(prepared)
    found = {}
    for table in tabulate_periods(prepared, values):
        if set(DECISIVE) <= set(table.arms) and (one := _find_imbalance(prepared, table, preceding)):
            found[table.load] = one
    return found


def _find_imbalance(
    prepared: PreparedRun, table: PeriodTable, preceding: Mapping[TurnKey, Preceding]
) -> Imbalance | None:
    known = [all((table.load, block, arm) in preceding for arm in table.arms) for block in table.blocks]
    blocks = [block for block, is_known in zip(table.blocks, known, strict=True) if is_known]
    if not blocks:
        return None
    rows = [[preceding[table.load, block, arm] for arm in table.arms] for block in blocks]
    held = _tabulate_circumstances(table.arms, rows)
    columns = [table.arms.index(arm) for arm in DECISIVE]
    every = [
        Circumstance(text=text, candidate=candidate, baseline=baseline)
        for text, own in held.items()
        for candidate, baseline in [own[:, columns].mean(axis=0).tolist()]
    ]
    shown = tuple(one for one in every if _is_uneven(one.difference, len(blocks)))
    if not shown:
        return None
    level = prepared.plan.comparison.confidence
    kinds = number_kinds(table.arms)
    bias = estimate_bias(table.values[known], np.array(list(held.values())), kinds, *columns, level=level)
    return Imbalance(load=table.load, circumstances=shown, bias=bias)


def _tabulate_circumstances(arms: Sequence[str], rows: Sequence[Sequence[Preceding]]) -> dict[str, Floats]:
    """Return what may precede a period, in words, and which periods it does, shape (blocks, arms).

    Periods that follow the baseline, or the null arm, which is the same, are what others are held against.
    """
    found = {
        "the host was idle before": np.array(
            [[one.is_paused for one in row] for row in rows], dtype=np.float64
        )
    }
    for arm in arms:
        if arm not in EQUAL_ARMS:
            follows = [[one.arm == arm for one in row] for row in rows]
            found[f"the {arm} ran just before"] = np.array(follows, dtype=np.float64)
    return found


def _is_uneven(difference: float, periods: int) -> bool:
    """Tell whether shares differ by enough, and by more than one period of few."""
    return abs(difference) >= LEAST_SHARE and round(abs(difference) * periods) >= LEAST_PERIODS


def _summarise(load: str, arm: str, found: Sequence[Preceding]) -> PrecedingRow:
    idle = [one.idle_s for one in found]
    return PrecedingRow(
        arm=arm,
        load=load,
        periods=len(found),
        after_pause=sum(one.is_paused for one in found),
        idle_median_s=median(idle),
        idle_max_s=max(idle),
        follows=dict(sorted(Counter(one.arm for one in found).items())),
    )


def _sum_warmups(warmups: Sequence[Warmup]) -> dict[TurnKey, int]:
    """Return how long the warm-ups before each period took, ns."""
    found: Counter[TurnKey] = Counter()
    for one in warmups:
        found[one.load, one.block, one.arm] += one.ended_ns - one.started_ns
    return found


def _key(period: BlockRecord) -> TurnKey:
    return (period.load, period.block, period.arm)
