"""What is watched of a run's candidate in operation: recorded series, alerts, and what cannot be watched.

Pure data, made by `watching.watch_run` and rendered by `rules` and `dashboard`.
"""

from typing import Literal

import msgspec

from draftproof.plan.rollback_limits import Limit

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
