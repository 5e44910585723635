"""What a verdict is computed from, and the tidy form of it that every later step reads.

Owns the choice of records: phase "measure" only, duplicates dropped, unknown items and loads set aside, all
in an order that does not depend on the order on disk. Judges nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise

import msgspec
import numpy as np

from draftproof.core.records import (
    Analysis,
    BlockRecord,
    Judgement,
    RequestRecord,
)
from draftproof.judge.metrics.host_use import is_filled_by_own, join_uses
from draftproof.judge.metrics.identities import timeline_faults
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.observe.attempts import (
    Attempts,
    describe_disturbed_more,
    find_attempts,
    keep_counting,
    warn_about_attempts,
)
from draftproof.judge.observe.client_limits import ClientFault, LagBound, find_client_faults
from draftproof.judge.observe.columns import Bools, Columns, number_rows
from draftproof.judge.observe.levels import without_knee
from draftproof.judge.observe.observed import (
    Labels,
    Observation,
    PairKey,
    Period,
    PeriodKey,
    RunData,
    bound_lags,
    count_counted,
    find_pair_key,
    label_processes,
    warn_about_lines,
    without_repeats,
)
from draftproof.judge.stats.resampling import Ints
from draftproof.judge.stats.spending import repeated_level
from draftproof.plan.limits import LoadSize, measure_sizes
from draftproof.plan.load import LoadLevel
from draftproof.plan.schema import Plan
from draftproof.workload.blocks import Block, choose_items, least_blocks, plan_blocks
from draftproof.workload.checks import CheckResult, evaluate_checks
from draftproof.workload.conversation import view_answer
from draftproof.workload.items import Item
from draftproof.workload.segments import segment_key

__all__ = [
    "ALL_SEGMENTS",
    "ARM_ORDER",
    "Observation",
    "PairKey",
    "Period",
    "PeriodKey",
    "PreparedRun",
    "RunData",
    "index_judgements",
    "judge_answer",
    "prepare_run",
]

ALL_SEGMENTS = "all"
# Enough for the answers of thousands of prompts; sampled answers hardly repeat, and none is kept for long.
_REMEMBERED_ANSWERS = 20_000
_NOWHERE = np.empty(0, dtype=np.intp)
ARM_ORDER = ("baseline", "candidate", "alternative", "baseline_null")


class PreparedRun(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A run in order: observations sorted, periods by key, the names of segments, loads and arms.

    `every` has the lines of all attempts, `run` those of the attempts that count.
    """

    run: RunData
    observations: tuple[Observation, ...]
    periods: dict[PeriodKey, Period]
    segments: tuple[str, ...]
    loads: tuple[str, ...]
    arms: tuple[str, ...]
    warnings: tuple[str, ...]
    counts: dict[str, int]
    sizes: dict[str, LoadSize]
    attempts: tuple[Attempts, ...] = ()
    every: RunData

    @property
    def plan(self) -> Plan:
        """The plan of the run."""
        return self.run.plan

    def of_arm(self, arm: str, load: str | None = None, segment: str = ALL_SEGMENTS) -> list[Observation]:
        """Return the observations of an arm, at one load and in one segment if these are given."""
        return [self.observations[index] for index in self.indices_of(arm, load, segment).tolist()]

    def has_ended(self, record: RequestRecord) -> bool:
        """Tell whether the period of a request has a record of its own that says it ended."""
        period = self.periods.get((record.load, record.block, record.arm))
        return period is not None and period.completed

    @cached_property
    def process_labels(self) -> Labels:
        """What tells the process that answered each period from others."""
        return label_processes(self.run)

    @cached_property
    def process_numbers(self) -> Ints:
        """The number of the process that answered each observation, −1 where that is not known."""
        known = sorted({label for label in self.process_labels.values() if label is not None})
        numbers = {label: number for number, label in enumerate(known)}
        _, first, owners = np.unique(self.columns.period_numbers, return_index=True, return_inverse=True)
        records = [self.observations[index].record for index in first.tolist()]
        labels = [self.process_labels.get((one.load, one.block, one.arm)) for one in records]
        found = [-1 if label is None else numbers[label] for label in labels]
        return np.array(found, dtype=np.intp)[owners.reshape(-1)]

    @cached_property
    def disturbed_more(self) -> dict[str, str]:
        """The arms that the host disturbed more often than the others, and by how much."""
        return describe_disturbed_more(self.attempts, (period.arm for period in self.periods.values()))

    @cached_property
    def ended(self) -> Bools:
        """Whether each observation's period has a record that says it ended, see `has_ended`."""
        _, first, owners = np.unique(self.columns.period_numbers, return_index=True, return_inverse=True)
        states = [self.has_ended(self.observations[index].record) for index in first.tolist()]
        return np.array(states, dtype=np.bool_)[owners.reshape(-1)]

    @cached_property
    def asked_turns(self) -> set[PeriodKey]:
        """The periods that have requests."""
        first = np.unique(self.columns.period_numbers, return_index=True)[1].tolist()
        records = [self.observations[index].record for index in first]
        return {(one.load, one.block, one.arm) for one in records}

    @cached_property
    def planned(self) -> dict[tuple[str, str], int]:
        """Requests that each arm is asked, by load and segment, all segments included.

        At a load that an analysis ended these are the requests of the blocks that it had.
        """
        found: Counter[tuple[str, str]] = Counter()
        plan, dimensions = self.plan, self.plan.workload.segment_by
        items = {item.id: item for item in self.run.items}
        ended = find_ended(self.run.analyses)
        for load, count in ended.items():
            for item_id in chain.from_iterable(block.item_ids for block in self.planned_blocks[load][:count]):
                found[load, segment_key(items[item_id], dimensions)] += items[item_id].turns
                found[load, ALL_SEGMENTS] += items[item_id].turns
        for level in plan.load:
            for repeat in range(level.repeats if level.name not in ended else 0):
                for item in choose_items(self.run.items, level, repeat, plan.seed, dimensions):
                    found[level.name, segment_key(item, dimensions)] += item.turns
                    found[level.name, ALL_SEGMENTS] += item.turns
        return found

    @cached_property
    def planned_blocks(self) -> dict[str, list[Block]]:
        """The blocks of each load in the order in which they are run."""
        plan, found = self.plan, defaultdict[str, list[Block]](list)
        for block in plan_blocks(
            self.run.items, plan.load, ("baseline",), plan.seed, plan.workload.segment_by
        ):
            found[block.load].append(block)
        return dict(found)

    @cached_property
    def analysis_times(self) -> dict[str, tuple[float, ...]]:
        """The analyses that each load has had, as shares of its blocks; none in a run of a fixed size.

        A load that was broken off between two analyses is analysed once more where it stands.
        """
        plan = self.plan
        if plan.sequential is None:
            return {}
        least, found = least_blocks(is_representative=plan.evidence == "representative"), {}
        arms = [arm for arm in ("baseline", "candidate") if arm in self.arms]
        for load, blocks in self.planned_blocks.items():
            whole = set[int].intersection(
                *(
                    {
                        one.block
                        for one in self.periods.values()
                        if (one.load, one.arm) == (load, arm) and one.completed
                    }
                    for arm in arms
                )
            )
            done = [one for one in plan.sequential.list_points(len(blocks), least) if one <= len(whole)]
            points = done if not whole or len(whole) in done else [*done, len(whole)]
            found[load] = tuple(point / len(blocks) for point in points)
        return found

    def level_at(self, load: str, claims: int = 1) -> float:
        """Return the level that an interval at a load needs for `claims` of them to hold together.

        With the plan's confidence, at every analysis that the load has had.
        """
        alpha = (1 - self.plan.comparison.confidence) / max(1, claims)
        times = self.analysis_times.get(load)
        if not times or self.plan.sequential is None:
            return 1 - alpha
        return repeated_level(alpha, times, self.plan.sequential.spending)

    @cached_property
    def columns(self) -> Columns:
        """The observations as columns."""
        return Columns(self.observations)

    def indices_of(self, arm: str, load: str | None = None, segment: str = ALL_SEGMENTS) -> Ints:
        """Return the indices of the observations of `of_arm` among all, in order."""
        return self._by_key.get((arm, load, segment), _NOWHERE)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str | None, str], Ints]:
        """The indices of every arm's observations, at each load and at all, in each segment and in all."""
        columns, found = self.columns, {}
        for loads in (columns.loads, None):
            for segments in (columns.segments, None):
                rows = number_rows(columns.arms, *(part for part in (loads, segments) if part is not None))
                order = np.argsort(rows, kind="stable")
                for indices in np.split(order, np.flatnonzero(np.diff(rows[order])) + 1):
                    if len(indices):
                        one = self.observations[indices[0]]
                        load = None if loads is None else one.record.load
                        segment = ALL_SEGMENTS if segments is None else one.segment
                        found[one.record.arm, load, segment] = indices
        return found

    def level(self, load: str) -> LoadLevel:
        """Return a load level of the plan."""
        return next(level for level in self.plan.load if level.name == load)


def find_ended(analyses: Iterable[Analysis]) -> dict[str, int]:
    """Return load -> blocks after which an analysis ended it."""
    return {one.load: one.blocks for one in analyses if one.ended}


def prepare_run(run: RunData) -> PreparedRun:
    """Choose, order and judge the records of a run. The result does not depend on their order.

    What belongs to a knee search is left out: it is judged apart (verdict/knee).
    """
    written = without_knee(run)
    once = without_repeats(written)
    attempts = find_attempts(once)
    run = keep_counting(once, attempts)
    distinct = [record for record in run.records if record.phase == "measure"]
    measured, asked = count_counted(written.records), count_counted(once.records)
    items = {item.id: item for item in run.items}
    loads = {level.name for level in run.plan.load}
    known = [record for record in distinct if _is_known(record, items, loads)]
    openings = _group_openings(known, run.plan)
    periods = _mark_left_out(_collect_periods(run, openings, bound_lags(run, known)), attempts)
    sizes = measure_sizes(run.plan.load, openings, run.blocks)
    judged, ordered = index_judgements(run.judgements), _sorted(known, run.plan)
    observer = _Observer(items, periods, run.plan)
    counts = {
        "records": len(written.records),
        "not_measured_phase": len(written.records) - measured,
        "duplicates": measured - asked,
        "unknown": len(distinct) - len(known),
        "repeated": sum(
            (
                one.item_id == other.item_id
                and one.arm == other.arm
                and find_pair_key(one) == find_pair_key(other)
            )
            for one, other in pairwise(ordered)
        ),
        "measured": len(known),
        "periods": sum(period.completed for period in periods.values()),
        "periods_lagged": sum(period.lagged for period in periods.values()),
    } | ({"superseded": asked - len(distinct)} if asked > len(distinct) else {})
    return PreparedRun(
        run=run,
        observations=tuple(observer.observe(record, judged.get(record.request_id)) for record in ordered),
        periods=periods,
        segments=tuple(dict.fromkeys(segment_key(item, run.plan.workload.segment_by) for item in run.items)),
        loads=tuple(sorted((level.name for level in run.plan.load), key=lambda name: sizes[name].order)),
        arms=_order_arms(run),
        warnings=(
            *_warn_about_choice(counts),
            *warn_about_lines(written, once),
            *warn_about_attempts(attempts, is_repeating=run.plan.limits.repeat_disturbed),
        ),
        counts=counts,
        sizes=sizes,
        attempts=attempts,
        every=once,
    )


def _is_known(record: RequestRecord, items: Mapping[str, Item], loads: Collection[str]) -> bool:
    item = items.get(record.item_id)
    asked = item is not None and record.conversation_turn < item.turns
    return asked and record.load in loads and record.arm in ARM_ORDER


def _sorted(records: Iterable[RequestRecord], plan: Plan) -> list[RequestRecord]:
    rank = {level.name: index for index, level in enumerate(plan.load)}
    return sorted(
        records,
        key=lambda one: (
            rank[one.load],
            one.block,
            one.repeat,
            one.item_id,
            one.conversation_turn,
            ARM_ORDER.index(one.arm),
            one.end_ns,
            one.request_id,
        ),
    )


def _collect_periods(
    run: RunData, openings: Mapping[PeriodKey, Sequence[RequestRecord]], bounds: Mapping[PeriodKey, LagBound]
) -> dict[PeriodKey, Period]:
    """Join the records of one period: a resumed one is finished if any part was, and as late as its worst."""
    open_loads = _open_loads(run.plan)
    parts: defaultdict[PeriodKey, list[BlockRecord]] = defaultdict(list)
    for block in run.blocks:
        parts[(block.load, block.block, block.arm)].append(block)
    limit_ms = run.plan.limits.client_lag_ms
    return {
        key: _join_period(
            key,
            parts[key],
            find_client_faults(
                parts[key],
                openings.get(key, ()),
                limit_ms,
                is_open=key[0] in open_loads,
                bound=bounds.get(key),
            ),
        )
        for key in sorted(parts)
    }


def _mark_left_out(periods: dict[PeriodKey, Period], attempts: Iterable[Attempts]) -> dict[PeriodKey, Period]:
    left_out = {one.key for one in attempts if one.is_left_out}
    return {
        key: msgspec.structs.replace(period, left_out=key in left_out) if left_out else period
        for key, period in periods.items()
    }


def _group_openings(records: Iterable[RequestRecord], plan: Plan) -> dict[PeriodKey, list[RequestRecord]]:
    """Return the requests of open loops that an arrival process made due: the first of each conversation."""
    loads = _open_loads(plan)
    found: defaultdict[PeriodKey, list[RequestRecord]] = defaultdict(list)
    if loads:
        for one in records:
            if one.load in loads and one.conversation_turn == 0:
                found[one.load, one.block, one.arm].append(one)
    return found


def _open_loads(plan: Plan) -> frozenset[str]:
    return frozenset(level.name for level in plan.load if level.concurrency is None)


def _join_period(key: PeriodKey, parts: Sequence[BlockRecord], faults: tuple[ClientFault, ...]) -> Period:
    use = join_uses([part.host for part in parts if part.host is not None])
    lags = [part.event_loop_lag_max_ns for part in parts if part.event_loop_lag_max_ns is not None]
    return Period(
        load=key[0],
        block=key[1],
        arm=key[2],
        completed=any(part.completed for part in parts),
        lag_max_ns=max(lags, default=None),
        lagged=bool(faults),
        faults=faults,
        late_by_itself=bool(faults) and use is not None and is_filled_by_own(use) is True,
    )


def index_judgements(judgements: Iterable[Judgement]) -> dict[str, dict[int, tuple[Judgement, ...]]]:
    """Return request id -> index of the check -> its judgements in the order of their passes."""
    found: defaultdict[str, defaultdict[int, list[Judgement]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(judgements, key=lambda one: (one.attempt, msgspec.json.encode(one))):
        own = found[one.request_id][one.check]
        if not own or own[-1] != one:  # a line that is there twice is one pass
            own.append(one)
    return {name: {check: tuple(all_) for check, all_ in own.items()} for name, own in found.items()}


class _Observer:
    """Makes observations; equal answers to one prompt are judged once and share their results."""

    def __init__(self, items: Mapping[str, Item], periods: Mapping[PeriodKey, Period], plan: Plan) -> None:
        self._items, self._periods = items, periods
        self._segments = {name: segment_key(item, plan.workload.segment_by) for name, item in items.items()}
        self._stall_ns = round(plan.limits.stall_ms * 1e6)
        self._judged: dict[tuple[object, ...], tuple[CheckResult, ...]] = {}

    def observe(
        self, record: RequestRecord, judgements: Mapping[int, tuple[Judgement, ...]] | None
    ) -> Observation:
        """Return a record with all that is read off it."""
        period = self._periods.get((record.load, record.block, record.arm))
        return Observation(
            record=record,
            item=self._items[record.item_id],
            segment=self._segments[record.item_id],
            metrics=compute_request_metrics(record, self._stall_ns),
            checks=self._judge(record, judgements),
            timed=not self._periods if period is None else period.is_timed,
            in_order=not timeline_faults(record),
        )

    def _judge(
        self, record: RequestRecord, judgements: Mapping[int, tuple[Judgement, ...]] | None
    ) -> tuple[CheckResult, ...]:
        item = self._items[record.item_id]
        if record.outcome != "ok" or record.withheld is not None or judgements:
            return judge_answer(item, record, judgements)
        key = (item.id, record.conversation_turn, view_answer(record))
        if len(self._judged) >= _REMEMBERED_ANSWERS:
            self._judged.clear()
        if key not in self._judged:
            self._judged[key] = judge_answer(item, record)
        return self._judged[key]


def judge_answer(
    item: Item, record: RequestRecord, judgements: Mapping[int, tuple[Judgement, ...]] | None = None
) -> tuple[CheckResult, ...]:
    """Return the judged checks of an answer; of a withheld one they were judged before it was replaced."""
    if record.outcome != "ok":
        return ()
    if record.withheld is None:
        return evaluate_checks(item, view_answer(record), record.conversation_turn, judgements)
    return tuple(
        CheckResult(kind=one.kind, passed=one.passed, critical=one.critical, detail="withheld")
        for one in record.withheld.checks
    )


def _order_arms(run: RunData) -> tuple[str, ...]:
    """Return the arms that the plan asks for or that left a record, in the fixed order."""
    asked = {"baseline", "candidate"}
    asked |= {"alternative"} if run.plan.arms.alternative else set()
    asked |= {"baseline_null"} if run.plan.comparison.null_arm else set()
    seen = {record.arm for record in run.records if record.phase == "measure"}
    return tuple(arm for arm in ARM_ORDER if arm in asked | seen)


def _warn_about_choice(counts: Counter[str] | dict[str, int]) -> tuple[str, ...]:
    texts = {
        "duplicates": "{n} records repeat a request id; the one that ended first is kept.",
        "unknown": "{n} records name an item, a load or an arm that the run lacks; they are left out.",
        "repeated": "{n} records repeat a request of their arm; a pair takes the first, or the worst of "
        "several due at once.",
    }
    return tuple(text.format(n=counts[name]) for name, text in texts.items() if counts[name])
