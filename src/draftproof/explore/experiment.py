"""The experiment from plan to costs: start after start, wave after wave, every record to disk as it ends.

Owns the order of events. What was recorded stays whatever ends it; a wave that shows that nothing can be
concluded ends it with one sentence.

One start of the engine for the experiment: a running arm, its transport, and its counters.

Sends a wave: so many requests at once, each answered to its end.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from draftproof import __version__
from draftproof.core.clock import wall_anchor
from draftproof.core.errors import EngineError, UsageError
from draftproof.core.rounding import round_figures
from draftproof.explore.batches import Wave, WaveCost, cost_wave
from draftproof.explore.estimate import (
    WaveSet,
    compare_run,
    estimate_drifts,
    estimate_splits,
    estimate_steps,
    list_assumptions,
    list_warnings,
)
from draftproof.explore.page import render_costs_html
from draftproof.explore.results import COSTS_SCHEMA_VERSION, Costs
from draftproof.explore.schedule import (
    METHOD,
    CostGrid,
    Start,
    VariedArm,
    check_grid,
    plan_starts,
    vary_arm,
)
from draftproof.judge.results.run import Results
from draftproof.measure.run.check import ModelResolver, resolve_target
from draftproof.measure.run.progress import Interrupted, Progress, stop_on_signal, unless_stopped
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.runner import describe_host
from draftproof.plan.loading import plan_sha256
from draftproof.plan.schema import Arm, Plan
from draftproof.services.engines import adapter_for
from draftproof.store import LOG_FOLDER, RunDirectory
from draftproof.store.lines import LineFile, write_atomically

if TYPE_CHECKING:
    from draftproof.core.manifests import ArmManifest
import os
from typing import Self

import aiohttp

from draftproof.core.clock import monotonic_ns
from draftproof.core.manifests import ArmManifest
from draftproof.core.records import Phase, RequestRecord
from draftproof.explore.schedule import build_items
from draftproof.measure.client.exchange import Ending, Exchange, ExchangeFold, WireRequest
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Job, Period, make_record
from draftproof.measure.run.service_group import Contact, RunningArm
from draftproof.plan.environment import mask_struct
from draftproof.services.arms.service import fetch_totals

ARM = "candidate"


class EngineSession:
    """One start of the engine. Use as an async context manager; leaving it stops the process tree.

    `arm`: the arm as varied for this start. `plan`: the plan; its limits say how long to wait. `model`: the
    target's folder or file, None where it is not at hand. `stop`: set when the user wants to leave.
    """

    def __init__(self, arm: Arm, plan: Plan, model: Path | None, log_path: Path, stop: asyncio.Event) -> None:
        self._arm = RunningArm(ARM, arm, plan, model=model, log_path=log_path, environment=os.environ)
        self._stop, self.log_path = stop, log_path
        self.adapter, self.secrets = self._arm.adapter, self._arm.secrets
        self.transport = HttpTransport()
        self._contact: Contact | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the engine answers."""
        return self._reached.endpoint

    @property
    def manifest(self) -> ArmManifest:
        """What the engine is."""
        return self._reached.manifest

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        try:
            self._contact = await self._arm.start(self._stop)
        except BaseException as error:
            await self._close(at_once=isinstance(error, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    def check_alive(self) -> None:
        """Do nothing while the process runs. Raises EngineError: it ended."""
        self._arm.process.check_alive()

    async def scrape(self) -> dict[str, float] | None:
        """Return the service's counters summed over its replicas, None where they cannot be read."""
        try:
            return await fetch_totals(self._session, self._reached.service)
        except EngineError:
            return None

    @property
    def _reached(self) -> Contact:
        assert self._contact is not None  # noqa: S101 - inside the context
        return self._contact

    async def _close(self, *, at_once: bool) -> None:
        try:
            await self.transport.close()
            await self._session.close()
            if not at_once:
                await self._arm.process.stop()
        finally:
            self._arm.process.kill()


async def send_wave(
    session: EngineSession,
    start: Start,
    number: int,
    batch: int,
    *,
    answer_tokens: int,
    synthetic: bool,
    timeout_s: float,
    phase: Phase = "measure",
) -> Wave:
    """Send `batch` requests at once and return what was heard, with the counters before and after."""
    items = build_items(batch, answer_tokens)
    period = Period(
        block=start.index,
        load=f"{start.draft_length}-{start.drafting}",
        concurrency=batch,
        repeat=number,
        arm=ARM,
        order=number,
        item_ids=tuple(item.id for item in items),
    )
    jobs = [
        Job(request_id=f"{period.key}/{item.id}", item=item, phase=phase, order_in_block=slot, seed=slot + 1)
        for slot, item in enumerate(items)
    ]
    before = await session.scrape()
    records = await asyncio.gather(*(_ask(session, period, job, timeout_s) for job in jobs))
    return Wave(
        start=start.index,
        draft_length=start.draft_length,
        batch=batch,
        synthetic=synthetic,
        records=tuple(records),
        before=before,
        after=await session.scrape(),
    )


async def _ask(session: EngineSession, period: Period, job: Job, timeout_s: float) -> RequestRecord:
    scheduled_ns = monotonic_ns()
    record = make_record(period, job, scheduled_ns, await _exchange(session, job, timeout_s))
    return mask_struct(record, session.secrets) if session.secrets else record


async def _exchange(session: EngineSession, job: Job, timeout_s: float) -> Exchange:
    endpoint = session.endpoint
    request = WireRequest(
        url=endpoint.chat_url,
        body=msgspec.json.encode(endpoint.build_payload(job.item, seed=job.seed)),
        headers=endpoint.headers,
    )
    fold = ExchangeFold(endpoint.adapter.start_fold())
    try:
        async with asyncio.timeout(timeout_s):
            return fold.close(await session.transport.send(request, fold))
    except TimeoutError:
        return fold.close(
            Ending(kind="timeout", at_ns=monotonic_ns(), detail=f"no end within {timeout_s:g} s")
        )


WAVES_NAME, COSTS_NAME, PAGE_NAME, PLAN_NAME = "waves.jsonl", "costs.json", "costs.html", "plan.toml"
_WARM_UP_TOKENS = 24


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, in which starts, and where it goes."""

    plan: Plan
    text: str
    out: Path
    model: Path | None
    grid: CostGrid
    starts: tuple[Start, ...]
    arms: tuple[VariedArm, ...]
    is_lookup: bool


def measure_costs(
    plan: Plan,
    text: str,
    out: Path,
    *,
    grid: CostGrid,
    resolve_model: ModelResolver,
    progress: Progress,
    run: Path | None = None,
) -> Costs:
    """Measure what the steps of a plan's candidate cost, and write costs.json, costs.html and the records.

    `out`: the folder to make; must be empty or absent. `grid`: draft lengths, batch sizes and how often.
    `resolve_model`: turns the plan's target into a folder of files. `run`: a run directory whose tokens per
    decode step are set beside the break-even. Raises DraftproofError: anything a user can mend; what was
    recorded is kept; Interrupted: stopped by a signal.
    """
    check_grid(grid)
    RunDirectory.check_free(out)
    compared = None if run is None else recompute(run, write=False)
    job = _prepare(plan, text, out, grid, resolve_model)
    measured = uvloop.run(_measure(job, progress))
    progress.phase("Computing what breaks even")
    costs = _conclude(job, measured)
    if run is not None and compared is not None:
        costs = _set_beside(costs, run, compared)
    costs = round_figures(costs)
    write_costs(out, costs)
    return costs


def write_costs(out: Path, costs: Costs) -> None:
    """Write costs.json and costs.html. Raises StoreError: they cannot be written."""
    write_atomically(out / COSTS_NAME, msgspec.json.format(msgspec.json.encode(costs)) + b"\n")
    write_atomically(out / PAGE_NAME, render_costs_html(costs).encode())


def _prepare(plan: Plan, text: str, out: Path, grid: CostGrid, resolve_model: ModelResolver) -> _Job:
    arm = plan.arms.candidate
    _check_chunks(arm, grid)
    vary_arm(arm, 1)  # a plan that cannot be varied says so before anything is fetched or made
    is_lookup = _drafts_by_lookup(arm)
    # Other engines tell drafting from checking themselves.
    stands_in = adapter_for(arm.engine).lookup_stands_in and not is_lookup
    starts = plan_starts(grid, with_lookup=grid.split and stands_in)
    arms = tuple(
        vary_arm(arm, start.draft_length, start.drafting, synthetic=grid.synthetic) for start in starts
    )
    model = resolve_target(plan, resolve_model)
    with RunDirectory.prepare(out):
        write_atomically(out / PLAN_NAME, text.encode())
    return _Job(
        plan=plan, text=text, out=out, model=model, grid=grid, starts=starts, arms=arms, is_lookup=is_lookup
    )


def _check_chunks(arm: Arm, grid: CostGrid) -> None:
    """Refuse to time steps by chunks where a chunk is no step."""
    facts = adapter_for(arm.engine).facts
    if not grid.synthetic and facts.chunk_holds != "step":
        raise UsageError(
            f"a chunk of {facts.title} does not hold a step, so steps cannot be timed by chunks",
            place="--no-synthetic",
            fix="leave it away",
        )


def _drafts_by_lookup(arm: Arm) -> bool:
    adapter = adapter_for(arm.engine)
    settings = adapter.read_flags(arm.command) if arm.command else dict(arm.settings)
    return adapter.facts.families.get(str(settings.get(METHOD))) == "ngram"


async def _measure(job: _Job, progress: Progress) -> "_Measuring":
    """Run every start and return what its waves cost."""
    measuring = _Measuring(job, progress)
    progress.phase("Measuring what a step costs")
    with stop_on_signal() as stop, contextlib.closing(LineFile(job.out / WAVES_NAME)) as lines:
        for start, varied in zip(job.starts, job.arms, strict=True):
            await measuring.run_start(start, varied, lines, stop)
    return measuring


class _Measuring:
    """Runs one start after the other and collects what their waves cost."""

    def __init__(self, job: _Job, progress: Progress) -> None:
        self._job, self._progress = job, progress
        self._total = sum(len(start.batches) for start in job.starts)
        self.costs: list[WaveCost] = []
        self.manifests: list[ArmManifest] = []

    async def run_start(self, start: Start, varied: VariedArm, lines: LineFile, stop: asyncio.Event) -> None:
        """Start the engine, warm every batch size up, measure every wave, stop the engine.

        Raises EngineError: it does not start, or a wave shows that nothing can be concluded; Interrupted:
        stopped by a signal.
        """
        job = self._job
        log = job.out / LOG_FOLDER / f"start-{start.index}-{start.draft_length}-{start.drafting}.log"
        self._tell(f"starting: {start.title}")
        session = EngineSession(varied.arm, job.plan, job.model, log, stop)
        try:
            await self._measure_start(session, start, lines, stop)
        except Interrupted as stopped:
            raise Interrupted(job.out, len(self.costs), self._total) from stopped

    async def _measure_start(
        self, session: EngineSession, start: Start, lines: LineFile, stop: asyncio.Event
    ) -> None:
        async with contextlib.AsyncExitStack() as running:
            try:
                await running.enter_async_context(session)
            except EngineError as error:
                raise _explain(error, start, session.log_path, synthetic=self._job.grid.synthetic) from error
            self.manifests.append(session.manifest)
            for number, batch in enumerate(dict.fromkeys(start.batches)):
                self._tell(f"{start.title}: warming up batch {batch}")
                await self._send(session, start, -1 - number, batch, stop)
            for number, batch in enumerate(start.batches):
                self._tell(f"{start.title}: batch {batch}")
                wave = await self._send(session, start, number, batch, stop)
                lines.append(msgspec.json.encode(wave))
                session.check_alive()
                self.costs.append(cost_wave(wave, session.adapter.facts.series))

    async def _send(
        self, session: EngineSession, start: Start, number: int, batch: int, stop: asyncio.Event
    ) -> Wave:
        """Send a wave; one with a negative number warms up, is short, and is not kept."""
        is_warm_up = number < 0
        sending = send_wave(
            session,
            start,
            number,
            batch,
            answer_tokens=_WARM_UP_TOKENS if is_warm_up else self._job.grid.answer_tokens,
            synthetic=self._job.grid.synthetic,
            timeout_s=self._job.plan.limits.request_s,
            phase="warmup" if is_warm_up else "measure",
        )
        return await unless_stopped(sending, stop)

    def _tell(self, text: str) -> None:
        self._progress.advance(len(self.costs), self._total, text)


def _explain(error: EngineError, start: Start, log: Path, *, synthetic: bool) -> EngineError:
    """Say in which start an engine failed; one that drafts may be a build that cannot fix the acceptance."""
    fix = error.fix
    if start.draft_length and synthetic and fix in {None, "see the log."}:
        fix = f"see {log}; a build that cannot fix the acceptance of drafts may do with --no-synthetic."
    return EngineError(f"{start.title}: {error.message}", place=error.place, fix=fix)


def _conclude(job: _Job, measured: _Measuring) -> Costs:
    grid = job.grid
    waves = WaveSet(grid=grid, starts=job.starts, costs=tuple(measured.costs), is_lookup=job.is_lookup)
    drafting = next(
        manifest
        for manifest, start in zip(measured.manifests, job.starts, strict=True)
        if start.draft_length and start.drafting == "own"
    )
    steps, splits, drifts = estimate_steps(waves), estimate_splits(waves), estimate_drifts(waves)
    wall_ns, _ = wall_anchor()
    return Costs(
        schema_version=COSTS_SCHEMA_VERSION,
        draftproof_version=__version__,
        plan_name=job.plan.name,
        plan_sha256=plan_sha256(job.text),
        created_wall_ns=wall_ns,
        engine=drafting.engine,
        engine_version=drafting.engine_version,
        method=str(drafting.settings.get(METHOD, "unknown")),
        target=job.plan.target.model,
        acceptance_while_timing=next(
            arm.acceptance for arm, start in zip(job.arms, job.starts, strict=True) if start.draft_length
        ),
        host=describe_host(),
        commands=tuple(
            (start.title, manifest.command or ())
            for start, manifest in zip(job.starts, measured.manifests, strict=True)
        ),
        draft_lengths=tuple(sorted(grid.draft_lengths)),
        batches=tuple(sorted(grid.batches)),
        repeats=grid.repeats,
        answer_tokens=grid.answer_tokens,
        seed=grid.seed,
        confidence=grid.confidence,
        acceptance=grid.acceptance,
        steps=steps,
        splits=splits,
        drifts=drifts,
        run=None,
        comparisons=(),
        assumptions=list_assumptions(
            splits,
            is_lookup=job.is_lookup,
            from_rounds=all(cost.from_rounds for cost in measured.costs),
            synthetic=grid.synthetic,
        ),
        warnings=list_warnings(steps, drifts, splits),
    )


def _set_beside(costs: Costs, run: Path, results: Results) -> Costs:
    """Return the costs with what a run's candidate committed a step, and a warning if engines differ."""
    manifest = RunDirectory.open(run).load_manifest()
    length = next((one.num_spec_tokens for one in manifest.contracts if one.arm == ARM), None)
    ran = next((f"{one.engine} {one.engine_version}" for one in manifest.arms if one.arm == ARM), "unknown")
    timed = f"{costs.engine} {costs.engine_version}"
    other = () if ran == timed else (f"The run's candidate was {ran}; the steps timed here are of {timed}.",)
    return msgspec.structs.replace(
        costs,
        run=str(run),
        comparisons=compare_run(results, length, costs.steps),
        warnings=(*costs.warnings, *other),
    )
