"""What a person reads in an alert: the value in it, why it matters, and what to do. Pure."""

from draftproof.plan.approval import Approval
from draftproof.plan.schema import Plan

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
