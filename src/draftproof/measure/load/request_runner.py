"""Sending one job and keeping its record, whichever loop decided when; and the watch over a whole period.

After a failure a slot rests for a moment: a service that refuses at once must not be flooded by the very
client that measures it.
"""

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from draftproof.core.clock import NS_PER_S, Clock, monotonic_ns
from draftproof.core.records import BlockRecord, RampUpEnd, RequestRecord
from draftproof.judge.metrics.service import percentile
from draftproof.measure.client.exchange import Ending, Exchange, ExchangeFold, Transport, WireRequest
from draftproof.measure.load.period import (
    Endpoint,
    Job,
    Period,
    Sink,
    make_record,
    make_unsent,
    view_exchange,
)
from draftproof.measure.load.schedule import Part, Schedule, SeedOf
from draftproof.measure.load.timer import sleep_until
from draftproof.plan.environment import mask_struct
from draftproof.workload.arrivals import think_time_ns
from draftproof.workload.blocks import request_seed
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item

LAG_INTERVAL_S = 0.02
# New objects before garbage is looked for among them, seven times as many as usual: most are gone by then, so
# that a search costs little more, a fraction of a millisecond, and comes that much more seldom.
_NEW_OBJECTS = 5_000
# What a period's record takes over from its runner under the same name.
_COUNTED = (
    "counted_from_ns", "end_lag_max_ns", "connections", "in_flight_max", "unreached", "broken", "unstamped",
    "held_back", "lead_end",
)  # fmt: skip


class HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen over one period, as in `BlockRecord`; None where nothing was sampled."""

    event_loop_lag_max_ns: int | None
    lag_p99_ns: int | None
    client_cpu_s: float
    gc_pause_max_ns: int
    gc_pause_total_ns: int


class _Sparing:
    """Garbage is searched for less while any period of this process is watched.

    What the program has loaded by then is not searched. Several periods may overlap: the last that ends puts
    back what the first found.
    """

    def __init__(self) -> None:
        self._periods, self._before = 0, gc.get_threshold()

    def begin(self) -> None:
        """A period begins."""
        if not self._periods:
            gc.freeze()
            self._before = gc.get_threshold()
            gc.set_threshold(_NEW_OBJECTS, *self._before[1:])
        self._periods += 1

    def end(self) -> None:
        """A period ends."""
        self._periods -= 1
        if not self._periods:
            gc.set_threshold(*self._before)
            gc.unfreeze()


_SPARING = _Sparing()


class ClientHealth:
    """Samples while entered.

    Lag is how much later than asked a sleep of `LAG_INTERVAL_S` ends: the longest time for which an arrival
    may have waited for its timestamp. Pauses of garbage collection are reported by the collector itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags = array("q")  # eight bytes each: a period may take hours
        self._pauses: list[int] = []
        self._collecting_since_ns: int | None = None
        self._cpu_at_start_s = 0.0

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator["ClientHealth"]:
        """Sample until the block ends."""
        self._cpu_at_start_s = time.process_time()
        _SPARING.begin()
        gc.callbacks.append(self._on_collection)
        sampler = asyncio.create_task(self._sample())
        try:
            yield self
        finally:
            sampler.cancel()
            gc.callbacks.remove(self._on_collection)  # before the wait, which a second cancellation may end
            _SPARING.end()
            await asyncio.wait({sampler})

    def read(self) -> HealthReading:
        """Return what was seen so far."""
        return HealthReading(
            event_loop_lag_max_ns=max(self._lags, default=None),
            lag_p99_ns=p99(self._lags),
            client_cpu_s=time.process_time() - self._cpu_at_start_s,
            gc_pause_max_ns=max(self._pauses, default=0),
            gc_pause_total_ns=sum(self._pauses),
        )

    async def _sample(self) -> None:
        interval_ns = round(LAG_INTERVAL_S * NS_PER_S)
        while True:
            due_ns = self._clock() + interval_ns
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lags.append(max(self._clock() - due_ns, 0))

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        del info
        now_ns = self._clock()
        if phase == "start":
            self._collecting_since_ns = now_ns
        elif self._collecting_since_ns is not None:
            self._pauses.append(now_ns - self._collecting_since_ns)


def p99(values: Iterable[int]) -> int | None:
    """Return the 99th percentile by nearest rank, None of nothing."""
    found = percentile(values, 0.99)
    return None if found is None else int(found)


Tasks = set["asyncio.Task[Any]"]


class MemorySink:
    """Keeps records in the order in which their requests ended, and hands each on to `sink`."""

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink = sink
        self.records: list[RequestRecord] = []

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self.records.append(record)
        if self._sink is not None:
            self._sink.append(record)


class MaskingSink:
    """Hands records on with every secret masked in every text of theirs.

    A service that refuses a key likes to repeat it in its answer, and an answer is kept as it came.
    """

    def __init__(self, keep: Callable[[RequestRecord], None], secrets: tuple[str, ...]) -> None:
        self._keep, self._secrets = keep, secrets

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self._keep(mask_struct(record, self._secrets) if self._secrets else record)


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a loop behaves, the same in every arm.

    `stagger_s`: delay of each slot's first request after that of the slot before it. `failure_pause_s`: rest
    of a slot after a request that was not ok. `max_tokens` caps the items' own limits. `ramp_up_s`: longest
    ramp-up of an open loop.
    """

    request_timeout_s: float = 120.0
    stagger_s: float = 0.01
    failure_pause_s: float = 0.1
    max_tokens: int | None = None
    ramp_up_s: float = 30.0


class RequestRunner:
    """Asks the jobs of one period, or of a part of one, and counts what the client did meanwhile.

    `period`: which items, at which concurrency. `items`: the workload's items by id. `sink`: takes each
    record as its request ends; what it raises ends the period. `settings`: patience and pace; None: the
    defaults. `clock`: source of every time in the records. `part`: which part of the period, and what whoever
    conducts it says of it; None: all of it, alone.
    """

    def __init__(
        self,
        period: Period,
        endpoint: Endpoint,
        items: Mapping[str, Item],
        *,
        transport: Transport,
        sink: Sink,
        settings: LoadSettings | None = None,
        done: Collection[str] = (),
        seed_of: SeedOf = request_seed,
        clock: Clock = monotonic_ns,
        answered: Mapping[str, AnswerView | None] | None = None,
        part: Part | None = None,
        phase: Literal["measure", "warmup"] = "measure",
    ) -> None:
        self.period, self.settings, self.clock = period, settings or LoadSettings(), clock
        self._endpoint, self._transport, self._sink = endpoint, transport, sink
        self.part = part or Part()
        self.schedule = Schedule(
            period, items, done=done, seed_of=seed_of, phase=phase, answered=answered, share=self.part.share
        )
        self.counted_over = asyncio.Event()
        self.room: asyncio.Semaphore | None = None  # of an open loop, for requests and not for thoughts
        self.counted_from_ns: int | None = None
        self.in_flight = self.in_flight_max = self.connections = self.held_back = self.ended = 0
        self.unreached = self.broken = self.unstamped = self.ended_ns = 0
        self.end_lag_max_ns: int | None = None
        self.lead_end: RampUpEnd | None = None
        self.send_lags_ns = array("q")  # eight bytes each: a period may have millions
        self._late = set["asyncio.Task[Any]"]()  # requests that met their limit
        self._note_over()
        if not self.schedule.missing_orders:
            self.part.period_over.set()

    def begin_counting(self) -> None:
        """The ramp is over: from now on requests count."""
        self.schedule.open_counting()
        now_ns, start_ns = self.clock(), self.part.start_ns
        # A worker knows its start before it comes.
        self.counted_from_ns = now_ns if start_ns is None else max(now_ns, start_ns)

    async def converse(self, opening: Job, scheduled_ns: int) -> int:
        """Ask a job and the later turns of its conversation, each after its time of thought.

        Returns when the last answer had ended, or the rest after a failure: from then on the next request is
        due. What the client takes to notice counts as its own lateness and is not lost.
        """
        free_ns = scheduled_ns
        following: Job | None = opening
        while (job := following) is not None:
            exchange = await self._perform(job, scheduled_ns)
            is_ok, free_ns = exchange.outcome == "ok", min(exchange.end_ns, self.clock())
            following = self.schedule.follow(job, view_exchange(exchange) if is_ok else None)
            self.schedule.finish(job)
            self._note_over()
            if not is_ok and not job.blocked:
                await asyncio.sleep(self.settings.failure_pause_s)
                free_ns = self.clock()
            if following is not None:
                scheduled_ns = await self.think(following, free_ns)
        return free_ns

    async def think(self, job: Job, free_ns: int) -> int:
        """Wait for the time of thought before a job, the same in every arm; return when it is over."""
        period = self.period
        thought_ns = think_time_ns(
            period.think_s, period.load, period.repeat, job.item.id, job.conversation_turn
        )
        due_ns = free_ns + thought_ns
        if thought_ns:
            await sleep_until(due_ns, self.clock)
        return due_ns

    async def _perform(self, job: Job, scheduled_ns: int) -> Exchange:
        if job.blocked:
            return self._keep(job, scheduled_ns, make_unsent(self.clock()), self.in_flight)
        if self.room is None:
            return await self._send(job, scheduled_ns)
        self.held_back += self.room.locked()
        async with self.room:
            return await self._send(job, scheduled_ns)

    async def _send(self, job: Job, scheduled_ns: int) -> Exchange:
        fold = ExchangeFold(self._endpoint.adapter.start_fold())
        self.in_flight += 1
        in_flight = self.in_flight
        self.in_flight_max = max(self.in_flight_max, in_flight)
        try:
            ending = await self._send_in_time(self._render(job), fold)
        except asyncio.CancelledError:
            ending = Ending(kind="cancelled", at_ns=self.clock(), detail="cancelled by the client")
            self._keep(self.schedule.interrupt(job), scheduled_ns, fold.close(ending), in_flight)
            raise
        finally:
            self.in_flight -= 1
        self.unreached += ending.kind == "unreachable"
        self.broken += ending.kind == "broken"
        self.unstamped += ending.kind == "complete" and not ending.is_stamped
        return self._keep(job, scheduled_ns, fold.close(ending), in_flight)

    async def _send_in_time(self, request: WireRequest, fold: ExchangeFold) -> Ending:
        """Send and end it at the limit, as `asyncio.timeout` does, which costs three times as much."""
        loop, limit_s = asyncio.get_running_loop(), self.settings.request_timeout_s
        task = cast("asyncio.Task[Any]", asyncio.current_task(loop))  # whoever awaits runs in one
        timer = loop.call_later(limit_s, self._cancel_late, task)
        try:
            return await self._transport.send(request, fold)
        except asyncio.CancelledError:
            if task not in self._late or task.uncancel() > 0:  # somebody else ends it too
                raise
            return Ending(kind="timeout", at_ns=self.clock(), detail=f"no end within {limit_s:g} s")
        finally:
            timer.cancel()
            self._late.discard(task)

    def _cancel_late(self, task: "asyncio.Task[Any]") -> None:
        self._late.add(task)
        task.cancel()

    def _note_over(self) -> None:
        """A part reports its end; the period goes on until that of all parts, for a whole one the same."""
        if self.schedule.is_over:
            self.counted_over.set()
            if self.part.share.is_whole:
                self.part.period_over.set()

    def _render(self, job: Job) -> WireRequest:
        asked, cap = job.asked, self.settings.max_tokens
        if job.token_share < 1:
            cap = max(1, round(job.token_share * min(asked.max_tokens, cap or asked.max_tokens)))
        payload = self._endpoint.build_payload(asked, seed=job.seed, max_tokens=cap)
        return WireRequest(
            url=self._endpoint.chat_url,
            body=msgspec.json.encode(payload),
            headers=self._endpoint.headers,
        )

    def _keep(self, job: Job, scheduled_ns: int, exchange: Exchange, in_flight: int) -> Exchange:
        self.connections += exchange.connect_ns is not None
        if exchange.sent_ns is not None:
            lag_ns = exchange.sent_ns - scheduled_ns - (exchange.connect_ns or 0)
            self.send_lags_ns.append(max(lag_ns, 0))
        self.end_lag_max_ns = max(self.clock() - exchange.end_ns, self.end_lag_max_ns or 0)
        self._sink.append(make_record(self.period, job, scheduled_ns, exchange, in_flight))
        return exchange


async def run_watched(
    runner: RequestRunner, start: Callable[[int], Tasks], stop: asyncio.Event
) -> BlockRecord:
    """Run the tasks that `start` makes until the period is over or `stop` is set, and return how it went.

    With `stop` requests in flight are cancelled and recorded, counted ones as `interrupted`.
    """
    part = runner.part
    started_ns = runner.clock() if part.start_ns is None else part.start_ns
    async with ClientHealth(runner.clock).watch() as health:
        readings = list[HealthReading]()
        if not part.period_over.is_set():
            # Read before what is in flight is cancelled: the work of that is late for nobody.
            await _run_tasks(
                start(started_ns), part.period_over, stop, lambda: readings.append(health.read())
            )
        reading = readings[0] if readings else health.read()
    return _describe(runner, started_ns, reading)


def _describe(runner: RequestRunner, started_ns: int, health: HealthReading) -> BlockRecord:
    period, is_over = runner.period, runner.schedule.is_over
    notes = [] if is_over else ["stopped before every counted request had ended"]
    if runner.held_back:
        notes.append(f"{runner.held_back} requests were held back: {period.max_in_flight} were in flight")
    return BlockRecord(
        block=period.block,
        load=period.load,
        arm=period.arm,
        order=period.order,
        attempt=period.attempt,
        started_ns=started_ns,
        ended_ns=runner.clock(),
        completed=is_over,
        note="; ".join(notes) or None,
        send_lag_p99_ns=p99(runner.send_lags_ns),
        send_lag_max_ns=max(runner.send_lags_ns, default=None),
        lead_asks_counted=runner.schedule.ramp_up_asks_counted,
        **msgspec.structs.asdict(health),
        **{name: getattr(runner, name) for name in _COUNTED},
    )


async def _run_tasks(
    tasks: Tasks, over: asyncio.Event, stop: asyncio.Event, note_over: Callable[[], object]
) -> None:
    """Run until a signal comes or a task fails, whose error is raised; of several errors any one."""
    signals = {asyncio.create_task(event.wait()) for event in (over, stop)}
    watched: set[asyncio.Task[Any]] = signals | tasks
    try:
        while signals <= watched:
            ended, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            _raise_first(tasks & ended)
        note_over()
    finally:
        for task in tasks | signals:
            task.cancel()
        await asyncio.wait(tasks | signals)
    _raise_first(tasks)


def _raise_first(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Raise what ended a task, unless that was its being cancelled."""
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error
