"""The candidate of a plan, changed to draft so many tokens a step. Pure."""

from collections.abc import Mapping

import msgspec

from draftproof.costs.prompts import FIXED_LENGTH_FIELDS
from draftproof.engines.reading.words import drop_flags, find_flags
from draftproof.engines.synthetic import Drafting, vary_command
from draftproof.errors import PlanError
from draftproof.plan.schema import Arm, Scalar

METHOD, LENGTH = "speculation.method", "speculation.num_spec_tokens"
# A policy that shortens drafts would measure another length than asked.
_FIXED_DRAFTS: dict[str, Scalar] = {"speculation.policy": "fixed", "speculation.stop_below": 0.0}
# A lookup that matches a single token finds a draft in nearly every step, at the same cost.
_SHORT_MATCH: dict[str, Scalar] = {"speculation.ngram_min": 1}
_SERVE_FLAGS = {METHOD: "speculation", LENGTH: "num-spec-tokens"} | {
    "speculation.policy": "draft-policy",
    "speculation.stop_below": "stop-below",
    "speculation.ngram_min": "ngram-min",
}
ROUNDS = "as it comes: rounds disclose what each step drafted and took"


class VariedArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm to be started, and what fixes the acceptance of its drafts, in words."""

    arm: Arm
    acceptance: str


def vary_arm(arm: Arm, draft_length: int, drafting: Drafting = "own", *, synthetic: bool = True) -> VariedArm:
    """Return an arm that drafts `draft_length` tokens a step and answers at a fixed length.

    Raises:
        PlanError: the arm only attaches, does not speculate, or its engine cannot fix the acceptance.
    """
    if arm.url is not None:
        raise PlanError(
            "a service that runs already cannot be started anew with another draft length.",
            place="arms.candidate.url",
            fix="give arms.candidate.command in its place.",
        )
    request = FIXED_LENGTH_FIELDS | arm.request
    if arm.engine == "reference":
        changes = _vary_reference(arm, draft_length)
        return VariedArm(arm=arm.model_copy(update={**changes, "request": request}), acceptance=ROUNDS)
    if arm.command is None:
        raise PlanError(
            f"an arm of engine {arm.engine} needs a command to be started with several draft lengths.",
            place="arms.candidate",
            fix="add arms.candidate.command.",
        )
    varied = vary_command(arm.engine, arm.command, draft_length, drafting=drafting, synthetic=synthetic)
    changed = {"command": varied.command, "env": arm.env | varied.environment, "request": request}
    return VariedArm(arm=arm.model_copy(update=changed), acceptance=varied.acceptance)


def _vary_reference(arm: Arm, draft_length: int) -> dict[str, object]:
    method = _read_method(arm)
    if method in {None, "off"}:
        raise PlanError(
            "the candidate does not speculate, so there is no drafter whose steps could be timed.",
            place="arms.candidate",
            fix=f'set "{METHOD}" to ngram, draft_model, attached or self.',
        )
    settings: dict[str, Scalar] = {METHOD: "off"}
    if draft_length:
        settings = {METHOD: str(method), LENGTH: draft_length, **_FIXED_DRAFTS}
        settings |= _SHORT_MATCH if method == "ngram" else {}
    if arm.command is None:
        kept = {key: value for key, value in arm.settings.items() if key not in _SERVE_FLAGS}
        return {"settings": kept | settings}
    return {"command": _set_flags(arm.command, settings)}


def _read_method(arm: Arm) -> Scalar | None:
    if arm.command is None:
        return arm.settings.get(METHOD)
    return find_flags(arm.command, lambda name: name == _SERVE_FLAGS[METHOD]).get(_SERVE_FLAGS[METHOD])


def _set_flags(command: tuple[str, ...], settings: Mapping[str, Scalar]) -> tuple[str, ...]:
    bare = drop_flags(command, lambda name: name in _SERVE_FLAGS.values())
    return (
        *bare,
        *(word for key, value in settings.items() for word in (f"--{_SERVE_FLAGS[key]}", str(value))),
    )
