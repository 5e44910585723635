"""Alerts for when the other alerts see nothing, and the list of what no alert can see. Pure.

A rule over a series that does not exist never fires. So the absence of a series is an alert of its own.
"""

from collections.abc import Iterator, Sequence

from draftproof.plan.schema import Plan
from draftproof.services.engines.signals import Sample, Signals
from draftproof.tell.monitoring.recordings import SLOWDOWN, arm_series, quote, select
from draftproof.tell.monitoring.watch import COUNT, Alert, ArmRole, Severity, Unwatched, literal, say_look

_SECONDS_A_DAY = 86_400
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


def list_blind_spots(
    run: str, plan: Plan, signals: Signals, jobs: Sequence[str], known: set[str]
) -> Iterator[Alert]:
    """Yield the alerts that guard the others: no series, no comparison, another model, an approval's end."""
    if "arm:draftproof_generated_tokens" in known:
        yield _not_observed(run, plan, "candidate", "DraftproofNotObserved")
    if SLOWDOWN in known:
        yield _holdout_silent(run, plan)
    if signals.model_label and signals.running and plan.arms.candidate.served_model:
        yield _other_model(plan, signals.running, signals.model_label, jobs)
    if plan.approval.valid_until is not None:
        yield _expired(plan)


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


def _not_observed(run: str, plan: Plan, arm: ArmRole, name: str) -> Alert:
    return _guard(
        plan,
        name,
        f"absent({arm_series('generated_tokens', arm, run)})",
        summary=f"no metrics of the {arm}: every other alert is silent",
        description="The scrape job has another name, the target is down, or a release renamed its metrics.",
        look="Check the targets in Prometheus and the job names that the rules were made with.",
        severity="critical",
    )


def _holdout_silent(run: str, plan: Plan) -> Alert:
    least = plan.rollback.minimum_requests
    candidate, holdout = (arm_series("finished_requests", arm, run) for arm in ("candidate", "holdout"))
    return _guard(
        plan,
        "DraftproofNoComparison",
        f"{candidate} >= {least}\nunless ignoring(arm) {holdout} >= {least}",
        summary=(
            f"the candidate finished {COUNT} requests, the hold-out fewer than {least}: no slowdown can "
            "be seen"
        ),
        description=f"The plan keeps {plan.rollback.holdout_share:.0%} of the traffic on ordinary decoding.",
        look="Check the hold-out's job and its share of the traffic, or lengthen rollback.window_s.",
    )


def _other_model(plan: Plan, running: Sample, label: str, jobs: Sequence[str]) -> Alert:
    wanted = plan.arms.candidate.served_model or ""
    other = Sample(running.name, f"{label}!={quote(wanted)}")
    return _guard(
        plan,
        "DraftproofOtherModel",
        f"count({select(other, jobs)}) > 0",
        summary=f"the candidate serves a model other than {literal(wanted)}",
        description="The verdict holds for one target and one drafter.",
        look="Find out which model is deployed; the verdict of this run says nothing about it.",
        severity="critical",
    )


def _expired(plan: Plan) -> Alert:
    day = plan.approval.valid_until
    assert day is not None  # noqa: S101 - narrowed by the caller
    end = (day.toordinal() - type(day)(1970, 1, 1).toordinal() + 1) * _SECONDS_A_DAY
    return _guard(
        plan,
        "DraftproofApprovalEnded",
        f"vector(time()) >= {end}",
        summary=f"the approval of this candidate ended on {day.isoformat()} (UTC)",
        description="A verdict ages: traffic, engine and prices move.",
        look="Measure again and have the new run approved, or go back to ordinary decoding.",
    )


def _guard(
    plan: Plan,
    name: str,
    expr: str,
    *,
    summary: str,
    description: str,
    look: str,
    severity: Severity = "warning",
) -> Alert:
    return Alert(
        name=name,
        expr=expr,
        for_s=plan.rollback.for_s,
        severity=severity,
        rolls_back=False,
        summary=summary,
        description=description,
        runbook=say_look(plan, look),
    )
