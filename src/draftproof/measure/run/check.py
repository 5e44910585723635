"""Everything before the first measured request, for a person to read: contracts, findings, differences."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from draftproof.core.clock import NS_PER_S
from draftproof.core.manifests import ArmManifest, Contract
from draftproof.judge.decide.near_copies import foresee_near_copies
from draftproof.judge.decide.preceding import LEAST_PROCESSES
from draftproof.judge.decide.samples import default_question, plan_samples
from draftproof.judge.decide.spreads import list_before_a_run
from draftproof.judge.knee.compute import describe_outlook
from draftproof.judge.results.samples import SamplePlan
from draftproof.measure.load.period import Period
from draftproof.measure.load.sockets import prepare_descriptors
from draftproof.measure.run.answer_judging import check_judging
from draftproof.measure.run.load_findings import (
    LoadFinding,
    find_beyond_service,
    find_load_findings,
    list_notes,
    list_outlooks,
)
from draftproof.measure.run.measure import plan_periods
from draftproof.measure.run.period_runner import check_cluster
from draftproof.measure.run.progress import Progress, stop_on_signal
from draftproof.measure.run.second_attempts import SHARE, choose_blocks, list_boundaries
from draftproof.measure.run.service_group import ServiceGroup, needs_model
from draftproof.measure.run.static_check import Fault, find_faults
from draftproof.plan.environment import resolve_references
from draftproof.plan.loading import BUILTIN_PREFIX
from draftproof.plan.schema import Plan
from draftproof.services.arms.comparability import find_differences
from draftproof.services.arms.launch import MODEL_MARK, list_arms
from draftproof.services.arms.preflight import PreflightReport, run_preflight
from draftproof.services.arms.probe import PROBE_ITEM
from draftproof.workload.items import Item, Workload
from draftproof.workload.moments import Units
from draftproof.workload.reader import load_workload
from draftproof.workload.recordings import Window
from draftproof.workload.segments import check_dimensions, compute_coverage, select


def describe_processes(plan: Plan, periods: Sequence[Period], start_s: float | None) -> tuple[str, ...]:
    """Say how many processes each arm will have and what starting them takes, of attached ones apart. Pure.

    `periods`: every measurement period, in order. `start_s`: how long all arms that the run starts took to
    start; None where it starts none, or each for its own periods.
    """
    arms = {name: arm for name, arm in list_arms(plan).items() if name != "baseline_null"}
    attached = [name for name, arm in arms.items() if arm.url is not None]
    started = [] if len(attached) == len(arms) else [_describe_started(plan, periods, start_s)]
    return (*started, *([_describe_attached(plan, attached)] if attached else []))


def _describe_started(plan: Plan, periods: Sequence[Period], start_s: float | None) -> str:
    if plan.placement == "one_at_a_time":
        return "processes: each arm is started anew for its periods"
    boundaries, wanted = len(list_boundaries(periods)), plan.limits.restarts
    cost_s = start_s or 0.0
    if wanted != "auto":
        count = len(choose_blocks(periods, wanted))
        return (
            f"processes: {count + 1} of each arm that the run starts (limits.restarts = {wanted}); their "
            f"starts take {_seconds((count + 1) * cost_s)} and warm-ups"
        )
    if not boundaries:
        return "processes: 1 of each arm that the run starts: no load has a second block to start anew before"
    least = min(LEAST_PROCESSES, boundaries + 1)
    measured_s = (least - 1) * cost_s * (1 - SHARE) / SHARE
    return (
        f"processes: up to {boundaries + 1} of each arm that the run starts (limits.restarts = auto); a "
        f"start of all takes {_seconds(cost_s)} and warm-ups, at most a quarter of the run: {least} of each "
        f"from about {_seconds(measured_s)} of measuring on"
    )


def _describe_attached(plan: Plan, attached: Sequence[str]) -> str:
    arms = plan.arms
    if {"baseline", "candidate"} <= set(attached) and arms.baseline.url == arms.candidate.url:
        return "processes: baseline and candidate share one, whose luck is in no ratio of the two"
    several = len(attached) > 1
    return (
        f"processes: {' and '.join(attached)} {'are' if several else 'is'} attached to and cannot be started "
        f"anew: one process{' each' if several else ''}, unless it is started anew between parts of the run "
        "(Ctrl-C, then --resume)"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.0f} min"


ModelResolver = Callable[[str], Path]


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found; nothing was measured.

    `ruled_out` is what rules an adoption out, `unlikely` what makes one unlikely, `effort` what the run will
    take, a sentence each. `is_whole`: the services were started and asked. `can_decide`: a verdict other than
    inconclusive is possible.
    """

    plan: str
    items: int
    requests: int
    segments: dict[str, int]
    is_whole: bool
    ruled_out: tuple[str, ...]
    unlikely: tuple[str, ...]
    effort: tuple[str, ...]
    can_decide: bool
    differences: dict[str, tuple[str, ...]] = {}
    contracts: tuple[Contract, ...] = ()
    counting: dict[str, str] = {}
    knee: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    has_errors: bool = False


def choose_items(plan: Plan) -> tuple[Workload, tuple[Item, ...]]:
    """Return the workload and the items that the plan chooses from it."""
    chosen = plan.workload
    window = None if chosen.window is None else Window(**chosen.window.model_dump())
    units = Units(timestamp=chosen.timestamp_unit, block_tokens=chosen.block_tokens)
    workload = load_workload(chosen.path, window, units)
    named = plan.comparison.cluster_by
    check_dimensions(workload, (named,) if named else ())
    return workload, select(workload, chosen.where, chosen.items_per_segment, chosen.segment_by, plan.seed)


def resolve_target(plan: Plan, resolve_model: ModelResolver) -> Path | None:
    """Return the target's folder or file, None where no arm needs it and it is not at hand.

    A model id is looked up only for the reference engine; other engines fetch their own.
    """
    arms = list_arms(plan)
    model = resolve_references(plan.target.model, os.environ, "target.model")
    builtin = model.startswith(BUILTIN_PREFIX) and any(
        MODEL_MARK in part for arm in arms.values() for part in arm.command or ()
    )
    if builtin or needs_model(arms):
        return resolve_model(model)
    path = Path(model).expanduser()
    return path if path.exists() else None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a plan before anything is started; `workers`: of a cluster, one line a host."""

    plan: Plan
    workload: Workload
    items: tuple[Item, ...]
    model: Path | None
    findings: tuple[LoadFinding, ...]
    workers: tuple[str, ...]


def prepare(plan: Plan, resolve_model: ModelResolver) -> Prepared:
    """Find out what a plan needs and whether it is there.

    Raises UsageError: workload, load, cluster or model cannot be used.
    """
    workload, items = choose_items(plan)
    findings = (*list_notes(workload), *find_load_findings(plan, items))
    prepare_descriptors(plan)
    workers = check_cluster(plan)
    return Prepared(
        plan=plan,
        workload=workload,
        items=items,
        model=resolve_target(plan, resolve_model),
        findings=findings,
        workers=workers,
    )


def preflight(service_group: ServiceGroup, items: tuple[Item, ...], model: Path | None) -> PreflightReport:
    """Check the probed arms against the plan and each other; see `run_preflight`."""
    probes = [contact.probe for contact in service_group.contacts.values()]
    return run_preflight(service_group.plan, probes, items, model=model)


def check_plan(
    plan: Plan, resolve_model: ModelResolver, progress: Progress, *, quick: bool = False
) -> CheckReport:
    """Check what a run would check, cheap things first, then the services: started, asked and stopped.

    `quick`: no service is started. So none is where a file or a flag is wrong already. Raises UsageError:
    plan, workload or model cannot be used; IncompatibleError: arms differ where the plan does not declare it;
    EngineError: a service does not start or answer; Interrupted: stopped by a signal.
    """
    progress.phase("Checking prompts, files and flags")
    workload, items = choose_items(plan)
    found = plan_samples(plan, items, default_question(plan))
    faults = find_faults(plan, items, found.requests)
    if faults or quick:
        notes = (*list_notes(workload), *find_load_findings(plan, items))
        return _report(_Checked(plan=plan, items=items, found=found, faults=faults, notes=notes))
    prepared = prepare(plan, resolve_model)
    with TemporaryDirectory(prefix="draftproof-check-") as folder:
        return uvloop.run(_check_services(prepared, found, Path(folder), progress))


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was found out; `preflight` and `effort` are of services that were started."""

    plan: Plan
    items: tuple[Item, ...]
    found: SamplePlan
    faults: tuple[Fault, ...] = ()
    notes: tuple[LoadFinding, ...] = ()
    workers: tuple[str, ...] = ()
    preflight: PreflightReport | None = None
    manifests: dict[str, ArmManifest] = {}
    effort: tuple[str, ...] = ()


async def _check_services(
    prepared: Prepared, found: SamplePlan, logs: Path, progress: Progress
) -> CheckReport:
    plan, items = prepared.plan, prepared.items
    await check_judging(plan, items, os.environ)
    progress.phase("Starting the arms")
    with stop_on_signal() as stop:
        async with ServiceGroup(plan, prepared.model, logs, progress, stop) as service_group:
            progress.phase("Checking contract, compatibility and comparability")
            manifests = service_group.manifests
            periods = plan_periods(plan, items, service_group.arms)
            return _report(
                _Checked(
                    plan=plan,
                    items=items,
                    found=found,
                    notes=(*prepared.findings, *find_beyond_service(plan, manifests.values())),
                    workers=prepared.workers,
                    preflight=preflight(service_group, items, prepared.model),
                    manifests=manifests,
                    effort=(
                        _estimate_time(plan, periods, service_group),
                        *describe_processes(plan, periods, service_group.start_s),
                    ),
                )
            )


def _report(checked: _Checked) -> CheckReport:
    plan, items, found = checked.plan, checked.items, checked.found
    cells = [(need.segment, need.load) for need in found.needs if need.aim == "gain"]
    findings = checked.preflight.findings if checked.preflight else ()
    sure, possible = list_before_a_run(found, cells)
    errors = [f"{one.arm}: {one.text}" for one in findings if one.severity == "error"]
    warnings = [f"{one.arm}: {one.text}" for one in findings if one.severity == "warning"]
    knee = describe_outlook(plan, items)
    near_copies = foresee_near_copies(items, plan.comparison.cluster_by)
    has_errors = bool(errors or checked.faults)
    baseline = checked.manifests.get("baseline")
    return CheckReport(
        plan=plan.name,
        items=len(items),
        requests=found.requests,
        segments=compute_coverage(items, plan.workload.segment_by).by_segment,
        is_whole=checked.preflight is not None,
        ruled_out=(*map(str, checked.faults), *errors, *(one.text for one in sure)),
        unlikely=(
            *(one.text for one in possible),
            *warnings,
            *map(str, checked.notes),
            *knee[1:],
            *near_copies,
        ),
        effort=(*checked.effort, *(f"load {one}" for one in list_outlooks(plan, items)), *knee[:1]),
        can_decide=not has_errors and not sure,
        differences={
            name: tuple(f"{d.key}: {d.baseline} -> {d.other}" for d in find_differences(baseline, manifest))
            for name, manifest in checked.manifests.items()
        }
        if baseline
        else {},
        contracts=checked.preflight.contracts if checked.preflight else (),
        counting={name: one.counting.text for name, one in checked.manifests.items() if one.counting},
        knee=knee,
        workers=checked.workers,
        has_errors=has_errors,
    )


def _estimate_time(plan: Plan, periods: Sequence[Period], service_group: ServiceGroup) -> str:
    """Say how long the requests take at most and at least, by the test request of each arm.

    A service that computes many requests at once as fast as one takes the least time, one that computes them
    one after the other the most. An open loop takes what its due times say.
    """
    least = most = 0.0
    answers = {name: contact.probe for name, contact in service_group.contacts.items()}
    limits = {item.id: item.max_tokens for item in choose_items(plan)[1]}
    cap = plan.workload.max_tokens
    for period in periods:
        if period.due_ns:
            least += period.due_ns[-1] / NS_PER_S
            most += period.due_ns[-1] / NS_PER_S
            continue
        probe = answers[period.arm].cold
        tokens = PROBE_ITEM.max_tokens
        seconds = sum(
            (probe.e2e_ns or 0) / NS_PER_S * min(limits[item], cap or limits[item]) / tokens
            for item in period.item_ids
        )
        least += seconds / (period.concurrency or 1)
        most += seconds
    return f"about {_seconds(least)} to {_seconds(most)} of measuring, by the test requests"
