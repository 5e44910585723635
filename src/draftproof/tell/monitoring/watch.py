"""What is watched of a run's candidate in operation: series, alerts, limits, and what cannot be watched.

Made here from a run and its plan, and rendered by `rules` and `dashboard`. Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import Results
from draftproof.plan.limits import Limit, find_limits, tail_of, write_rate
from draftproof.plan.schema import Plan
from draftproof.services.engines import adapter_for
from draftproof.services.engines.facts import Signals
from draftproof.tell.monitoring.alerts import ADOPTING, Alert, Watched, list_alerts
from draftproof.tell.monitoring.recordings import (
    FAILED_EXCESS,
    SLOWDOWN,
    Recording,
    record_arm,
    record_pair,
)


class Unwatched(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no rule watches, and why."""

    what: str
    why: str


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a rule file and a dashboard are made from.

    `run_label` is the value of the label `run` of every series and alert. `facts` tie the rules to the run,
    as (label, text). `recordings` stand in the order in which they build on each other, `alerts` by urgency.
    `tail` is the quantile of the tail objectives, e.g. "p95"; `limits` are lines in a dashboard.
    """

    run_label: str
    run_name: str
    facts: tuple[tuple[str, str], ...]
    engine_title: str
    recordings: tuple[Recording, ...]
    alerts: tuple[Alert, ...]
    unwatched: tuple[Unwatched, ...]
    notes: tuple[str, ...]
    tail: str
    limits: dict[str, Limit]


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

    `jobs` and `holdout_jobs` are Prometheus jobs that scrape the candidate and the hold-out, which decodes
    ordinarily; none: jobs of the plan's name with -candidate and, where the plan states a holdout_share, with
    -holdout.
    """
    jobs = tuple(jobs) or (default_job(plan),)
    holdout_jobs = tuple(holdout_jobs) or default_holdout_jobs(plan)
    run = f"{results.run_name}-{results.plan_sha256[:_HASH_LENGTH]}"
    signals = adapter_for(plan.arms.candidate.engine).signals
    limits = find_limits(plan) | find_load_limits(results, plan)
    same_engine = plan.arms.candidate.engine == plan.arms.baseline.engine
    recordings = _record(run, plan, signals, jobs, holdout_jobs if same_engine else ())
    known = {one.name for one in recordings if one.arm != "holdout"}
    watched = Watched(
        run=run,
        plan=plan,
        signals=signals,
        jobs=jobs,
        limits=limits,
        known=frozenset(known),
        decision=results.verdict.decision,
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
        alerts=tuple(list_alerts(watched)),
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


T = TypeVar("T", int, float)


def find_load_limits(results: Results, plan: Plan) -> dict[str, Limit]:
    """Return the most requests in flight ("load") and per second ("rate") of one replica inside the envelope.

    The run's load went to all replicas of the candidate together, so a replica's part is taken. None of what
    no entry of the envelope states.
    """
    entries = results.verdict.envelope if results.verdict.decision in ADOPTING else ()
    counts = {one.max_concurrency for one in entries if one.max_concurrency is not None}
    rates = {one.max_rps for one in entries if one.max_rps is not None}
    load = _share(counts, plan, lambda most: f"load of {most:,} request{'' if most == 1 else 's'}")
    rate = _share(rates, plan, lambda most: f"rate of {write_rate(most)}")
    return {name: limit for name, limit in (("load", load), ("rate", rate)) if limit is not None}


def _share(values: AbstractSet[T], plan: Plan, write: Callable[[T], str]) -> Limit | None:
    if not values:
        return None
    replicas = max(len(plan.arms.candidate.metrics_urls), 1)
    most = max(values)
    widest = "" if len(values) == 1 else " of its widest segment"
    part = "" if replicas == 1 else f" over {replicas} replicas"
    return Limit(value=most / replicas, source=f"the envelope's highest {write(most)}{widest}{part}")


def list_unset(limits: dict[str, Limit]) -> list[Unwatched]:
    """Return the alerts that no key of the plan gives a limit for."""
    keys = {
        "tail_ttft_s": ("first token at the tail", "rollback.max_ttft_ms or objectives.ttft_ms"),
        "tail_tpot_s": ("time per token at the tail", "rollback.max_tpot_ms or objectives.tpot_ms"),
        "acceptance_length": ("low acceptance length", "rollback.min_acceptance_length"),
    }
    return [
        Unwatched(what=what, why=f"the plan sets no limit: give {key}")
        for name, (what, key) in keys.items()
        if name not in limits
    ]


def list_unrated(limits: dict[str, Limit], known: AbstractSet[str]) -> list[Unwatched]:
    """Return the envelope's rate where the engine counts no requests to hold against it."""
    if "rate" not in limits or "arm:draftproof_request_rate" in known:
        return []
    why = "the engine counts no requests: limit the rate where requests come in"
    return [Unwatched(what="rate beyond the envelope", why=why)]


# What a signal is for, in the words of the list.
_WORDS = {
    "time_per_token_seconds": "net slowdown against the hold-out",
    "tail_time_per_token_seconds": "time per token at the tail",
    "tail_ttft_seconds": "first token at the tail",
    "failed_share": "failed requests",
    "drafting": "an idle drafter",
    "acceptance_length": "acceptance length",
    "cache_usage": "sustained cache pressure",
    "preemptions_per_request": "preemptions",
    "requests_in_flight": "load beyond the envelope",
    "model": "the model that is served",
    "restarts": "restarts",
}


def list_unseen(
    plan: Plan, signals: Signals, *, has_holdout: bool, same_engine: bool, limits: set[str]
) -> Iterator[Unwatched]:
    """Yield what no rule watches, whatever the plan says, and what this engine cannot tell."""
    for signal, why in signals.missing.items():
        yield Unwatched(what=_WORDS[signal], why=f"{signals.title}: {why}")
    if not has_holdout:
        yield Unwatched(what="net slowdown", why="no job of a hold-out is named: give --holdout-job")
        if "failed_share" not in limits:
            yield Unwatched(
                what="failed requests",
                why="no hold-out to compare with: give --holdout-job or rollback.max_failed_share",
            )
    elif not same_engine:
        why = "hold-out and candidate run different engines, whose numbers are different quantities"
        yield Unwatched(what="net slowdown", why=why)
    if signals.model_label and not plan.arms.candidate.served_model:
        yield Unwatched(what=_WORDS["model"], why="the plan does not name it: give served_model of the arm")
    yield Unwatched(
        what=f"critical errors of the application (at most {plan.rollback.critical_errors} in "
        f"{plan.rollback.window_s} s)",
        why="no engine judges its answers: count failed checks where answers are judged, and stop there",
    )
    yield Unwatched(
        what="segments of the traffic",
        why="engines label neither task nor language: keep them apart by job, or in what routes the requests",
    )
    yield Unwatched(
        what="version, hashes and flags",
        why="not in the metrics: run draftproof verify with --deployment after every change",
    )
