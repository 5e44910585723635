"""A run from plan to report: start the arms, check, write down what they are, measure, compute.

Owns the order of events. Whatever ends it (Ctrl-C, a full disk, a service that dies), what was measured is
in the journal, the services are stopped, and the run can be resumed.
"""

import asyncio
import os
import platform
from functools import partial
from pathlib import Path

import msgspec
import psutil
import uvloop

from draftproof import __version__
from draftproof.core.build import source_sha256
from draftproof.core.clock import monotonic_ns, wall_anchor
from draftproof.core.errors import IncompatibleError
from draftproof.core.manifests import Manifest
from draftproof.core.records import SCHEMA_VERSION
from draftproof.judge.metrics.request import list_uncounted
from draftproof.judge.observe.observed import RunData, find_ending, note_going_on
from draftproof.judge.results.run import Results
from draftproof.measure.load.sockets import prepare_descriptors
from draftproof.measure.run.answer_judging import check_judging, count_answers, judge_run
from draftproof.measure.run.check import ModelResolver, Prepared, preflight, prepare, resolve_target
from draftproof.measure.run.host_watch import HostWatch
from draftproof.measure.run.load_findings import find_beyond_service
from draftproof.measure.run.measure import list_unprobed, measure, plan_periods
from draftproof.measure.run.period_runner import check_cluster
from draftproof.measure.run.progress import Interrupted, Patience, Progress, stop_on_signal
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.second_attempts import (
    count_starts,
    has_other_blocks,
    list_missing_periods,
    list_repeats,
)
from draftproof.measure.run.service_group import ServiceGroup, check_same
from draftproof.measure.run.watching_host import make_watch, running_arms
from draftproof.plan.environment import list_values
from draftproof.plan.loading import plan_sha256, thresholds_sha256
from draftproof.plan.schema import Plan
from draftproof.services.arms.launch import list_arms
from draftproof.services.arms.preflight import PreflightReport
from draftproof.services.arms.request_fit import find_tokenizer
from draftproof.services.telemetry.host import name_cpu
from draftproof.store import LOG_FOLDER, RunDirectory
from draftproof.store.ledger import begin, end
from draftproof.workload.items import Item
from draftproof.workload.recordings import cap_evidence


def run_plan(
    plan: Plan,
    text: str,
    out: Path,
    resolve_model: ModelResolver,
    progress: Progress,
    *,
    patience: Patience | None = None,
) -> Results:
    """Run a plan into a new directory and return its results.

    A run that cannot end well ends early: what it has is kept, and the results say why. `plan`: the checked
    plan, paths resolved. `text`: its text, kept in the run. `out`: the run directory; must be empty or
    absent. `resolve_model`: turns the plan's target into a folder of files. `progress`: gets where the run
    is. `patience`: what becomes of a run that cannot end well; None: it ends. Raises DraftproofError:
    anything a user can mend; what was measured is kept; Interrupted: stopped by a signal.
    """
    RunDirectory.check_free(out)
    job = prepare(plan, resolve_model)
    with RunDirectory.prepare(out):
        is_over = uvloop.run(_run_new(job, text, out, progress, patience or Patience()))
    return _finish(out, job.model, progress, is_over=is_over)


def resume_run(
    out: Path, resolve_model: ModelResolver, progress: Progress, *, patience: Patience | None = None
) -> Results:
    """Continue an interrupted run where its journal ends and return its results.

    Raises IncompatibleError: an arm is not what it was when the run began; DraftproofError: as `run_plan`;
    Interrupted: stopped again.
    """
    with RunDirectory.open(out) as run:
        run.lock()
        contents = run.load()
        is_measured, model = _is_measured(contents), None
        is_over = is_measured
        if not is_measured or list_uncounted(contents.records):
            model = resolve_target(contents.plan, resolve_model)
        if not is_measured:
            prepare_descriptors(contents.plan)
            check_cluster(contents.plan)
            is_over = uvloop.run(_run_on(run, contents, model, progress, patience or Patience()))
    return _finish(out, model, progress, is_over=is_over)


def _is_measured(contents: RunData) -> bool:
    """Tell whether no period is missing, so that a run whose end alone was lost needs no service.

    Probes of behaviour that were begun must be finished; a run from before there were any needs none.
    """
    arms = list_arms(contents.plan)
    periods = plan_periods(contents.plan, contents.items, arms, contents.analyses)
    if has_other_blocks(periods, contents.blocks):
        return _is_measured_otherwise(contents, len(periods))
    items, recorded = {item.id: item for item in contents.items}, {one.request_id for one in contents.records}
    if list_missing_periods(periods, items, contents.blocks, recorded):
        return False
    if contents.plan.knee is not None:  # the statistics are imported only for a search
        from draftproof.measure.run.knee import is_over  # noqa: PLC0415

        if not is_over(contents):
            return False
    if any(list_repeats(contents.plan, periods, contents.blocks).list_all_due()):
        return False
    return not contents.behaviours or not list_unprobed(contents.plan, arms, contents.behaviours)


def _is_measured_otherwise(contents: RunData, wanted: int) -> bool:
    """Tell whether no period is missing of a run that an earlier version made.

    Raises IncompatibleError: one is.
    """
    if len({(one.load, one.block, one.arm) for one in contents.blocks if one.completed}) >= wanted:
        return True
    raise IncompatibleError(
        f"draftproof {contents.manifest.draftproof_version} began this run and orders blocks otherwise.",
        place="manifest.json",
        fix="continue it with that version, or start a new run.",
    )


async def _run_new(job: Prepared, text: str, out: Path, progress: Progress, patience: Patience) -> bool:
    """Run a new run; return whether it came to its end."""
    await check_judging(job.plan, job.items, os.environ)
    with stop_on_signal() as stop:
        watch = make_watch(job.plan, job.items, progress, patience)
        make = partial(ServiceGroup, job.plan, job.model, out / LOG_FOLDER, progress)
        async with running_arms(make, watch, progress, stop) as service_group:
            report = preflight(service_group, job.items, job.model)
            report.raise_errors()
            manifest = _begin(_manifest(job, text, service_group, report, out), out)
            with RunDirectory.create(out, text, job.plan, manifest, job.items) as run:
                watch.keep_in(run.append_beside)
                return await _measure(run, service_group, job.items, watch, stop)


async def _run_on(
    run: RunDirectory, contents: RunData, model: Path | None, progress: Progress, patience: Patience
) -> bool:
    """Go on with a run; return whether it came to its end."""
    before = {arm.arm: arm for arm in contents.manifest.arms}
    started = count_starts(contents.blocks, contents.warmups)
    with stop_on_signal() as stop:
        watch = make_watch(contents.plan, contents.items, progress, patience)
        watch.keep_in(run.append_beside)
        make = partial(
            ServiceGroup, contents.plan, model, run.path / LOG_FOLDER, progress, started_before=started
        )
        async with running_arms(make, watch, progress, stop) as service_group:
            preflight(service_group, contents.items, model).raise_errors()
            for name, now in service_group.manifests.items():
                check_same(before[name], now)
            if find_ending(contents.notices) is not None:
                run.append_beside(note_going_on(monotonic_ns()))
            return await _measure(run, service_group, contents.items, watch, stop)


async def _measure(
    run: RunDirectory,
    service_group: ServiceGroup,
    items: tuple[Item, ...],
    watch: HostWatch,
    stop: asyncio.Event,
) -> bool:
    """Measure what is missing; return whether all is measured, False where the run cannot end well.

    Raises DraftproofError: as `measure`; Interrupted: the user wants to leave.
    """
    while True:
        try:
            await _measure_all(run, service_group, items, watch)
        except Interrupted:
            if watch.ending is None or stop.is_set():
                raise
            if not await watch.wait_for_quiet(stop):
                return False
        else:
            return True


async def _measure_all(
    run: RunDirectory, service_group: ServiceGroup, items: tuple[Item, ...], watch: HostWatch
) -> None:
    watch.progress.phase("Measuring")
    count = await measure(run, service_group, items, watch.progress, watch)
    if count.ended < count.planned:
        raise Interrupted(run.path, *count)
    if service_group.plan.knee is not None:
        from draftproof.measure.run.knee import search_knee  # noqa: PLC0415

        await search_knee(run, service_group, watch.progress, watch)


def _begin(manifest: Manifest, out: Path) -> Manifest:
    """Note in the ledger that a run begins, and return its manifest with what came before."""
    return msgspec.structs.replace(manifest, earlier=begin(out.absolute().parent, manifest))


def _finish(out: Path, model: Path | None, progress: Progress, *, is_over: bool) -> Results:
    """Compute the results; answers of a run that ended early are not judged, which may cost."""
    with RunDirectory.open(out) as run:
        contents = run.load()
        if list_uncounted(contents.records):
            tokenizer = find_tokenizer(contents.plan, model, os.environ)
            contents = count_answers(run, contents, tokenizer)
        if is_over:
            uvloop.run(judge_run(run, progress, contents))
    progress.phase("Computing the verdict")
    run.compact()
    results = recompute(out, write=True)
    end(out.absolute().parent, contents.manifest, results.verdict.decision)
    return results


def _manifest(
    job: Prepared, text: str, service_group: ServiceGroup, report: PreflightReport, out: Path
) -> Manifest:
    plan, workload = job.plan, job.workload
    wall_ns, monotonic_ns = wall_anchor()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        draftproof_version=__version__,
        source_sha256=source_sha256(),
        run_name=plan.name,
        folder=out.absolute().name,
        created_wall_ns=wall_ns,
        anchor_wall_ns=wall_ns,
        anchor_monotonic_ns=monotonic_ns,
        plan_sha256=plan_sha256(text),
        thresholds_sha256=thresholds_sha256(plan),
        workload_sha256=workload.sha256,
        workload_name=workload.name,
        workload_version=workload.version,
        evidence=cap_evidence(plan.evidence, job.items),
        seed=plan.seed,
        host=describe_host(),
        arms=tuple(service_group.manifests.values()),
        contracts=tuple(report.contracts),
        references=list_values(plan, os.environ, service_group.secrets),
        findings=(
            *(f"Before the run: {one.arm}: {one.text}" for one in report.findings),
            *(
                f"Before the run: {one}"
                for one in (
                    *job.findings,
                    *job.workers,
                    *find_beyond_service(plan, service_group.manifests.values()),
                )
            ),
        ),
    )


def describe_host() -> dict[str, str | int | float | None]:
    """Return what the machine is: enough to see that two runs were not made on the same kind."""
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": name_cpu(),
        "cores": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
    }
