"""What precedes each measurement period, and what a difference in time cannot be separated from.

A pause cools a host down and an arm leaves heat, caches and queues behind: periods that follow either more
often than the other arm's carry that, as far as it could make the effect. With representative evidence, fewer
than three processes of an arm: the luck of a start is in every answer of it. Both work either way, so a cell
with such a doubt is inconclusive; what is no difference in time is judged all the same.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from draftproof.core.records import BlockRecord, Warmup
from draftproof.judge.decide.cells import CellEvidence, decide_effect
from draftproof.judge.decide.processes import EQUAL_ARMS, PeriodTable, number_kinds, tabulate_periods
from draftproof.judge.decide.tails import TAIL_CODES
from draftproof.judge.observe.observed import PeriodKey, list_processes, sort_by_time
from draftproof.judge.observe.pairs import DECISIVE
from draftproof.judge.observe.run_data import PreparedRun
from draftproof.judge.results.decide import PrecedingRow, Reference
from draftproof.judge.results.run import Cell, CellStatus, Decision, Figure, Reason
from draftproof.judge.stats.order import Bias, estimate_bias
from draftproof.judge.stats.resampling import Floats
from draftproof.plan.schema import Thresholds

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


def find_preceding(prepared: PreparedRun) -> dict[PeriodKey, Preceding]:
    """Return what came before each period but the first; of one measured in several parts, before its first.

    The host is idle from the end of one period to the beginning of the next, but for the warm-up in between.
    """
    manifest = prepared.run.manifest
    offset_ns = manifest.anchor_wall_ns - manifest.anchor_monotonic_ns
    placed = sort_by_time(prepared.every.blocks, anchor_offset_ns=offset_ns)
    warmed = _sum_warmups(prepared.run.warmups)
    found: dict[PeriodKey, Preceding] = {}
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
    prepared: PreparedRun, table: PeriodTable, preceding: Mapping[PeriodKey, Preceding]
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


def _sum_warmups(warmups: Sequence[Warmup]) -> dict[PeriodKey, int]:
    """Return how long the warm-ups before each period took, ns."""
    found: Counter[PeriodKey] = Counter()
    for one in warmups:
        found[one.load, one.block, one.arm] += one.ended_ns - one.started_ns
    return found


def _key(period: BlockRecord) -> PeriodKey:
    return (period.load, period.block, period.arm)


LEAST_PROCESSES = 3
TIME_CODES = frozenset({"guardrail_ttft", "guardrail_e2e", *TAIL_CODES.values()})


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """What may have made a difference in time at a load; `bias` is how much of its log, None any amount."""

    reason: Reason
    bias: Bias | None = None


def find_doubts(prepared: PreparedRun, *, is_representative: bool) -> Mapping[str, tuple[Doubt, ...]]:
    """Return the doubts of each load; few processes withhold anything of representative evidence only."""
    found: defaultdict[str, list[Doubt]] = defaultdict(list)
    for load in prepared.loads:
        if is_representative and (few := list_few_processes(prepared, load)):
            text = f"At load {load} {describe_few(few)}"
            reason = _reason("few_processes", f"{text}; {_advise(prepared, few)}", load)
            found[load].append(Doubt(reason=reason))
    metric = prepared.columns.metric(prepared.plan.comparison.metric)
    for load, uneven in find_imbalances(prepared, metric).items():
        reason = _reason("follows_unlike", describe_imbalance(uneven), load)
        found[load].append(Doubt(reason=reason, bias=uneven.bias))
    return {load: tuple(own) for load, own in found.items()}


def withhold(cell: Cell, evidence: CellEvidence, doubts: Sequence[Doubt], thresholds: Thresholds) -> Cell:
    """Return a cell as decided, inconclusive where a doubt could carry what it says of times, and why."""
    violated = {one.code for one in cell.guardrails if one.standing == "violated"}
    standing = decide_effect(evidence.effect, thresholds, evidence.widened)
    if cell.status == "invalid" or violated - TIME_CODES:
        return cell
    carried = tuple(one.reason for one in doubts if _carries(one, standing, evidence, thresholds))
    if not carried:
        return cell
    return msgspec.structs.replace(cell, status="inconclusive", reasons=(*cell.reasons, *carried))


def list_few_processes(prepared: PreparedRun, load: str) -> dict[str, int | None]:
    """Return the arms that fewer than three processes answered for at a load, None where that is not known.

    Arms that share their processes need none of their own: what a process does to both is in no ratio.
    """
    labels = {arm: list_processes(prepared.process_labels, load, arm) for arm in DECISIVE}
    known = {arm: None if None in own or not own else len(own) for arm, own in labels.items()}
    if labels[DECISIVE[0]] == labels[DECISIVE[1]] and None not in known.values():
        return {}
    return {arm: count for arm, count in known.items() if count is None or count < LEAST_PROCESSES}


def describe_few(few: Mapping[str, int | None]) -> str:
    """Say how many processes answered, and that it takes more; without a full stop."""
    counts = " and ".join(f"{_count(count)} answered for the {arm}" for arm, count in few.items())
    return (
        f"{counts}, which may be fast or slow by the chance of a start; at least {LEAST_PROCESSES} of each "
        "are needed"
    )


def qualify_by_processes(sentence: str, decision: Decision, prepared: PreparedRun) -> str:
    """Return the sentence; one that concludes anything says so where processes were too few to vary."""
    lacking = {arm for load in prepared.loads for arm in list_few_processes(prepared, load)}
    few = [arm for arm in DECISIVE if arm in lacking]
    if decision in ("invalid", "inconclusive") or not few:
        return sentence
    return f"{sentence.removesuffix('.')}; not known: what other starts of {' and '.join(few)} would change."


def describe_imbalance(uneven: Imbalance) -> str:
    """Say in what the periods of the arms differ, and what that may add to the ratio."""
    shares = " and ".join(
        f"{one.text} {100 * one.candidate:.0f} % of the candidate's periods, "
        f"but {100 * one.baseline:.0f} % of the baseline's"
        for one in uneven.circumstances
    )
    span = f"{100 * math.expm1(uneven.bias.low):+.1f} % to {100 * math.expm1(uneven.bias.high):+.1f} %"
    carried = f"by the run's own periods, that changes candidate / baseline by {span}"
    if uneven.bias.assumed:
        carried = f"no period shows how much that changes candidate / baseline; at most {span} is assumed"
    return f"At load {uneven.load} {shares}; {carried}."


def _carries(doubt: Doubt, standing: CellStatus, evidence: CellEvidence, thresholds: Thresholds) -> bool:
    """Tell whether a difference would not be shown without what a doubt may have added to it.

    A guardrail of time that is violated has an interval of its own: it is carried by what is beyond a margin.
    Where no difference is shown, an estimate that is no gain may be one.
    """
    if doubt.bias is None:
        return True
    if any(finding.standing == "violated" for finding in evidence.findings):
        return doubt.bias.high > math.log1p(thresholds.harm_margin)
    if standing == "inconclusive" and evidence.effect.value is not None:
        least = 1 - thresholds.minimum_gain
        return evidence.effect.value * math.exp(-max(0.0, doubt.bias.high)) < least <= evidence.effect.value
    shifted = _shift(evidence.effect, doubt.bias.low, doubt.bias.high)
    return decide_effect(shifted, thresholds, evidence.widened) != standing


def _shift(effect: Figure, low: float, high: float) -> Figure:
    """Return an effect that may be without a bias of its log between two limits, or with all of it."""
    if effect.low is None or effect.high is None:
        return effect
    return msgspec.structs.replace(
        effect, low=effect.low * math.exp(-max(0.0, high)), high=effect.high * math.exp(-min(0.0, low))
    )


def _advise(prepared: PreparedRun, few: Mapping[str, int | None]) -> str:
    attached = [arm for arm in few if getattr(prepared.plan.arms, arm).url is not None]
    if not attached:
        return "set limits.restarts, or give the run more and smaller blocks."
    return (
        f"the run cannot restart {' and '.join(attached)}: give a command in place of the url, or restart "
        "it between parts of the run (Ctrl-C, then --resume) where its metrics tell when it began."
    )


def _count(count: int | None) -> str:
    if count is None:
        return "an unknown number of processes"
    return "one process" if count == 1 else f"{count} processes"


def _reason(code: str, text: str, load: str) -> Reason:
    return Reason(code=code, text=text, evidence=Reference("periods", at=load))


def warn_about_preceding(doubts: Mapping[str, Sequence[Doubt]]) -> Iterator[str]:
    """Yield what differs between the arms in what precedes their periods, once a load."""
    for own in doubts.values():
        yield from (one.reason.text for one in own if one.reason.code == "follows_unlike")
