"""What a run has shown so far, for whoever watches it, and how long the rest may take.

Updated by the loop that measures, so an update costs a few microseconds for each request and none for each
chunk; read by a display in another thread through `view`, a copy. Nothing here enters a result.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Literal

import msgspec

from draftproof.core.clock import NS_PER_S, Clock, monotonic_ns
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.decide.faults import FAULT_WORDS
from draftproof.judge.metrics.request import RequestMetrics, compute_clocks, name_outcome
from draftproof.judge.metrics.service import Objectives, is_on_time
from draftproof.judge.observe.attempts import PeriodCount
from draftproof.judge.observe.client_limits import find_client_faults
from draftproof.judge.observe.observed import Spans
from draftproof.measure.load.period import Period, Sink
from draftproof.workload.items import Item

Place = tuple[str, str]  # load, arm
ArmState = Literal["waiting", "starting", "warming up", "measuring", "ended"]
PeriodKey = tuple[int, str, int]  # block, arm, attempt
_STEPS = 100  # buckets of a median for each factor of e: it is right within half a per cent


class LevelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a level says of its pace: requests in flight, or seconds between requests that are due."""

    concurrency: int | None
    due_s_per_request: float | None = None


class Pace:
    """Adds up periods that have ended and prices what is left. Pure.

    A level that has not been run yet is priced by its own due times (open loop), or by the requests per
    second of another closed loop, in proportion to the requests in flight. Starts, warm-ups and probes are
    left out.
    """

    def __init__(self, levels: Mapping[str, LevelFacts]) -> None:
        self._levels = levels
        self._requests: defaultdict[Place, int] = defaultdict(int)
        self._seconds: defaultdict[Place, float] = defaultdict(float)

    def add(self, load: str, arm: str, requests: int, seconds: float) -> None:
        """Count a period that has ended."""
        self._requests[load, arm] += requests
        self._seconds[load, arm] += seconds

    def estimate_s(self, left: Mapping[Place, int]) -> float | None:
        """Return the seconds that the requests left at each level and arm may take, None where unknown."""
        total_s = 0.0
        for (load, arm), requests in left.items():
            pace_s = self._seconds_per_request(load, arm) if requests > 0 else 0.0
            if pace_s is None:
                return None
            total_s += requests * pace_s
        return total_s

    def _seconds_per_request(self, load: str, arm: str) -> float | None:
        seen = self._seen({(load, arm)}) or self._seen_at(load)
        return seen or self._levels[load].due_s_per_request or self._from_other_levels(load)

    def _from_other_levels(self, load: str) -> float | None:
        """Return what another closed loop took, as if each answer took as long at this one."""
        wanted = self._levels[load].concurrency
        for other in sorted({place[0] for place in tuple(self._requests)}) if wanted else ():
            concurrency, seen = self._levels[other].concurrency, self._seen_at(other)
            if wanted and concurrency is not None and seen is not None:
                return seen * concurrency / wanted
        return None

    def _seen_at(self, load: str) -> float | None:
        return self._seen({place for place in tuple(self._requests) if place[0] == load})

    def _seen(self, places: set[Place]) -> float | None:
        requests = sum(self._requests.get(place, 0) for place in places)
        return sum(self._seconds.get(place, 0.0) for place in places) / requests if requests else None


def format_duration(seconds: float) -> str:
    """Write a duration roughly: seconds below a minute and a half, then minutes, then hours."""
    if seconds < 90:
        return f"{max(round(seconds), 0)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


class Median:
    """A median of positive numbers in constant space, from counts in buckets of one per cent."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, value: float | None) -> None:
        """Count one value; what is not known or not positive is left out."""
        if value is not None and value > 0:
            bucket = round(math.log(value) * _STEPS)
            self._counts[bucket] = self._counts.get(bucket, 0) + 1

    def read(self) -> float | None:
        """Return the lower median, None of nothing."""
        counts = dict(self._counts)
        half = (sum(counts.values()) + 1) // 2
        seen = 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= half:
                return math.exp(bucket / _STEPS)
        return None


class Tally:
    """Counts over some counted requests."""

    def __init__(self) -> None:
        self.done = self.on_time = self.judged = 0
        self.failures: dict[str, int] = {}
        self.tpot_ns, self.ttft_ns = Median(), Median()

    def add(self, record: RequestRecord, clocks: RequestMetrics, objectives: Objectives | None) -> None:
        """Count one request with its metrics."""
        self.done += 1
        outcome = name_outcome(record)
        if outcome == "ok":
            self.tpot_ns.add(clocks.tpot_ns)
            self.ttft_ns.add(clocks.ttft_from_schedule_ns)
        else:
            self.failures[outcome] = self.failures.get(outcome, 0) + 1
        met = None if objectives is None else outcome == "ok" and is_on_time(record, clocks, objectives)
        if met is not None:
            self.judged += 1
            self.on_time += met

    @property
    def on_time_share(self) -> float | None:
        """On-time share of the judged requests; None without objectives or where none was judged."""
        return self.on_time / self.judged if self.judged else None


class ArmView(msgspec.Struct, frozen=True, kw_only=True):
    """One arm as it stands; times in ns, None where nothing is known. `failures` by outcome."""

    arm: str
    state: ArmState
    done: int
    planned: int
    on_time_share: float | None
    tpot_ns: float | None
    ttft_ns: float | None
    failures: dict[str, int]


class PeriodView(msgspec.Struct, frozen=True, kw_only=True):
    """A period that has ended: what it showed, and how the client itself did.

    `number` of `periods` of the plan, of which `twice` are measured a second time. `client_faults` are words
    for what the client did beyond its limits: the period's times then do not count.
    """

    number: int
    periods: int
    load: str
    arm: str
    completed: bool
    requests: int | None
    failures: dict[str, int] | None
    on_time_share: float | None
    tpot_ns: float | None
    lag_max_ns: int | None
    client_cpu_share: float | None
    client_faults: tuple[str, ...]
    left_s: float | None
    twice: int = 0


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run as it stands; `periods` and `twice` as in `PeriodView`.

    `period` counts from 1, 0 before the first; `left_s` is None until known.
    """

    arms: tuple[ArmView, ...]
    period: int
    periods: int
    load: str | None
    elapsed_s: float
    left_s: float | None
    last: PeriodView | None
    is_stopping: bool
    twice: int = 0


class ProgressModel:
    """Keeps the counts of a run.

    `periods`: every period of the run, in order. `items`: the workload's items by id; a conversation counts
    as many requests as it has turns. `finished`: periods that were complete before. `recorded`: counted
    requests of a period that an earlier part of the run has recorded. `objectives`: deadlines, None where the
    plan states none. `client_lag_ms`: how late the client may be before a period's times do not count.
    `make_spans`: makes what holds a period's lateness against its times; None: that is not judged.
    `is_stopping`: tells whether the user wants to leave. `clock`: source of the elapsed time.
    """

    def __init__(
        self,
        periods: Collection[Period],
        items: Mapping[str, Item],
        *,
        finished: Collection[PeriodKey] = (),
        recorded: Mapping[PeriodKey, int] | None = None,
        objectives: Objectives | None = None,
        client_lag_ms: float = math.inf,
        make_spans: Callable[[], Spans] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._items, self._objectives, self._lag_ms = items, objectives, client_lag_ms
        self._make_spans, self._spans = make_spans, make_spans() if make_spans else None
        self._is_stopping, self._clock, self._began_ns = is_stopping, clock, clock()
        self._periods = self._twice = self._ended = 0
        self._left: Counter[Place] = Counter()
        self._planned: Counter[str] = Counter()
        self._levels: dict[str, LevelFacts] = {}
        self._tallies: dict[str, Tally] = {}
        self._uncounted: Counter[str] = Counter()
        self._states: dict[str, ArmState] = {}
        self._pace = Pace(self._levels)
        self._period: Period | None = None
        self._own = Tally()
        self._last: PeriodView | None = None
        self.version = 0
        self._recorded = dict(recorded or {})
        self.add_periods(periods, finished)

    def add_periods(self, periods: Iterable[Period], finished: Collection[PeriodKey] = ()) -> None:
        """Plan further periods."""
        for period in periods:
            is_over = (period.block, period.arm, period.attempt) in finished
            left = 0 if is_over else self._count_open(period)
            self._periods += not period.attempt
            self._twice += period.attempt > 0
            self._ended += is_over and not period.attempt
            self._tallies.setdefault(period.arm, Tally())
            self._states.setdefault(period.arm, "waiting")
            self._levels.setdefault(period.load, _facts(period))
            self._planned[period.arm] += self._count(period)
            self._uncounted[period.arm] += self._count(period) - left
            self._left[period.load, period.arm] += left
        self.version += 1

    def drop_periods(self, periods: Iterable[Period]) -> None:
        """Plan no more the periods of a load that an analysis ended; none of them has begun."""
        for period in periods:
            count = self._count(period)
            self._periods -= 1
            self._planned[period.arm] -= count
            self._left[period.load, period.arm] -= self._count_open(period)
        self.version += 1

    def set_state(self, arm: str, state: ArmState) -> None:
        """Say what an arm does now."""
        self._states[arm] = state
        self.version += 1

    def begin_period(self, period: Period) -> None:
        """A period begins: its counted requests come now."""
        self._period, self._own = period, Tally()
        self._spans = self._make_spans() if self._make_spans else None
        self.set_state(period.arm, "measuring")

    def see(self, record: RequestRecord) -> None:
        """Count a request that has ended, if it is a counted one."""
        if record.phase != "measure" or self._period is None:
            return
        clocks = compute_clocks(record)
        for tally in (self._own, self._tallies[record.arm]):
            tally.add(record, clocks, self._objectives)
        if self._spans is not None:
            self._spans.add(record)
        self._left[record.load, record.arm] -= 1
        self.version += 1

    def end_period(self, block: BlockRecord) -> PeriodView:
        """Close a period and return what it showed."""
        period, own = self._period, self._own
        assert period is not None  # noqa: S101 - a period ends after it has begun
        window_s = (block.ended_ns - block.started_ns) / NS_PER_S
        # Requests of worker processes pass this board by: of them only the end of their period is known.
        unseen = max(self._count_open(period) - own.done, 0) if block.completed else 0
        is_unseen = block.workers > 1 or block.conductor_cpu_s is not None
        self._period = None
        self._ended += block.completed and not period.attempt
        self._uncounted[period.arm] += unseen
        self._left[period.load, period.arm] -= unseen
        self._pace.add(period.load, period.arm, own.done + unseen, window_s)
        left = sum(requests for (_, arm), requests in self._left.items() if arm == period.arm)
        self.set_state(period.arm, "ended" if left <= 0 else "waiting")
        cpu_s = block.client_cpu_s
        self._last = PeriodView(
            number=self._ended + (not block.completed and not period.attempt),
            periods=self._periods,
            load=period.load,
            arm=period.arm,
            completed=block.completed,
            requests=None if is_unseen and not block.completed else own.done + unseen,
            failures=None if is_unseen else dict(own.failures),
            on_time_share=own.on_time_share,
            tpot_ns=own.tpot_ns.read(),
            lag_max_ns=block.event_loop_lag_max_ns,
            client_cpu_share=None if cpu_s is None or window_s <= 0 else cpu_s / window_s / block.workers,
            client_faults=self._find_faults(period, block),
            left_s=self.estimate_left_s(),
            twice=self._twice,
        )
        return self._last

    def count_periods(self) -> PeriodCount:
        """Return how many of the plan's periods have ended."""
        return PeriodCount(ended=self._ended, planned=self._periods, twice=self._twice)

    def estimate_left_s(self) -> float | None:
        """Return the forecast of the seconds left, None until known."""
        return self._pace.estimate_s(dict(self._left))

    def view(self) -> ProgressView:
        """Return everything as it stands."""
        period = self._period
        return ProgressView(
            arms=tuple(self._view_arm(arm) for arm in tuple(self._planned)),
            period=self._ended + (period is not None and not period.attempt),
            periods=self._periods,
            load=period.load if period else None,
            elapsed_s=(self._clock() - self._began_ns) / NS_PER_S,
            left_s=self.estimate_left_s(),
            last=self._last,
            is_stopping=self._is_stopping(),
            twice=self._twice,
        )

    def _view_arm(self, arm: str) -> ArmView:
        tally = self._tallies[arm]
        return ArmView(
            arm=arm,
            state=self._states[arm],
            done=self._uncounted[arm] + tally.done,
            planned=self._planned[arm],
            on_time_share=tally.on_time_share,
            tpot_ns=tally.tpot_ns.read(),
            ttft_ns=tally.ttft_ns.read(),
            failures=dict(tally.failures),
        )

    def _find_faults(self, period: Period, block: BlockRecord) -> tuple[str, ...]:
        """Return what the record of the period alone shows; the rate is judged from its requests, later."""
        bound = self._spans.bound(reads=bool(block.unstamped)) if self._spans else None
        faults = find_client_faults(
            [block], (), self._lag_ms, is_open=period.concurrency is None, bound=bound
        )
        return tuple(FAULT_WORDS.get(one.kind, one.kind) for one in faults)

    def _count_open(self, period: Period) -> int:
        """Return the counted requests of a period that no earlier part of the run has recorded."""
        return max(self._count(period) - self._recorded.get((period.block, period.arm, period.attempt), 0), 0)

    def _count(self, period: Period) -> int:
        return sum(self._items[item_id].turns for item_id in period.item_ids)


class WatchedSink:
    """Hands records on and shows them to a board."""

    def __init__(self, sink: Sink, board: ProgressModel) -> None:
        self._sink, self._board = sink, board

    def append(self, record: RequestRecord) -> None:
        """Keep one record; only what is kept is shown."""
        self._sink.append(record)
        self._board.see(record)


def _facts(period: Period) -> LevelFacts:
    span_s = (period.due_ns[-1] - period.due_ns[0]) / NS_PER_S if len(period.due_ns) > 1 else None
    return LevelFacts(
        concurrency=period.concurrency,
        due_s_per_request=span_s / len(period.due_ns) if span_s else None,
    )
