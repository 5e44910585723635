"""What a run directory holds for a verdict, and one request of it as every later step sees it.

What a journal holds twice (copied by a tool that joined files, or by hand) counts once. Periods are put on
one axis of time: within one start of the host its monotonic clock orders them, between two starts the wall
clock of their first period does. Where the kernel stamps arrivals the client's lateness in reading is in no
time; elsewhere it is in each, and its limit is a share of the deciding time. The process that answered a
period is known by the number of its start, of an attached service by its address and the time at which it
began. Notices are what a run said of its own chances while it was measured.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from draftproof.core.manifests import Manifest
from draftproof.core.records import (
    Analysis,
    BehaviourProbe,
    BlockRecord,
    Judgement,
    Notice,
    RequestRecord,
    TelemetrySample,
    Warmup,
)
from draftproof.judge.metrics.request import RequestMetrics, is_answered
from draftproof.judge.metrics.telemetry import START_TIME
from draftproof.judge.observe.client_limits import LAG_PART, ClientFault, LagBound
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Reason
from draftproof.plan.schema import Arm, Plan
from draftproof.services.engines.values import parse_series
from draftproof.workload.checks import CheckResult
from draftproof.workload.conversation import checks_at_turn
from draftproof.workload.items import Check, Item

PeriodKey = tuple[str, int, str]  # load, block, arm
PairKey = tuple[str, int, int, str, int]  # load, block, repeat, item, turn of the conversation


class RunData(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run directory holds. `items` are the selected ones.

    `torn_lines` counts records lost to a killed process or a power cut.
    """

    plan: Plan
    manifest: Manifest
    records: tuple[RequestRecord, ...]
    blocks: tuple[BlockRecord, ...]
    items: tuple[Item, ...]
    telemetry: tuple[TelemetrySample, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    behaviours: tuple[BehaviourProbe, ...] = ()
    warmups: tuple[Warmup, ...] = ()
    notices: tuple[Notice, ...] = ()
    analyses: tuple[Analysis, ...] = ()
    torn_lines: int = 0


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's period in one block: whether it was finished, and how the client itself behaved in it.

    `lag_max_ns` is the worst lateness of the client's event loop. `lagged`: the client did something beyond
    its limits, so that the period's times are not the service's; `faults` say what. `late_by_itself`: it did
    so while the run's own processes filled the host. `left_out`: the host disturbed every attempt at it.
    """

    load: str
    block: int
    arm: str
    completed: bool
    lag_max_ns: int | None
    lagged: bool
    faults: tuple[ClientFault, ...] = ()
    late_by_itself: bool = False
    left_out: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether its times are the service's, and not those of a late client or a disturbed host."""
        return not (self.lagged or self.left_out)


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One measured request with its item, segment, metrics and judged checks.

    `timed` is False where the client itself was too late in that period or the host disturbed it, or where a
    run that records its periods has no record of this one: its outcome counts, its times do not.
    `in_order` is False where the record's times run backwards.
    """

    record: RequestRecord
    item: Item
    segment: str
    metrics: RequestMetrics
    checks: tuple[CheckResult, ...]
    timed: bool
    in_order: bool

    @property
    def is_ok(self) -> bool:
        """Whether the request was answered to the end, and with content."""
        return is_answered(self.record)

    @property
    def key(self) -> PairKey:
        """What the request shares with its partner in another arm."""
        return find_pair_key(self.record)

    @property
    def is_passed(self) -> bool | None:
        """Whether every check passed; a failed request passes none; None where one could not be judged."""
        if not self.wanted_checks:
            return None
        found = [check.passed for check in self.checks]
        if not self.is_ok or False in found:
            return False
        return None if None in found or not found else True

    @property
    def wanted_checks(self) -> tuple[Check, ...]:
        """The checks of the period that was asked."""
        return checks_at_turn(self.item, self.record.conversation_turn)


def find_pair_key(record: RequestRecord) -> PairKey:
    """Return what a request shares with its partner in another arm."""
    return (record.load, record.block, record.repeat, record.item_id, record.conversation_turn)


_Line = TypeVar("_Line", RequestRecord, BlockRecord)


def without_repeats(run: RunData) -> RunData:
    """Return a run in which every counted request, every other request and every period's line is once.

    Of counted requests with one id the one that ended first is kept, whatever the order on disk; equal ends
    are distinguished by content.
    """
    records, blocks = _keep_first(run.records), _keep_first(run.blocks)
    if len(records) == len(run.records) and len(blocks) == len(run.blocks):
        return run
    return msgspec.structs.replace(run, records=records, blocks=blocks)


def count_counted(records: Iterable[RequestRecord]) -> int:
    """Return how many records are of counted requests."""
    return sum(record.phase == "measure" for record in records)


def warn_about_lines(before: RunData, after: RunData) -> tuple[str, ...]:
    """Say how many lines beside those of counted requests, which have a count of their own, were left out."""
    uncounted = [len(run.records) - count_counted(run.records) + len(run.blocks) for run in (before, after)]
    lost = uncounted[0] - uncounted[1]
    return (
        (f"{lost} lines of periods or uncounted requests repeat another; each counts once.",) if lost else ()
    )


def identify(line: RequestRecord | BlockRecord) -> Hashable:
    """Return what no two lines of a run share.

    A request that was stopped is asked again under its id; its own record says when it was asked. A period
    that was broken off and gone on with has several lines, each with its own times.
    """
    if isinstance(line, BlockRecord):
        own = (line.attempt, line.boot, line.started_ns, line.ended_ns, line.completed)
        return (line.load, line.block, line.arm, *own)
    if line.phase == "measure":
        return line.request_id
    return (line.request_id, line.phase, line.scheduled_ns, line.end_ns)


def _keep_first(lines: tuple[_Line, ...]) -> tuple[_Line, ...]:
    names = [identify(line) for line in lines]
    if len(set(names)) == len(names):
        return lines
    same: defaultdict[Hashable, list[_Line]] = defaultdict(list)
    for name, line in zip(names, lines, strict=True):
        same[name].append(line)
    return tuple(found[0] if len(found) == 1 else min(found, key=_rank) for found in same.values())


def _rank(line: RequestRecord | BlockRecord) -> tuple[int, bytes]:
    ended_ns = line.end_ns if isinstance(line, RequestRecord) else line.ended_ns
    return ended_ns, msgspec.json.encode(line)


def sort_by_time(periods: Iterable[BlockRecord], *, anchor_offset_ns: int) -> list[tuple[int, BlockRecord]]:
    """Return (when it began in ns, period), by time; periods of one start of the host keep their own times.

    `anchor_offset_ns`: wall clock less monotonic clock as the run was made, for periods without an anchor.
    """
    by_boot: defaultdict[str | None, list[BlockRecord]] = defaultdict(list)
    for period in periods:
        by_boot[period.boot].append(period)
    offsets = {boot: _offset_ns(own, anchor_offset_ns) for boot, own in by_boot.items()}
    begun = [(_first_start(own).started_ns + offsets[boot], offsets[boot]) for boot, own in by_boot.items()]
    first = min(begun, default=(0, 0))[1]
    placed = [
        (period.started_ns + offsets[boot] - first, period) for boot, own in by_boot.items() for period in own
    ]
    return sorted(placed, key=lambda one: (one[0], one[1].ended_ns, one[1].order))


def _offset_ns(periods: list[BlockRecord], otherwise_ns: int) -> int:
    start = _first_start(periods)
    return otherwise_ns if start.started_wall_ns is None else start.started_wall_ns - start.started_ns


def _first_start(periods: list[BlockRecord]) -> BlockRecord:
    return min(periods, key=lambda period: period.started_ns)


PER_TOKEN = "tpot_ns"  # noqa: S105 - the name of a metric


class Spans:
    """The deciding times of one period's answers, and how late a client may be for them; of a run's plan."""

    def __init__(self, plan: Plan) -> None:
        self._from_schedule = plan.comparison.metric != PER_TOKEN
        self._share = LAG_PART * plan.thresholds.minimum_gain
        self._sum_ns = self._count = 0

    def add(self, record: RequestRecord) -> None:
        """Take in one answer, if it has a time."""
        span_ns = _measure_span(record, from_schedule=self._from_schedule)
        if span_ns is not None:
            self._sum_ns, self._count = self._sum_ns + span_ns, self._count + 1

    def bound(self, *, reads: bool) -> LagBound | None:
        """Return how late the client may be, None where no answer has a time or its lateness is in none.

        `reads`: its lateness in reading is in the times.
        """
        if not self._count or not (reads or self._from_schedule):
            return None
        return LagBound(
            span_ns=self._sum_ns / self._count, share=self._share, reads=reads, sends=self._from_schedule
        )


def bound_lags(run: RunData, records: Iterable[RequestRecord]) -> dict[PeriodKey, LagBound]:
    """Return the bound of every period in which the client's lateness is in the deciding time."""
    reads = {(one.load, one.block, one.arm): _reads_late(run, one) for one in run.blocks}
    spans: defaultdict[PeriodKey, Spans] = defaultdict(lambda: Spans(run.plan))
    for one in records:
        spans[one.load, one.block, one.arm].add(one)
    bounds = {key: own.bound(reads=reads.get(key, False)) for key, own in spans.items()}
    return {key: bound for key, bound in bounds.items() if bound is not None}


def _reads_late(run: RunData, block: BlockRecord) -> bool:
    """Return whether the client stamped arrivals itself; where no record says so, by system and address."""
    if block.unstamped is not None:
        return block.unstamped > 0
    urls = [arm.url for arm in run.manifest.arms if arm.arm == block.arm]
    is_linux = run.manifest.host.get("system") == "Linux"
    return not is_linux or any(url.startswith("https:") for url in urls)


def _measure_span(record: RequestRecord, *, from_schedule: bool) -> int | None:
    """Return the time of an answer that decides, ns; None of a request that has none."""
    if record.outcome != "ok" or not record.chunks:
        return None
    start_ns = record.scheduled_ns if from_schedule else record.chunks[0].arrival_ns
    end_ns = record.end_ns if from_schedule else record.chunks[-1].arrival_ns
    return end_ns - start_ns if end_ns > start_ns else None


ENDED_EARLY = "ended_early"
FORECAST = "; at this pace about"
_RESUMED = ("waited", "went_on")


def find_ending(notices: Collection[Notice]) -> Notice | None:
    """Return why a run ended before its end, None where it did not or went on later.

    Notices are in the order in which they were written: a clock may begin anew before a run goes on.
    """
    ending = None
    for one in notices:
        if one.severity == "cannot_end_well":
            ending = one
        elif one.code in _RESUMED:
            ending = None
    return ending


def note_going_on(at_ns: int) -> Notice:
    """Return the notice that a run which had ended before its end was continued."""
    return Notice(
        code="went_on",
        severity="note",
        text="The run was continued after it had ended before its end.",
        remedy="none is needed",
        at_ns=at_ns,
    )


def explain_ending(notices: Collection[Notice]) -> tuple[Reason, ...]:
    """Return the reason of a run that ended before its end, none for any other."""
    ending = find_ending(notices)
    if ending is None:
        return ()
    text = f"The run ended before its end, because it could not end well: {lower_first(read_notice(ending))}"
    text += f" What helps: {ending.remedy}."
    return (Reason(code=ENDED_EARLY, text=text, evidence=Reference("arm_cells")),)


def warn_about_notices(notices: Collection[Notice]) -> Iterator[str]:
    """Yield what was said while the run was measured, each once."""
    for text in dict.fromkeys(map(read_notice, notices)):
        yield f"While it was measured: {lower_first(text)}"


def read_notice(notice: Notice) -> str:
    """Return what a notice says, without the forecast of its time, which is over."""
    said, forecast, _ = notice.text.partition(FORECAST)
    return f"{said}." if forecast else said


def lower_first(text: str) -> str:
    """Return a sentence as it stands behind a colon."""
    return f"{text[:1].lower()}{text[1:]}"


Labels = Mapping[PeriodKey, str | None]


def label_processes(run: RunData) -> Labels:
    """Return what tells the process of each period from others, None where nothing does.

    A period that two processes answered, since a run was resumed in it, counts as the last one's.
    """
    begun = _read_begins(run.telemetry)
    periods = sorted(run.blocks, key=lambda one: (one.completed, one.ended_ns))
    return {
        (one.load, one.block, one.arm): _label(run, one, begun.get((one.load, one.block, one.arm), ()))
        for one in periods
    }


def list_processes(labels: Labels, load: str, arm: str) -> set[str | None]:
    """Return the labels of the processes that answered for an arm at a load."""
    return {label for (at, _, who), label in labels.items() if (at, who) == (load, arm)}


def _label(run: RunData, period: BlockRecord, begun: Sequence[float]) -> str | None:
    arm = _arm_of(run, period.arm)
    if arm is not None and arm.url is not None:
        return " ".join((arm.url.rstrip("/"), *map(str, begun)))
    number = period.process or max(_list_starts(run, period), default=None)
    return None if number is None else f"{period.arm} {number}"


def _arm_of(run: RunData, name: str) -> Arm | None:
    arms = run.plan.arms
    return arms.baseline if name == "baseline_null" else getattr(arms, name, None)


def _list_starts(run: RunData, period: BlockRecord) -> Iterator[int]:
    """Yield the starts of an arm that its warm-ups tell of, up to a period: what older runs noted."""
    for one in run.warmups:
        if one.arm == period.arm and one.started_ns <= period.started_ns:
            yield one.start


def _read_begins(telemetry: Sequence[TelemetrySample]) -> dict[PeriodKey, tuple[float, ...]]:
    """Return when the processes of each period's service began, replica by replica, where it says so."""
    found: defaultdict[PeriodKey, dict[tuple[int, str], float]] = defaultdict(dict)
    for one in telemetry:
        load, _, block = (one.period or "").rpartition("/")
        if one.source == "engine" and block.isdecimal():
            for series, value in one.values.items():
                if series.startswith(START_TIME) and parse_series(series)[0] == START_TIME:
                    found[load, int(block), one.arm][one.replica, series] = value
    return {key: tuple(value for _, value in sorted(own.items())) for key, own in found.items()}
