"""What is watched of a run's candidate in operation: recorded series, alerts, and what cannot be watched.

Pure data, made by `watching.watch_run` and rendered by `rules` and `dashboard`.

The limits of alerts that no plan gives alone: the envelope's load, and those that nothing gives. Pure.

What a person reads in an alert: the value in it, why it matters, and what to do. Pure.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Literal, TypeVar

import msgspec

from draftproof.judge.results.run import Results
from draftproof.plan.limits import Limit
from draftproof.plan.load_size import write_rate
from draftproof.plan.schema import Plan
from draftproof.plan.tables import Approval

Severity = Literal["critical", "warning", "info"]
ArmRole = Literal["candidate", "holdout"]


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A series that Prometheus computes and keeps.

    `comment` says what it is; `arm` is None for a series of both arms. `by_instance`: one value a replica.
    """

    name: str
    arm: ArmRole | None
    expr: str
    comment: str
    by_instance: bool = False


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


class Unwatched(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no rule watches, and why."""

    what: str
    why: str


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a rule file and a dashboard are made from.

    Attributes:
        run_label: value of the label `run` of every series and alert.
        run_name: the run, by name.
        facts: label and text of what ties the rules to the run: hashes, decision, envelope.
        engine_title: the candidate's engine, for people.
        recordings: in the order in which they build on each other.
        alerts: in order of urgency.
        unwatched: what no rule watches.
        notes: what to know of the numbers, a sentence each.
        tail: the quantile of the tail objectives, e.g. "p95".
        limits: limit by what it limits, for lines in a dashboard.
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


T = TypeVar("T", int, float)

ADOPTING = ("adopt", "adopt_limited")


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


SECONDS = '{{ $value | printf "%.3f" }} s'
NUMBER = '{{ $value | printf "%.2f" }}'
COUNT = '{{ $value | printf "%.0f" }}'
SHARE = "{{ $value | humanizePercentage }}"


def literal(text: str) -> str:
    """Return a text as it must be written where Prometheus would take {{ for a template."""
    return text.replace("{{", '{{ "{{" }}')


def say_rollback(plan: Plan, then: str = "") -> str:
    """Return what to do to go back to ordinary decoding."""
    approval = plan.approval
    artefact = (
        f"deploy {literal(approval.rollback_artefact)}"
        if approval.rollback_artefact
        else "switch speculation off in the candidate (the plan names no approval.rollback_artefact)"
    )
    return f"Roll back: {artefact}.{' ' + then if then else ''}{_say_owner(approval)}"


def say_look(plan: Plan, what: str) -> str:
    """Return what to look at before anything is switched."""
    return f"{what}{_say_owner(plan.approval)}"


def _say_owner(approval: Approval) -> str:
    return f" Owner: {literal(approval.owner)}." if approval.owner else ""
