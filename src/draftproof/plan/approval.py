"""The `[approval]` table: who answers for the pair, what is put back, and what ends the approval.

Owns shape and ranges. Nothing here decides the verdict, so it is no part of the thresholds' hash; the hash
of the whole plan covers it.
"""

from datetime import date, datetime
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from draftproof.plan.strict import Strict

ChangeTrigger = Literal[
    "version",
    "model_hash",
    "drafter_hash",
    "flags",
    "tokenizer",
    "accelerator",
    "driver",
    "libraries",
    "kernels",
]
# Trigger -> the facts of the platform that it watches.
PLATFORM_PARTS: dict[ChangeTrigger, tuple[str, ...]] = {
    "accelerator": ("accelerator", "cpu"),
    "driver": ("driver", "cuda_driver"),
    "libraries": ("cuda", "cudnn", "nccl", "rocm", "torch", "engine_build"),
    "kernels": ("kernels", "attention_backend"),
}
ALL_TRIGGERS: tuple[ChangeTrigger, ...] = get_args(ChangeTrigger)


def _accept_date(value: object) -> object:
    """Pass a date or a text on: a bare number would be read as seconds since 1970."""
    if isinstance(value, (date, str)) and not isinstance(value, datetime):
        return value
    raise ValueError("a date is written as 2027-01-31")


IsoDate = Annotated[date, BeforeValidator(_accept_date)]


class Approval(Strict):
    """Who answers for the pair of target and drafter, what is put back, and what ends the approval."""

    owner: str | None = Field(None, description="Who runs the pair and is called when an alert fires.")
    approver: str | None = Field(
        None, description="Who accepts the verdict; best somebody else than the owner."
    )
    rollback_artefact: str | None = Field(
        None,
        description="What is deployed to roll back: an image digest, a commit or a command. Alerts quote it.",
    )
    change_triggers: tuple[ChangeTrigger, ...] = Field(
        ALL_TRIGGERS,
        min_length=1,
        description="A change in one of these voids the approval; `draftproof verify` names it.",
    )
    early_response: Literal["not_used", "used", "unknown"] = Field(
        "unknown",
        description="Whether the service prepares an answer before the user has finished. Its effect is "
        "never credited to speculative decoding.",
    )
    valid_until: IsoDate | None = Field(
        None, description="Last day of the approval, such as 2027-01-31; none: no end of its own."
    )
    drafter_retirement: str | None = Field(
        None, description="When and how the drafter is taken out of service, and who keeps the record."
    )
