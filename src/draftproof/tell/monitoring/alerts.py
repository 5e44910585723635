"""The alerts: the plan's rollback triggers, and what would make the verdict no longer hold. Pure.

Each function returns an alert, or nothing where the engine has no number for it or the plan no limit. A
condition is written over the recorded series, so that it can be read and the dashboard shows the same.
"""

from collections.abc import Iterator

import msgspec

from draftproof.plan.limits import Limit, tail_of
from draftproof.plan.schema import Plan
from draftproof.tell.monitoring.recordings import FAILED_EXCESS, SLOWDOWN, arm_series, floor, pair_series
from draftproof.tell.monitoring.watch import (
    ADOPTING,
    COUNT,
    NUMBER,
    SECONDS,
    SHARE,
    Alert,
    say_look,
    say_rollback,
)

_TAILS = (
    ("tail_ttft_s", "tail_ttft_seconds", "DraftproofFirstTokenTail", "the first token"),
    ("tail_tpot_s", "tail_time_per_token_seconds", "DraftproofTokenTail", "the time per token"),
)
_LATER = "Then compare prompts, load and engine version with the run before it is switched on again."


def list_triggers(run: str, plan: Plan, limits: dict[str, Limit], known: set[str]) -> Iterator[Alert]:
    """Yield the rollback triggers: tails, net slowdown, failures, a stand-still, sustained cache pressure.

    Args:
        run: the value of the label `run`.
        plan: the plan.
        limits: what the alerts compare with.
        known: names of the series that are recorded for the candidate and for the pair.
    """
    for key, what, name, words in _TAILS:
        if key in limits and f"arm:draftproof_{what}" in known:
            yield _tail(run, plan, limits[key], (what, name, words))
    if SLOWDOWN in known:
        yield _slowdown(run, plan, limits["slowdown"])
    if "failed_share" in limits and "arm:draftproof_failed_share" in known:
        yield _failed(run, plan, limits["failed_share"])
    elif FAILED_EXCESS in known:
        yield _failed_excess(run, plan, limits["failed_excess"])
    if {"arm:draftproof_requests_in_flight", "arm:draftproof_generated_tokens"} <= known:
        yield _standstill(run, plan)
    if "arm:draftproof_cache_usage" in known:
        yield _cache(run, plan, limits["cache_usage"])


def _candidate(what: str, run: str) -> str:
    return arm_series(what, "candidate", run)


def _trigger(
    plan: Plan, name: str, expr: str, *, summary: str, description: str, for_s: int | None = None
) -> Alert:
    return Alert(
        name=name,
        expr=expr,
        for_s=plan.rollback.for_s if for_s is None else for_s,
        severity="critical",
        rolls_back=True,
        summary=summary,
        description=description,
        runbook=say_rollback(plan, _LATER),
    )


def _tail(run: str, plan: Plan, limit: Limit, which: tuple[str, str, str]) -> Alert:
    what, name, words = which
    quantile = tail_of(plan)
    return _trigger(
        plan,
        name,
        f"{_candidate(what, run)} > {limit.value:.6g}\nand {floor(run, plan, tail=True)}",
        summary=f"{quantile} of {words} is {SECONDS}, above {limit.value:.6g} s",
        description=(
            f"The limit is {limit.source}. The quantile is read off the engine's buckets and as fine as "
            "they are; it holds answered requests only: failures have their own alert."
        ),
    )


def _slowdown(run: str, plan: Plan, limit: Limit) -> Alert:
    return _trigger(
        plan,
        "DraftproofNetSlowdown",
        f"{pair_series(SLOWDOWN, run)} > {limit.value:.6g}",
        summary=f"time per token is {NUMBER} times the hold-out's, above {limit.value:.6g}",
        description=(
            f"The limit is {limit.source}. The hold-out must get a random share of the same traffic; if "
            "its replicas carry less load each, its tokens are faster for that reason alone."
        ),
    )


def _failed(run: str, plan: Plan, limit: Limit) -> Alert:
    enough = floor(run, plan, what="attempted_requests")
    return _trigger(
        plan,
        "DraftproofFailures",
        f"{_candidate('failed_share', run)} > {limit.value:.6g}\nand {enough}",
        summary=f"{SHARE} of the requests failed, above {limit.value:.6g}",
        description=f"The limit is {limit.source}.",
    )


def _failed_excess(run: str, plan: Plan, limit: Limit) -> Alert:
    return _trigger(
        plan,
        "DraftproofFailures",
        f"{pair_series(FAILED_EXCESS, run)} > {limit.value:.6g}",
        summary=f"the share of failed requests is {SHARE} above the hold-out's, more than {limit.value:.6g}",
        description=(
            f"The limit is {limit.source}, the excess that the verdict allowed; rollback.max_failed_share "
            "would limit the share itself."
        ),
    )


def _standstill(run: str, plan: Plan) -> Alert:
    return _trigger(
        plan,
        "DraftproofStandstill",
        f"sum by (arm, run) ({_candidate('requests_in_flight', run)}) > 0\n"
        f"and {_candidate('generated_tokens', run)} == 0",
        summary=f"{COUNT} requests are in flight and no token was counted in {plan.rollback.window_s} s",
        description=(
            "Requests that never end are in no percentile and in no share of failures. Where an engine "
            "counts tokens when an answer ends, rollback.window_s must exceed the longest answer."
        ),
    )


def _cache(run: str, plan: Plan, limit: Limit) -> Alert:
    return _trigger(
        plan,
        "DraftproofCachePressure",
        f"{_candidate('cache_usage', run)} > {limit.value:.6g}",
        summary=(
            f"{SHARE} of the key-value cache of {{{{ $labels.instance }}}} is in use, above {limit.value:.6g}"
        ),
        description=(
            f"The limit is {limit.source}. A drafter takes cache from the target: under pressure requests "
            "wait or begin again, and the load at which objectives hold falls."
        ),
        for_s=plan.rollback.cache_for_s,
    )


def list_cautions(
    run: str, plan: Plan, limits: dict[str, Limit], known: set[str], decision: str
) -> Iterator[Alert]:
    """Yield what asks for a look: the drafter, preemptions, load beyond the envelope, restarts, the end.

    Args:
        run: the value of the label `run`.
        plan: the plan.
        limits: what the alerts compare with; `load` is the envelope's, absent without an envelope.
        known: names of the series that are recorded for the candidate and for the pair.
        decision: the verdict of the run.
    """
    if {"arm:draftproof_drafting", "arm:draftproof_generated_tokens"} <= known:
        yield _idle(run, plan)
    if "acceptance_length" in limits and "arm:draftproof_acceptance_length" in known:
        yield _acceptance(run, plan, limits["acceptance_length"])
    if "arm:draftproof_preemptions_per_request" in known:
        yield _preemptions(run, plan, limits["preemptions"])
    if "load" in limits and "arm:draftproof_mean_requests_in_flight" in known:
        yield _load(run, plan, limits["load"])
    if "rate" in limits and "arm:draftproof_request_rate" in known:
        yield _rate(run, plan, limits["rate"])
    if decision not in ADOPTING and "arm:draftproof_generated_tokens" in known:
        yield _no_envelope(run, plan, decision)
    if "arm:draftproof_restarts" in known:
        yield _restart(run, plan)


def _caution(plan: Plan, name: str, expr: str, *, summary: str, description: str, look: str) -> Alert:
    return Alert(
        name=name,
        expr=expr,
        for_s=plan.rollback.for_s,
        severity="warning",
        rolls_back=False,
        summary=summary,
        description=description,
        runbook=say_look(plan, look),
    )


def _idle(run: str, plan: Plan) -> Alert:
    return _caution(
        plan,
        "DraftproofDrafterIdle",
        f"({_candidate('drafting', run)} == 0\n"
        f"  and {_candidate('generated_tokens', run)} > 0)\nand {floor(run, plan)}",
        summary=f"no draft in {plan.rollback.window_s} s while tokens flow",
        description=(
            "The candidate decodes ordinarily: it pays for the drafter's memory and gains nothing. A "
            "policy that pauses drafting, or prompts without a match for look-up, can do this by design."
        ),
        look=(
            "Look for a failed drafter in the engine's log, a changed flag, or a gate on acceptance that "
            "closed for good. If drafting does not come back, roll back: the drafter costs memory for "
            "nothing."
        ),
    )


def _acceptance(run: str, plan: Plan, limit: Limit) -> Alert:
    return _caution(
        plan,
        "DraftproofLowAcceptance",
        f"{_candidate('acceptance_length', run)} < {limit.value:.6g}\nand {floor(run, plan)}",
        summary=f"a verification step brings {NUMBER} tokens, below {limit.value:.6g}",
        description=(
            f"The limit is {limit.source}. Acceptance warns early; it is never a reason to roll back by "
            "itself, the time per token is."
        ),
        look=(
            "Compare the mix of tasks and languages with the run's, and target and drafter with their hashes."
        ),
    )


def _preemptions(run: str, plan: Plan, limit: Limit) -> Alert:
    return _caution(
        plan,
        "DraftproofPreemptions",
        f"{_candidate('preemptions_per_request', run)} > {limit.value:.6g}\nand {floor(run, plan)}",
        summary=f"{NUMBER} preemptions per request, above {limit.value:.6g}",
        description=f"The limit is {limit.source}. A preempted request loses its cache and begins again.",
        look=(
            "Lower the number of requests per replica, or roll back to give the drafter's memory to the "
            "cache."
        ),
    )


def _load(run: str, plan: Plan, limit: Limit) -> Alert:
    return _caution(
        plan,
        "DraftproofLoadBeyondEnvelope",
        f"{_candidate('mean_requests_in_flight', run)} > {limit.value:.6g}",
        summary=(
            f"{NUMBER} requests in flight on {{{{ $labels.instance }}}}, the mean over "
            f"{plan.rollback.window_s} s, more than the {limit.value:.6g} of the envelope"
        ),
        description=(
            f"The limit is {limit.source}. Beyond it nothing was shown; a full batch is where drafts cost "
            "most."
        ),
        look=(
            "Send what is above the envelope to ordinary decoding, or measure this load and extend the "
            "envelope."
        ),
    )


def _rate(run: str, plan: Plan, limit: Limit) -> Alert:
    return _caution(
        plan,
        "DraftproofRateBeyondEnvelope",
        f"{_candidate('request_rate', run)} > {limit.value:.6g}",
        summary=(
            f"{NUMBER} requests a second on {{{{ $labels.instance }}}}, the mean over "
            f"{plan.rollback.window_s} s, more than the {limit.value:.6g} of the envelope"
        ),
        description=(
            f"The limit is {limit.source}. Beyond it nothing was shown. Requests count when they end, so a "
            "service that falls behind shows less than what comes: look at those in flight too."
        ),
        look=(
            "Send what is above the envelope to ordinary decoding, or measure this rate and extend the "
            "envelope."
        ),
    )


def _no_envelope(run: str, plan: Plan, decision: str) -> Alert:
    return _caution(
        plan,
        "DraftproofOutsideEnvelope",
        f"{_candidate('generated_tokens', run)} > 0",
        summary=f"the candidate serves traffic, and the verdict of the run is {decision}",
        description="No traffic is inside an envelope, because there is none.",
        look="Send the traffic to ordinary decoding, or settle the verdict first.",
    )


def _restart(run: str, plan: Plan) -> Alert:
    alert = _caution(
        plan,
        "DraftproofRestarted",
        f"{_candidate('restarts', run)} > 0",
        summary=f"counters of the candidate began again {COUNT} times in {plan.rollback.window_s} s",
        description=(
            "Rates allow for it; the engine may have come back as another version or with other flags."
        ),
        look="Run draftproof verify with --deployment: a changed version, hash or flag voids the approval.",
    )
    return msgspec.structs.replace(alert, for_s=0, severity="info")
