"""The alerts: the plan's rollback triggers, what would make the verdict no longer hold, and blindness itself.

A table of conditions over the recorded series, so that they can be read and the dashboard shows the same. An
alert is left out where the engine has no number for it or the plan no limit. A rule over a series that does
not exist never fires, so the absence of a series is an alert of its own. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.plan.limits import Limit, tail_of
from draftproof.plan.schema import Plan
from draftproof.plan.tables import Approval
from draftproof.services.engines.facts import Sample, Signals
from draftproof.tell.monitoring.recordings import (
    CANDIDATE_SERIES,
    FAILED_EXCESS,
    SLOWDOWN,
    arm_series,
    floor,
    pair_series,
    quote,
    select,
)

Severity = Literal["critical", "warning", "info"]
ADOPTING = ("adopt", "adopt_limited")
SECONDS_A_DAY = 86_400
_LATER = "Then compare prompts, load and engine version with the run before it is switched on again."
# The value of an alert, as Prometheus templates write it.
_WRITTEN = {
    "seconds": '{{ $value | printf "%.3f" }} s',
    "number": '{{ $value | printf "%.2f" }}',
    "count": '{{ $value | printf "%.0f" }}',
    "share": "{{ $value | humanizePercentage }}",
    "instance": "{{ $labels.instance }}",
}


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert: condition, how long it must hold, and what a person reads and does.

    `rolls_back` marks the triggers of `[rollback]`; the others ask for a look. `summary` may hold the value
    as Prometheus templates write it.
    """

    name: str
    expr: str
    for_s: int
    severity: Severity
    rolls_back: bool
    summary: str
    description: str
    runbook: str


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What alerts are made from.

    `run` is the value of the label `run`, `known` names the series that are recorded for the candidate and
    for the pair, `jobs` scrape the candidate. `limits` are what alerts compare with.
    """

    run: str
    plan: Plan
    signals: Signals
    jobs: Sequence[str]
    limits: Mapping[str, Limit]
    known: frozenset[str]
    decision: str


class _Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: texts with the names of series, of the limit and of values in braces.

    `needs` are the recorded series without which there is no alert, `limit` the limit that it compares with.
    `look` is what to do; without it the alert rolls back. `for_s` names the key of `[rollback]`.
    """

    name: str
    needs: tuple[str, ...]
    expr: str
    summary: str
    description: str
    limit: str = ""
    look: str = ""
    severity: Severity = "warning"
    for_s: str = "for_s"


_TAIL_NOTE = (
    "The limit is {source}. The quantile is read off the engine's buckets and as fine as they are; it holds "
    "answered requests only: failures have their own alert."
)
_TRIGGERS = (
    _Rule(
        name="DraftproofFirstTokenTail",
        needs=("tail_ttft_seconds",),
        limit="tail_ttft_s",
        expr="{tail_ttft_seconds} > {limit}\nand {floor_tail}",
        summary="{quantile} of the first token is {seconds}, above {limit} s",
        description=_TAIL_NOTE,
    ),
    _Rule(
        name="DraftproofTokenTail",
        needs=("tail_time_per_token_seconds",),
        limit="tail_tpot_s",
        expr="{tail_time_per_token_seconds} > {limit}\nand {floor_tail}",
        summary="{quantile} of the time per token is {seconds}, above {limit} s",
        description=_TAIL_NOTE,
    ),
    _Rule(
        name="DraftproofNetSlowdown",
        needs=(SLOWDOWN,),
        limit="slowdown",
        expr="{slowdown} > {limit}",
        summary="time per token is {number} times the hold-out's, above {limit}",
        description="The limit is {source}. The hold-out must get a random share of the same traffic; if its "
        "replicas carry less load each, its tokens are faster for that reason alone.",
    ),
    _Rule(
        name="DraftproofFailures",
        needs=("failed_share",),
        limit="failed_share",
        expr="{failed_share} > {limit}\nand {floor_attempted}",
        summary="{share} of the requests failed, above {limit}",
        description="The limit is {source}.",
    ),
    _Rule(
        name="DraftproofFailures",
        needs=(FAILED_EXCESS,),
        limit="failed_excess",
        expr="{failed_excess} > {limit}",
        summary="the share of failed requests is {share} above the hold-out's, more than {limit}",
        description="The limit is {source}, the excess that the verdict allowed; rollback.max_failed_share "
        "would limit the share itself.",
    ),
    _Rule(
        name="DraftproofStandstill",
        needs=("requests_in_flight", "generated_tokens"),
        expr="sum by (arm, run) ({requests_in_flight}) > 0\nand {generated_tokens} == 0",
        summary="{count} requests are in flight and no token was counted in {window_s} s",
        description="Requests that never end are in no percentile and in no share of failures. Where an "
        "engine counts tokens when an answer ends, rollback.window_s must exceed the longest answer.",
    ),
    _Rule(
        name="DraftproofCachePressure",
        needs=("cache_usage",),
        limit="cache_usage",
        expr="{cache_usage} > {limit}",
        summary="{share} of the key-value cache of {instance} is in use, above {limit}",
        description="The limit is {source}. A drafter takes cache from the target: under pressure requests "
        "wait or begin again, and the load at which objectives hold falls.",
        for_s="cache_for_s",
    ),
)
_NOT_OBSERVED = _Rule(
    name="DraftproofNotObserved",
    needs=("generated_tokens",),
    expr="absent({generated_tokens})",
    summary="no metrics of the candidate: every other alert is silent",
    description="The scrape job has another name, the target is down, or a release renamed its metrics.",
    look="Check the targets in Prometheus and the job names that the rules were made with.",
    severity="critical",
)
_NO_COMPARISON = _Rule(
    name="DraftproofNoComparison",
    needs=(SLOWDOWN,),
    expr="{finished_requests} >= {least}\nunless ignoring(arm) {holdout_finished} >= {least}",
    summary="the candidate finished {count} requests, the hold-out fewer than {least}: no slowdown can be "
    "seen",
    description="The plan keeps {holdout_share} of the traffic on ordinary decoding.",
    look="Check the hold-out's job and its share of the traffic, or lengthen rollback.window_s.",
)
_CAUTIONS = (
    _Rule(
        name="DraftproofDrafterIdle",
        needs=("drafting", "generated_tokens"),
        expr="({drafting} == 0\n  and {generated_tokens} > 0)\nand {floor}",
        summary="no draft in {window_s} s while tokens flow",
        description="The candidate decodes ordinarily: it pays for the drafter's memory and gains nothing. A "
        "policy that pauses drafting, or prompts without a match for look-up, can do this by design.",
        look="Look for a failed drafter in the engine's log, a changed flag, or a gate on acceptance that "
        "closed for good. If drafting does not come back, roll back: the drafter costs memory for nothing.",
    ),
    _Rule(
        name="DraftproofLowAcceptance",
        needs=("acceptance_length",),
        limit="acceptance_length",
        expr="{acceptance_length} < {limit}\nand {floor}",
        summary="a verification step brings {number} tokens, below {limit}",
        description="The limit is {source}. Acceptance warns early; it is never a reason to roll back by "
        "itself, the time per token is.",
        look="Compare the mix of tasks and languages with the run's, and target and drafter with their "
        "hashes.",
    ),
    _Rule(
        name="DraftproofPreemptions",
        needs=("preemptions_per_request",),
        limit="preemptions",
        expr="{preemptions_per_request} > {limit}\nand {floor}",
        summary="{number} preemptions per request, above {limit}",
        description="The limit is {source}. A preempted request loses its cache and begins again.",
        look="Lower the number of requests per replica, or roll back to give the drafter's memory to the "
        "cache.",
    ),
    _Rule(
        name="DraftproofLoadBeyondEnvelope",
        needs=("mean_requests_in_flight",),
        limit="load",
        expr="{mean_requests_in_flight} > {limit}",
        summary="{number} requests in flight on {instance}, the mean over {window_s} s, more than the "
        "{limit} of the envelope",
        description="The limit is {source}. Beyond it nothing was shown; a full batch is where drafts cost "
        "most.",
        look="Send what is above the envelope to ordinary decoding, or measure this load and extend the "
        "envelope.",
    ),
    _Rule(
        name="DraftproofRateBeyondEnvelope",
        needs=("request_rate",),
        limit="rate",
        expr="{request_rate} > {limit}",
        summary="{number} requests a second on {instance}, the mean over {window_s} s, more than the "
        "{limit} of the envelope",
        description="The limit is {source}. Beyond it nothing was shown. Requests count when they end, so a "
        "service that falls behind shows less than what comes: look at those in flight too.",
        look="Send what is above the envelope to ordinary decoding, or measure this rate and extend the "
        "envelope.",
    ),
)
_NO_ENVELOPE = _Rule(
    name="DraftproofOutsideEnvelope",
    needs=("generated_tokens",),
    expr="{generated_tokens} > 0",
    summary="the candidate serves traffic, and the verdict of the run is {decision}",
    description="No traffic is inside an envelope, because there is none.",
    look="Send the traffic to ordinary decoding, or settle the verdict first.",
)
_RESTARTED = _Rule(
    name="DraftproofRestarted",
    needs=("restarts",),
    expr="{restarts} > 0",
    summary="counters of the candidate began again {count} times in {window_s} s",
    description="Rates allow for it; the engine may have come back as another version or with other flags.",
    look="Run draftproof verify with --deployment: a changed version, hash or flag voids the approval.",
    severity="info",
    for_s="",
)
_OTHER_MODEL = _Rule(
    name="DraftproofOtherModel",
    needs=(),
    expr="count({other_model}) > 0",
    summary="the candidate serves a model other than {model}",
    description="The verdict holds for one target and one drafter.",
    look="Find out which model is deployed; the verdict of this run says nothing about it.",
    severity="critical",
)
_ENDED = _Rule(
    name="DraftproofApprovalEnded",
    needs=(),
    expr="vector(time()) >= {end}",
    summary="the approval of this candidate ended on {day} (UTC)",
    description="A verdict ages: traffic, engine and prices move.",
    look="Measure again and have the new run approved, or go back to ordinary decoding.",
)


def list_alerts(watched: Watched) -> Iterator[Alert]:
    """Yield rollback triggers, then what guards the other alerts, then what asks for a look."""
    rules = [*_TRIGGERS, _NOT_OBSERVED, _NO_COMPARISON]
    if watched.signals.model_label and watched.signals.running and watched.plan.arms.candidate.served_model:
        rules.append(_OTHER_MODEL)
    if watched.plan.approval.valid_until is not None:
        rules.append(_ENDED)
    rules += [*_CAUTIONS, *(() if watched.decision in ADOPTING else (_NO_ENVELOPE,)), _RESTARTED]
    values = _list_values(watched)
    names = set[str]()  # the excess of failures stands in where no limit of their share does
    for rule in rules:
        if rule.name not in names and _applies(rule, watched):
            names.add(rule.name)
            yield _build(rule, watched, values)


def _applies(rule: _Rule, watched: Watched) -> bool:
    series = (name if ":" in name else f"arm:draftproof_{name}" for name in rule.needs)
    return watched.known.issuperset(series) and (not rule.limit or rule.limit in watched.limits)


def _list_values(watched: Watched) -> dict[str, object]:
    """Return what the texts of the table may name, all but the limit."""
    run, plan, rollback = watched.run, watched.plan, watched.plan.rollback
    day, model = plan.approval.valid_until, plan.arms.candidate.served_model or ""
    running, label = watched.signals.running, watched.signals.model_label
    other = Sample(running.name, f"{label}!={quote(model)}") if running and label else None
    return {
        **{name: arm_series(name, "candidate", run) for name in CANDIDATE_SERIES},
        **_WRITTEN,
        "slowdown": pair_series(SLOWDOWN, run),
        "failed_excess": pair_series(FAILED_EXCESS, run),
        "holdout_finished": arm_series("finished_requests", "holdout", run),
        "floor": floor(run, plan),
        "floor_tail": floor(run, plan, tail=True),
        "floor_attempted": floor(run, plan, what="attempted_requests"),
        "quantile": tail_of(plan),
        "window_s": rollback.window_s,
        "least": rollback.minimum_requests,
        "holdout_share": f"{rollback.holdout_share:.0%}",
        "decision": watched.decision,
        "model": literal(model),
        "other_model": select(other, watched.jobs) if other else "",
        "day": day.isoformat() if day else "",
        "end": (day.toordinal() - type(day)(1970, 1, 1).toordinal() + 1) * SECONDS_A_DAY if day else 0,
    }


def _build(rule: _Rule, watched: Watched, values: Mapping[str, object]) -> Alert:
    limit, plan = watched.limits.get(rule.limit), watched.plan
    known = {**values, "limit": f"{limit.value:.6g}", "source": limit.source} if limit else values
    return Alert(
        name=rule.name,
        expr=rule.expr.format_map(known),
        for_s=getattr(plan.rollback, rule.for_s) if rule.for_s else 0,
        severity=rule.severity if rule.look else "critical",
        rolls_back=not rule.look,
        summary=rule.summary.format_map(known),
        description=rule.description.format_map(known),
        runbook=f"{rule.look or _say_rollback(plan.approval)}{_say_owner(plan.approval)}",
    )


def literal(text: str) -> str:
    """Return a text as it must be written where Prometheus would take {{ for a template."""
    return text.replace("{{", '{{ "{{" }}')


def _say_rollback(approval: Approval) -> str:
    artefact = (
        f"deploy {literal(approval.rollback_artefact)}"
        if approval.rollback_artefact
        else "switch speculation off in the candidate (the plan names no approval.rollback_artefact)"
    )
    return f"Roll back: {artefact}. {_LATER}"


def _say_owner(approval: Approval) -> str:
    return f" Owner: {literal(approval.owner)}." if approval.owner else ""
