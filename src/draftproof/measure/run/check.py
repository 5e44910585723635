"""Everything before the first measured request, for a person to read: contracts, findings, differences."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from draftproof.core.manifests import Contract
from draftproof.judge.decide.near_copies import foresee_near_copies
from draftproof.judge.decide.preceding import LEAST_PROCESSES
from draftproof.judge.decide.samples import default_question, plan_samples
from draftproof.judge.decide.spreads import describe_blocked
from draftproof.judge.knee.compute import describe_outlook
from draftproof.measure.load.period import Period
from draftproof.measure.load.sockets import prepare_descriptors
from draftproof.measure.run.answer_judging import check_judging
from draftproof.measure.run.load_findings import (
    LoadFinding,
    Outlook,
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
from draftproof.plan.environment import resolve_references
from draftproof.plan.loading import BUILTIN_PREFIX
from draftproof.plan.schema import Plan
from draftproof.services.arms.comparability import find_differences
from draftproof.services.arms.findings import PreflightFinding
from draftproof.services.arms.launch import MODEL_MARK, list_arms
from draftproof.services.arms.preflight import PreflightReport, run_preflight
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
    """What a check found; nothing was measured."""

    plan: str
    items: int
    segments: dict[str, int]
    differences: dict[str, tuple[str, ...]]
    contracts: tuple[Contract, ...]
    findings: tuple[PreflightFinding, ...]
    forecasts: tuple[str, ...]
    blocked: str | None = None
    load_findings: tuple[LoadFinding, ...] = ()
    outlooks: tuple[Outlook, ...] = ()
    knee: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    near_copies: tuple[str, ...] = ()
    counting: dict[str, str] = {}
    processes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the report for a terminal."""
        lines = [f"Plan {self.plan}: {self.items} items in {len(self.segments)} segments."]
        for contract in self.contracts:
            lines.append(f"  {contract.arm}: {contract.algorithm}")
            lines += [f"    differs from the baseline: {one}" for one in self.differences[contract.arm]]
            lines += [f"    forced by its method and charged to it: {one}" for one in contract.forced]
            if contract.arm in self.counting:
                lines.append(f"    tokens counted by {self.counting[contract.arm]}")
            lines.append(
                f"    equivalence: {contract.equivalence or 'not known'}; fallback: {contract.fallback}"
            )
        lines += [f"  load {one}" for one in self.outlooks]
        lines += [f"  {one}" for one in (*self.processes, *self.knee[:1])]
        lines += [f"  {one}" for one in self.workers]
        lines += [f"{one.severity}: {one.arm}: {one.text}" for one in self.findings]
        lines += [f"warning: {one}" for one in (*self.load_findings, *self.knee[1:], *self.near_copies)]
        lines += [f"forecast: {text}" for text in self.forecasts]
        lines.append(self.ending)
        return "\n".join(lines)

    @property
    def ending(self) -> str:
        """Whether it can run, and the first thing that would keep it from an answer."""
        if not self.is_ready:
            return "Not ready: see the errors above."
        return f"It can run, but {self.blocked}" if self.blocked else "Ready to run."

    @property
    def is_ready(self) -> bool:
        """Whether nothing that was found forbids the run."""
        return all(one.severity != "error" for one in self.findings)


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


def check_plan(plan: Plan, resolve_model: ModelResolver, progress: Progress) -> CheckReport:
    """Start the arms of a plan, check all that a run would check, and stop them.

    Raises UsageError: plan, workload or model cannot be used; IncompatibleError: arms differ where the plan
    does not declare it; EngineError: a service does not start or answer; Interrupted: stopped by a signal.
    """
    prepared = prepare(plan, resolve_model)
    with TemporaryDirectory(prefix="draftproof-check-") as folder:
        return uvloop.run(_check(prepared, Path(folder), progress))


async def _check(prepared: Prepared, logs: Path, progress: Progress) -> CheckReport:
    await check_judging(prepared.plan, prepared.items, os.environ)
    progress.phase("Starting the arms")
    with stop_on_signal() as stop:
        async with ServiceGroup(prepared.plan, prepared.model, logs, progress, stop) as service_group:
            progress.phase("Checking contract, compatibility and comparability")
            return _report(prepared, service_group)


def _report(prepared: Prepared, service_group: ServiceGroup) -> CheckReport:
    plan, items, manifests = prepared.plan, prepared.items, service_group.manifests
    found = plan_samples(plan, items, default_question(plan))
    report, baseline = preflight(service_group, items, prepared.model), manifests["baseline"]
    return CheckReport(
        plan=plan.name,
        items=len(items),
        segments=compute_coverage(items, plan.workload.segment_by).by_segment,
        differences={
            name: tuple(f"{d.key}: {d.baseline} -> {d.other}" for d in find_differences(baseline, manifest))
            for name, manifest in manifests.items()
        },
        contracts=tuple(report.contracts),
        findings=tuple(report.findings),
        forecasts=tuple(one.text for one in found.shortfalls),
        blocked=describe_blocked(found),
        knee=describe_outlook(plan, items),
        load_findings=(*prepared.findings, *find_beyond_service(plan, manifests.values())),
        outlooks=list_outlooks(plan, items),
        workers=prepared.workers,
        processes=describe_processes(
            plan, plan_periods(plan, items, service_group.arms), service_group.start_s
        ),
        near_copies=tuple(foresee_near_copies(items, plan.comparison.cluster_by)),
        counting={name: one.counting.text for name, one in manifests.items() if one.counting},
    )
