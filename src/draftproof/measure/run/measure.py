"""The measuring loop: block after block, arm after arm, every record into the journal as it ends.

The probes of behaviour within a run: when they are asked, of which arms, and where their answers go.

They are asked when an arm has no measured period left, so that nothing they leave behind meets a measurement.
Whatever goes wrong in them is a finding about the arm and never ends the run.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby

import aiohttp
import msgspec

from draftproof.core.clock import NS_PER_S, ClockReading, compare_clocks, monotonic_ns, read_clocks
from draftproof.core.errors import EngineError, IncompatibleError
from draftproof.core.records import Analysis, BehaviourProbe, BlockRecord, Warmup
from draftproof.judge.decide.analyses import analyse
from draftproof.judge.inform.unmeasured import note_change
from draftproof.judge.observe.attempts import PeriodCount
from draftproof.judge.observe.observed import RunData, Spans
from draftproof.judge.observe.run_data import find_ended
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Period, periods_of
from draftproof.measure.load.request_runner import LoadSettings, MaskingSink
from draftproof.measure.load.warmup import Route, Warmer
from draftproof.measure.load.workers.pool import WorkerPool
from draftproof.measure.run.analysis_schedule import make_schedule
from draftproof.measure.run.host_watch import HostWatch
from draftproof.measure.run.period_runner import PeriodRunner
from draftproof.measure.run.progress import Interrupted, Progress, unless_stopped
from draftproof.measure.run.progress_model import ProgressModel, WatchedSink
from draftproof.measure.run.second_attempts import Restarts, list_missing_periods, list_repeats
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.plan.environment import mask_struct
from draftproof.plan.schema import Plan
from draftproof.services.arms.behaviour_asking import Line
from draftproof.services.arms.behaviour_judging import fetch_whole, read_load
from draftproof.services.arms.behaviour_probes import LAST_PROBE, Bench, run_probes
from draftproof.services.telemetry.host import HostReader
from draftproof.services.telemetry.sampler import Sampler, Target
from draftproof.store import RunDirectory
from draftproof.workload.blocks import Block, plan_blocks
from draftproof.workload.conversation import view_answer
from draftproof.workload.items import Item

# The second baseline is the first one's twin: what its behaviour would show is known.
UNPROBED_ARMS = frozenset({"baseline_null"})
LONGEST_PROBE_S = 30.0


def list_unprobed(plan: Plan, arms: Collection[str], known: Collection[BehaviourProbe]) -> tuple[str, ...]:
    """Return the arms whose probes are wanted and not all there, in the order of `arms`."""
    if not plan.limits.behaviour_probes:
        return ()
    complete = {one.arm for one in known if one.probe == LAST_PROBE}
    return tuple(arm for arm in arms if arm not in UNPROBED_ARMS | complete)


async def probe_arm(run: RunDirectory, service_group: ServiceGroup, arm: str, stop: asyncio.Event) -> None:
    """Ask an arm every probe that the run has not got yet, and keep what each shows.

    Raises StoreError: the journal cannot be written; Interrupted: `stop` was set meanwhile; what was asked is
    kept.
    """
    await unless_stopped(_probe_arm(run, service_group, arm), stop)


async def _probe_arm(run: RunDirectory, service_group: ServiceGroup, arm: str) -> None:
    known = {one.probe for one in run.load_behaviours() if one.arm == arm}
    contact, plan, transport = service_group.contacts[arm], service_group.plan, HttpTransport()
    timeout_s = min(plan.limits.request_s, LONGEST_PROBE_S)
    line = Line(endpoint=contact.endpoint, transport=transport, timeout_s=timeout_s)
    # A service may close a connection between two probes: the next one would fail unasked.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        bench = Bench(
            line=line,
            read_load=lambda: read_load(session, contact.service),
            fetch_whole=lambda item: fetch_whole(session, line, item),
            concurrency=max(level.concurrency or 1 for level in plan.load),
        )
        try:
            async for probe in run_probes(arm, bench, skip=known):
                run.append_beside(mask_struct(probe, service_group.secrets))
        finally:
            await transport.close()


def plan_periods(
    plan: Plan, items: tuple[Item, ...], arms: Collection[str], analyses: Collection[Analysis] = ()
) -> tuple[Period, ...]:
    """Return every period of a run in order: a pure function of plan, items, seed and what analyses ended."""
    planned = plan_blocks(
        items, plan.load, tuple(arms), plan.seed, plan.workload.segment_by, last=plan.last_arms
    )
    blocks, ended, had = list[Block](), find_ended(analyses), Counter[str]()
    for block in planned:
        had[block.load] += 1
        if had[block.load] <= ended.get(block.load, len(planned)):
            blocks.append(block)
    levels = {level.name: level for level in plan.load}
    return tuple(
        period
        for block in blocks
        for period in periods_of(
            block,
            think_s=levels[block.load].think_s,
            max_in_flight=levels[block.load].max_in_flight,
        )
    )


async def measure(
    run: RunDirectory,
    service_group: ServiceGroup,
    items: tuple[Item, ...],
    progress: Progress,
    watch: HostWatch,
) -> PeriodCount:
    """Run what is missing of a run; return how many of the plan's periods are complete.

    Ends early where the watch halts the run. Raises EngineError: an arm's service ended; its unanswered
    requests are recorded as failures; IncompatibleError: it came back as another one; StoreError: the journal
    cannot be written; Interrupted: stopped while an arm started or was probed.
    """
    contents = run.load()
    periods = plan_periods(service_group.plan, items, service_group.arms, contents.analyses)
    loop = _Loop(run, service_group, periods, items, contents=contents, progress=progress, watch=watch)
    stop = watch.halt
    last_of = {period.arm: period for period in loop.missing}
    progress.watch(loop.board)
    try:
        for period in loop.list_left(periods):
            if stop.is_set():
                break
            progress.advance(*loop.board.count_periods()[:2], f"{period.load}: {period.arm}")
            await loop.take(period)
            if service_group.takes_turns and period is last_of[period.arm]:
                await _probe(run, service_group, (period.arm,), progress, stop)
                progress.phase("Measuring")
                progress.watch(loop.board)
        if not loop.missing:
            loop.check_repeated()
            await _probe(run, service_group, service_group.arms, progress, stop)
    except Interrupted as stopped:
        raise Interrupted(run.path, *loop.board.count_periods()) from stopped
    finally:
        await loop.close()
    count = loop.board.count_periods()
    progress.advance(count.ended, count.planned, "measured" if count.ended == count.planned else "stopped")
    return count


async def run_periods(
    run: RunDirectory,
    service_group: ServiceGroup,
    periods: Collection[Period],
    *,
    items: Collection[Item],
    contents: RunData,
    progress: Progress,
    watch: HostWatch,
    pool: WorkerPool | None = None,
) -> None:
    """Run what is missing of some periods that are not of the plan's levels.

    `periods`: the periods, in order. `items`: every item that they ask. `contents`: what the run holds of
    periods of this kind. `progress`: gets how the periods go. `watch`: sees what the host does, and halts the
    run. `pool`: load workers that go on after these periods; None: those of the plan, for these periods
    alone. Raises DraftproofError: as `measure`; Interrupted: stopped while an arm started.
    """
    loop = _Loop(
        run, service_group, periods, items, contents=contents, progress=progress, watch=watch, pool=pool
    )
    progress.watch(loop.board)
    try:
        for period in loop.missing:
            if not watch.halt.is_set():
                await loop.take(period)
    finally:
        await loop.close()


def _make_progress_model(
    periods: Collection[Period],
    items: Mapping[str, Item],
    contents: RunData,
    finished: Collection[Period],
    stop: asyncio.Event,
) -> ProgressModel:
    plan = contents.plan
    has_objectives = any(limit is not None for limit in plan.objectives.model_dump().values())
    return ProgressModel(
        periods,
        items,
        finished={(one.block, one.arm, one.attempt) for one in finished},
        recorded=Counter(
            (one.block, one.arm, one.attempt) for one in contents.records if one.phase == "measure"
        ),
        objectives=plan.objectives if has_objectives else None,
        client_lag_ms=plan.limits.client_lag_ms,
        make_spans=partial(Spans, plan),
        is_stopping=stop.is_set,
    )


async def _probe(
    run: RunDirectory,
    service_group: ServiceGroup,
    arms: Collection[str],
    progress: Progress,
    stop: asyncio.Event,
) -> None:
    """Ask the arms what the run does not know yet of their behaviour."""
    arms = list_unprobed(service_group.plan, arms, run.load_behaviours())
    if arms:
        progress.phase("Asking the arms about stop strings, tools, limits and cancellation")
    for number, arm in enumerate(arms):
        progress.advance(number, len(arms), arm)
        await service_group.ensure(arm)
        if (change := await service_group.find_change(arm)) is not None:
            raise change
        await probe_arm(run, service_group, arm, stop)
    if arms:
        progress.phase("Measuring" if service_group.takes_turns else "Probed")


class _Loop:
    """Carries what all periods share: transport, journal, items, who is warm, and who watches.

    `missing` are the periods, of those given, that the run does not have yet.
    """

    def __init__(
        self,
        run: RunDirectory,
        service_group: ServiceGroup,
        periods: Collection[Period],
        items: Collection[Item],
        *,
        contents: RunData,
        progress: Progress,
        watch: HostWatch,
        pool: WorkerPool | None = None,
    ) -> None:
        stop = watch.halt
        by_id = {item.id: item for item in items}
        answered = {
            one.request_id: view_answer(one) if one.outcome == "ok" else None for one in contents.records
        }
        self.missing = list_missing_periods(periods, by_id, contents.blocks, answered)
        lacking = {period.key for period in self.missing}
        finished = [period for period in periods if period.key not in lacking]
        self.board = board = _make_progress_model(periods, by_id, contents, finished, stop)
        watch.follow(board.estimate_left_s)
        self._run, self._service_group, self._stop, self._progress, self._watch = (
            run,
            service_group,
            stop,
            progress,
            watch,
        )
        self._transport = HttpTransport()
        self._session = aiohttp.ClientSession()
        self._host = HostReader()
        self._sink = WatchedSink(MaskingSink(run.journal.append, service_group.secrets), board)
        plan = service_group.plan
        self._sampler = Sampler(
            self._session,
            lambda sample: run.append_telemetry(sample.arm, sample),
            interval_s=plan.limits.sample_s,
            host=self._host,
        )
        settings = LoadSettings(
            request_timeout_s=plan.limits.request_s,
            max_tokens=plan.workload.max_tokens,
            ramp_up_s=plan.limits.ramp_up_max_s,
        )
        route = Route(items=by_id, transport=self._transport, sink=self._sink, settings=settings, stop=stop)
        self._runner = PeriodRunner(run, service_group, route, answered, pool=pool)
        self._warmer = Warmer(
            plan.limits, route, self._keep_warmup, before=contents.warmups, known_ids=answered
        )
        self._restarts = Restarts(plan.limits.restarts, tuple(periods), service_group.start_s)
        self._repeats = list_repeats(service_group.plan, periods, contents.blocks)
        self._schedule = make_schedule(plan, periods, contents)

    def list_left(self, periods: Iterable[Period]) -> Iterator[Period]:
        """Yield what is missing of some periods, and after each block what of it is measured once more."""
        missing = {period.key for period in self.missing}
        for _, block in groupby(periods, key=lambda period: period.block):
            own = tuple(block)
            if self._schedule.has_ended(own[0].load):
                continue
            yield from (period for period in own if period.key in missing)
            again = self._repeats.list_due(own)
            self.board.add_periods(again)
            yield from again
            self._analyse(own[0])

    def _analyse(self, period: Period) -> None:
        """Analyse a load where that is due after the block of a period; what it ends is not missing."""
        load = period.load
        if self._stop.is_set() or not self._schedule.is_due(load, period.block, monotonic_ns()):
            return
        found = analyse(
            self._run.load(), load, at_ns=monotonic_ns(), is_over=self._schedule.is_over(monotonic_ns())
        )
        self._run.append_beside(found)
        self._schedule.note(found)
        self._progress.analysed(found)
        if found.ended:
            left = [one for one in self.missing if one.load == load]
            self.missing = [one for one in self.missing if one.load != load]
            self.board.drop_periods(left)

    def check_repeated(self) -> None:
        """Do nothing if no period is left that is to be taken once more.

        Raises Interrupted: one is, so that the run was stopped.
        """
        if any(self._repeats.list_all_due()):
            raise Interrupted

    async def take(self, period: Period) -> bool:
        """Run one period and return whether it was completed."""
        await self._start(period)
        await self._warm_up(period)
        self.board.begin_period(period)
        async with self._sampler.period(self._target(period), f"{period.load}/{period.block}", self._stop):
            before = read_clocks()
            async with self._watch.span() as span:
                outcome = await self._runner.run(period, self._stop)
            block = note_clocks(outcome.block, before, read_clocks())
        block = msgspec.structs.replace(block, process=self._service_group.process(period.arm), host=span.use)
        self._restarts.count_period((block.ended_ns - block.started_ns) / NS_PER_S)
        change = await self._find_change(block)
        if change is not None:
            block = msgspec.structs.replace(block, completed=False, note=note_change(change.message))
        self._run.journal.append(block)
        self._repeats.note(block)
        if block.completed:
            self.missing = [one for one in self.missing if one.key != period.key or period.attempt]
        view = self.board.end_period(block)
        self._progress.period_ended(view)
        await self._watch.period_ended(block, view)
        self._runner.raise_error(outcome)
        if change is not None:
            raise change
        if not self._stop.is_set():
            await self._check_there(period.arm, block)
        return block.completed

    async def close(self) -> None:
        """End load workers of its own and let go of every connection."""
        await self._runner.close()
        await self._transport.close()
        await self._session.close()
        self._host.close()

    async def _start(self, period: Period) -> None:
        """Let the period's arm run, and all arms as new processes where they are due."""
        self.board.set_state(period.arm, "starting")
        if await self._service_group.ensure(period.arm):
            self._warmer.forget(period.arm)
        if not self._restarts.is_due(period) or self._stop.is_set():
            return
        began_ns = monotonic_ns()
        for arm in await self._restart_arms():
            self._warmer.forget(arm)
        self._restarts.count_start(period.load, (monotonic_ns() - began_ns) / NS_PER_S)

    async def _restart_arms(self) -> tuple[str, ...]:
        """Start anew what this run has started.

        Raises EngineError: an arm does not start; IncompatibleError: an arm is not what it was.
        """
        try:
            return await self._service_group.restart()
        except (EngineError, IncompatibleError) as error:
            error.fix = (
                f"{(error.fix or 'see its log').rstrip('.')}; continue with: draftproof run --resume "
                f"{self._run.path}. limits.restarts = 0 in a new run keeps the first processes."
            )
            raise

    async def _warm_up(self, period: Period) -> None:
        """Warm an arm up at a level once per start; warm-up requests are recorded and never counted."""
        if self._warmer.needs(period) and not self._stop.is_set():
            self.board.set_state(period.arm, "warming up")
            async with self._watch.span():
                await self._warmer.warm(period, self._service_group.contacts[period.arm].endpoint)

    def _keep_warmup(self, warmup: Warmup) -> None:
        if self._service_group.process(warmup.arm) is not None:
            self._restarts.count_warmup((warmup.ended_ns - warmup.started_ns) / NS_PER_S)
        self._run.append_beside(warmup)
        self._progress.warmed_up(warmup)

    async def _find_change(self, block: BlockRecord) -> IncompatibleError | None:
        """Ask an arm that somebody else runs what it is, once its period ended and nothing waits for it.

        It may have been replaced while no request was in flight. The period's record then says so, and that
        the period did not end, so that no later start of this program takes it for measured.
        """
        if not block.completed or self._stop.is_set():
            return None
        return await self._service_group.find_change(block.arm)

    async def _check_there(self, arm: str, block: BlockRecord) -> None:
        """Go on only with a service that is there: one that is off would fail every period."""
        try:
            self._service_group.check_alive(arm)
            if block.unreached or (block.broken and self._service_group.pid(arm) is None):
                # One that somebody else runs may have been started anew, or replaced, between two requests.
                self._warmer.forget(arm)
                await self._meet_again(arm, block)
        except EngineError as error:
            raise EngineError(
                f"{error.message} Its unanswered requests are recorded as failures of this arm.",
                place=error.place,
                fix=f"see what ended it, then continue with: draftproof run --resume {self._run.path}",
            ) from error

    async def _meet_again(self, arm: str, block: BlockRecord) -> None:
        """Wait for an arm. One that was there all the time and breaks answers off is measured as it is."""
        try:
            await self._service_group.meet_again(arm)
        except EngineError:
            if block.unreached or not await self._service_group.is_there(arm):
                raise

    def _target(self, period: Period) -> Target:
        """Return what is sampled of a period's arm as it runs now."""
        service = self._service_group.contacts[period.arm].service
        return Target(
            arm=period.arm,
            attempt=period.attempt,
            urls=service.metrics_urls,
            series=service.adapter.facts.series,
            headers=service.headers,
            pid=self._service_group.pid(period.arm),
        )


def note_clocks(period: BlockRecord, before: ClockReading, after: ClockReading) -> BlockRecord:
    """Return a period's record with its wall-clock anchor and with what happened to the clocks.

    `before`: the clocks as the period began. `after`: the clocks as it ended.
    """
    change = compare_clocks(before, after)
    return msgspec.structs.replace(
        period,
        started_wall_ns=before.wall_ns + period.started_ns - before.monotonic_ns,
        boot=before.boot,
        wall_step_ns=change.wall_step_ns,
        suspended_ns=change.slept_ns,
    )
