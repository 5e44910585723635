"""The machine behind a turn: slots that work off a schedule, and the watch over them."""

import asyncio

import msgspec

from draftproof.client.exchange import Exchange, ExchangeFold
from draftproof.client.wire import Ending, Transport, WireRequest
from draftproof.clock import Clock
from draftproof.load.client_health import ClientHealth
from draftproof.load.schedule import Schedule
from draftproof.load.turn import Endpoint, Job, Sink, Turn, make_record, make_unsent, view_exchange
from draftproof.records import BlockRecord


class LoadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the loop behaves, the same in every arm.

    `stagger_s`: delay of each slot's first request after that of the slot before it. `failure_pause_s`: rest
    of a slot after a request that was not ok. `max_tokens` caps the items' own limits.
    """

    request_timeout_s: float = 120.0
    stagger_s: float = 0.01
    failure_pause_s: float = 0.1
    max_tokens: int | None = None


class ClosedLoop:
    """Runs one turn; used once."""

    def __init__(
        self,
        *,
        turn: Turn,
        endpoint: Endpoint,
        schedule: Schedule,
        transport: Transport,
        sink: Sink,
        settings: LoadSettings,
        clock: Clock,
    ) -> None:
        self._turn, self._endpoint, self._schedule = turn, endpoint, schedule
        self._transport, self._sink = transport, sink
        self._settings, self._clock = settings, clock
        self._counted_over = asyncio.Event()
        if schedule.is_over:
            self._counted_over.set()

    async def run(self, stop: asyncio.Event) -> BlockRecord:
        """Run until every counted request has ended or `stop` is set."""
        started_ns = self._clock()
        async with ClientHealth(self._clock).watch() as health:
            await self._run_slots(stop, started_ns)
        return BlockRecord(
            block=self._turn.block,
            load=self._turn.load,
            arm=self._turn.arm,
            order=self._turn.order,
            started_ns=started_ns,
            ended_ns=self._clock(),
            completed=self._schedule.is_over,
            event_loop_lag_max_ns=health.lag_max_ns,
            client_cpu_s=health.cpu_s,
            note=None if self._schedule.is_over else "stopped before every counted request had ended",
        )

    async def _run_slots(self, stop: asyncio.Event, started_ns: int) -> None:
        slots = {
            asyncio.create_task(self._work(started_ns + round(slot * self._settings.stagger_s * 1e9)))
            for slot in range(self._turn.concurrency)
        }
        signals = {asyncio.create_task(_wait_for(event)) for event in (self._counted_over, stop)}
        try:
            await _wait_for_any(signals, slots)
        finally:
            await _cancel(slots | signals)
        _raise_first(slots)

    async def _work(self, first_ns: int) -> None:
        """Work off one slot: its first request is due at `first_ns`, each later one when the slot is free."""
        await asyncio.sleep(max(0.0, (first_ns - self._clock()) / 1e9))
        scheduled_ns = min(first_ns, self._clock())  # a loop's timer may end up to a millisecond early
        while (job := self._schedule.next_job()) is not None:
            scheduled_ns = await self._converse(job, scheduled_ns)

    async def _converse(self, opening: Job, scheduled_ns: int) -> int:
        """Ask a job and the later turns of its conversation; return when the slot is free again."""
        following: Job | None = opening
        while (job := following) is not None:
            exchange = await self._perform(job, scheduled_ns)
            is_ok = exchange.outcome == "ok"
            following = self._schedule.follow(job, view_exchange(exchange) if is_ok else None)
            self._finish(job)
            if not is_ok and not job.blocked:
                await asyncio.sleep(self._settings.failure_pause_s)
            scheduled_ns = self._clock()
        return scheduled_ns

    async def _perform(self, job: Job, scheduled_ns: int) -> Exchange:
        if job.blocked:
            return self._keep(job, scheduled_ns, make_unsent(self._clock()))
        fold = ExchangeFold(self._endpoint.adapter.start_fold())
        limit_s = self._settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                ending = await self._transport.send(self._render(job), fold)
        except TimeoutError:
            ending = Ending(kind="timeout", at_ns=self._clock(), detail=f"no end within {limit_s:g} s")
        except asyncio.CancelledError:
            ending = Ending(kind="cancelled", at_ns=self._clock(), detail="cancelled by the client")
            self._keep(self._schedule.interrupt(job), scheduled_ns, fold.close(ending))
            raise
        return self._keep(job, scheduled_ns, fold.close(ending))

    def _finish(self, job: Job) -> None:
        self._schedule.finish(job)
        if self._schedule.is_over:
            self._counted_over.set()

    def _render(self, job: Job) -> WireRequest:
        payload = self._endpoint.build_payload(job.asked, seed=job.seed, max_tokens=self._settings.max_tokens)
        return WireRequest(
            url=self._endpoint.chat_url,
            body=msgspec.json.encode(payload),
            headers=self._endpoint.headers,
        )

    def _keep(self, job: Job, scheduled_ns: int, exchange: Exchange) -> Exchange:
        self._sink.append(make_record(self._turn, job, scheduled_ns, exchange))
        return exchange


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def _wait_for_any(signals: set["asyncio.Task[None]"], slots: set["asyncio.Task[None]"]) -> None:
    """Return when a signal comes; raise as soon as a slot fails."""
    watched = signals | slots
    while signals <= watched:
        ended, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        _raise_first(slots & ended)


async def _cancel(tasks: set["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _raise_first(slots: set["asyncio.Task[None]"]) -> None:
    """Raise what ended a slot, unless that was its being cancelled; of several errors any one."""
    errors = [slot.exception() for slot in slots if slot.done() and not slot.cancelled()]
    for error in errors:
        if error is not None:
            raise error
