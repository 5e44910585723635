"""From a run and its plan to what is watched: series, alerts, limits, and what cannot be watched. Pure."""

from collections.abc import Iterator, Sequence

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import Results
from draftproof.plan.limits import Limit, find_limits, tail_of
from draftproof.plan.schema import Plan
from draftproof.services.engines import adapter_for
from draftproof.services.engines.signals import Signals
from draftproof.tell.monitoring.alerts import list_cautions, list_triggers
from draftproof.tell.monitoring.blind_spots import list_blind_spots, list_unseen
from draftproof.tell.monitoring.recordings import FAILED_EXCESS, SLOWDOWN, record_arm, record_pair
from draftproof.tell.monitoring.watch import (
    Recording,
    Unwatched,
    Watch,
    find_load_limits,
    list_unrated,
    list_unset,
)

_HASH_LENGTH = 12
# Which recorded series a limit is a limit of.
_LIMITED = {
    "tail_ttft_s": "arm:draftproof_tail_ttft_seconds",
    "tail_tpot_s": "arm:draftproof_tail_time_per_token_seconds",
    "slowdown": SLOWDOWN,
    "failed_share": "arm:draftproof_failed_share",
    "failed_excess": FAILED_EXCESS,
    "cache_usage": "arm:draftproof_cache_usage",
    "preemptions": "arm:draftproof_preemptions_per_request",
    "acceptance_length": "arm:draftproof_acceptance_length",
    "load": "arm:draftproof_mean_requests_in_flight",
    "rate": "arm:draftproof_request_rate",
}


def watch_run(
    results: Results,
    plan: Plan,
    manifest: Manifest,
    *,
    jobs: Sequence[str] = (),
    holdout_jobs: Sequence[str] = (),
) -> Watch:
    """Return what is watched of a run's candidate once it serves traffic.

    Args:
        results: the run's results: decision and envelope.
        plan: the run's plan: rollback thresholds, and thresholds and objectives where those are open.
        manifest: the run's manifest: hashes and engine versions.
        jobs: Prometheus jobs that scrape the candidate; none: one with the plan's name and -candidate.
        holdout_jobs: jobs that scrape the hold-out, which decodes ordinarily; none: one with the plan's
            name and -holdout where the plan states a holdout_share, else nothing is compared.
    """
    jobs = tuple(jobs) or (default_job(plan),)
    holdout_jobs = tuple(holdout_jobs) or default_holdout_jobs(plan)
    run = f"{results.run_name}-{results.plan_sha256[:_HASH_LENGTH]}"
    signals = adapter_for(plan.arms.candidate.engine).signals
    limits = _limits(results, plan)
    same_engine = plan.arms.candidate.engine == plan.arms.baseline.engine
    recordings = _record(run, plan, signals, jobs, holdout_jobs if same_engine else ())
    known = {one.name for one in recordings if one.arm != "holdout"}
    alerts = (
        *list_triggers(run, plan, limits, known),
        *list_blind_spots(run, plan, signals, jobs, known),
        *list_cautions(run, plan, limits, known, results.verdict.decision),
    )
    unseen = list_unseen(
        plan, signals, has_holdout=bool(holdout_jobs), same_engine=same_engine, limits=set(limits)
    )
    return Watch(
        run_label=run,
        run_name=results.run_name,
        facts=_state_facts(results, manifest),
        engine_title=signals.title,
        recordings=recordings,
        alerts=alerts,
        unwatched=_merge((*unseen, *list_unset(limits), *list_unrated(limits, known))),
        notes=tuple(_note(plan, manifest, signals, _in_use(limits, known))),
        tail=tail_of(plan),
        limits=limits,
    )


def default_job(plan: Plan) -> str:
    """Return the name under which the candidate is taken to be scraped."""
    return f"{plan.name}-candidate"


def default_holdout_jobs(plan: Plan) -> tuple[str, ...]:
    """Return the job of the hold-out that the plan promises, none where nobody wrote a share of it down."""
    return (f"{plan.name}-holdout",) if "holdout_share" in plan.rollback.model_fields_set else ()


def _limits(results: Results, plan: Plan) -> dict[str, Limit]:
    return find_limits(plan) | find_load_limits(results, plan)


def _in_use(limits: dict[str, Limit], known: set[str]) -> dict[str, Limit]:
    """Return the limits that an alert compares with, given the series that are recorded."""
    return {
        name: limit
        for name, limit in limits.items()
        if _LIMITED[name] in known and not (name == "failed_excess" and "failed_share" in limits)
    }


def _record(
    run: str, plan: Plan, signals: Signals, jobs: Sequence[str], holdout_jobs: Sequence[str]
) -> tuple[Recording, ...]:
    candidate = tuple(record_arm("candidate", signals, jobs, plan))
    if not holdout_jobs:
        return candidate
    holdout = tuple(record_arm("holdout", signals, holdout_jobs, plan))
    pair = tuple(record_pair(run, plan, {one.name for one in candidate}))
    return (*candidate, *holdout, *pair)


def _merge(found: Sequence[Unwatched]) -> tuple[Unwatched, ...]:
    """Return each thing once, by cause: what the engine cannot tell needs no limit besides."""
    first: dict[str, str] = {}
    for one in found:
        first.setdefault(one.what, one.why)
    return tuple(
        Unwatched(what="; ".join(what for what, own in first.items() if own == why), why=why)
        for why in dict.fromkeys(first.values())
    )


def _state_facts(results: Results, manifest: Manifest) -> tuple[tuple[str, str], ...]:
    return (
        ("run", results.run_name),
        ("decision", results.verdict.decision),
        ("evidence", results.verdict.evidence_level),
        ("plan_sha256", manifest.plan_sha256),
        ("thresholds_sha256", manifest.thresholds_sha256),
        ("workload_sha256", manifest.workload_sha256),
        *(
            ("envelope", f"{entry.segment}: at most {entry.limit.short}")
            for entry in results.verdict.envelope
        ),
    )


def _note(plan: Plan, manifest: Manifest, signals: Signals, limits: dict[str, Limit]) -> Iterator[str]:
    decode = signals.decode_time
    if decode is not None and decode.caveat:
        yield f"Time per token: {decode.caveat}."
    for limit in limits.values():
        if limit.is_derived:
            yield f"The limit {limit.value:.6g} follows from {limit.source}; [rollback] leaves it open."
    if plan.arms.candidate.engine == "generic":
        return
    facts = adapter_for(plan.arms.candidate.engine).facts
    version = next((arm.engine_version for arm in manifest.arms if arm.arm == "candidate"), "")
    if facts.checked and facts.find_release(version) is None:
        checked = ", ".join(release.version for release in facts.checked)
        yield (
            f"The names of the metrics were checked with {facts.title} {checked}; the run had "
            f"{version or 'an unknown version'}. DraftproofNotObserved fires where they are gone."
        )
