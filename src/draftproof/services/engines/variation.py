"""A launch command changed for an experiment: what it becomes, and when it cannot. Pure."""

from typing import Literal

import msgspec

from draftproof.core.errors import PlanError

Drafting = Literal["own", "ngram"]
AS_IT_COMES = "as it comes: a chunk of the stream is a step"


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """A launch command, what must be added to its environment, and what fixes the acceptance, in words."""

    command: tuple[str, ...]
    environment: dict[str, str] = {}
    acceptance: str


def not_speculating(flag: str) -> PlanError:
    """Return the error of a command that drafts nothing; `flag` would make it draft."""
    return PlanError(
        "the candidate's command does not speculate, so there is no drafter whose steps could be timed.",
        place="arms.candidate.command",
        fix=f"add {flag}.",
    )
