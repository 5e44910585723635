"""Which start of the engine measures what, in which order, on which prompts. Pure and seeded.

A lookup drafter finds a match only in text that repeats itself, and a repeated sentence must be longer than a
draft. Every request of a wave has its own words, so that none is answered from another's cache.
"""

from collections.abc import Mapping

import msgspec

from draftproof.core.errors import PlanError, UsageError
from draftproof.plan.schema import Arm, Scalar
from draftproof.services.engines import vary_command
from draftproof.services.engines.commands import Drafting, drop_flags, find_flags
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.items import Item, Message

LONGEST_DRAFT = 64
SHORTEST_ANSWER = 24
# The last drafts of an answer are cut short, so an answer must be much longer than a draft.
ANSWER_TO_DRAFT = 6


class CostGrid(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    `batches` are numbers of requests in flight at once; each is measured `repeats` times in every start, one
    time being one wave of so many requests of `answer_tokens` tokens. `acceptance` is the one for which the
    longest drafting time that pays is given. `split`: also time n-gram drafts where nothing else tells
    drafting from verification. `synthetic`: the engine accepts none of the drafts; else they are accepted as
    they come, and a chunk of the stream is taken for a step.
    """

    draft_lengths: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 5
    answer_tokens: int = 96
    acceptance: float = 0.7
    confidence: float = 0.95
    seed: int = 1
    split: bool = True
    synthetic: bool = True


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the engine: what it drafts, and the batch size of each of its waves in order."""

    index: int
    draft_length: int
    drafting: Drafting
    batches: tuple[int, ...]

    @property
    def title(self) -> str:
        """What a person calls this start."""
        if not self.draft_length:
            return "ordinary decoding"
        by = " by n-gram lookup" if self.drafting == "ngram" else ""
        return f"{self.draft_length} drafts a step{by}"


def check_grid(grid: CostGrid) -> None:
    """Do nothing for a grid that can be measured. Raises UsageError: names the option and what is allowed."""
    _check_list(grid.draft_lengths, "--draft-lengths", LONGEST_DRAFT)
    _check_list(grid.batches, "--batches", 4096)
    floor = max(SHORTEST_ANSWER, ANSWER_TO_DRAFT * max(grid.draft_lengths))
    if grid.answer_tokens < floor:
        raise UsageError(
            f"answers of {grid.answer_tokens} tokens are too short for drafts of {max(grid.draft_lengths)}",
            place="--answer-tokens",
            fix=f"use at least {floor}",
        )
    if grid.repeats < 1:
        raise UsageError(f"is {grid.repeats}, allowed is at least 1", place="--repeats")
    if not 0.0 <= grid.acceptance <= 1.0:
        raise UsageError(f"is {grid.acceptance:g}, allowed is a share from 0 to 1", place="--acceptance")


def _check_list(numbers: tuple[int, ...], option: str, highest: int) -> None:
    if not numbers or min(numbers) < 1 or max(numbers) > highest or len(set(numbers)) < len(numbers):
        raise UsageError(
            f"is {','.join(map(str, numbers)) or 'empty'}, allowed are different whole numbers "
            f"from 1 to {highest}",
            place=option,
            fix="write them with commas, such as 1,2,4,8",
        )


def plan_starts(grid: CostGrid, *, with_lookup: bool) -> tuple[Start, ...]:
    """Return the starts in order: ordinary decoding first and last, the draft lengths between in drawn order.

    Where n-gram drafts are timed too, a length's two starts follow each other, so that drift of the machine
    meets both alike. Within a start every batch size comes once in each repeat, in an order drawn anew.
    """
    lengths = order_by_seed([str(length) for length in grid.draft_lengths], "lengths", grid.seed)
    drafting: tuple[Drafting, ...] = ("own", "ngram") if with_lookup else ("own",)
    between = [(int(length), method) for length in lengths for method in drafting]
    plan: list[tuple[int, Drafting]] = [(0, "own"), *between, (0, "own")]
    return tuple(
        Start(index=index, draft_length=length, drafting=method, batches=_draw_batches(grid, index))
        for index, (length, method) in enumerate(plan)
    )


def _draw_batches(grid: CostGrid, start: int) -> tuple[int, ...]:
    names = [str(batch) for batch in grid.batches]
    return tuple(
        int(name)
        for repeat in range(grid.repeats)
        for name in order_by_seed(names, "batches", grid.seed, start, repeat)
    )


_THINGS = ("lamp", "chair", "kettle", "ladder", "basket", "mirror", "hammer", "pillow")
_PLACES = ("long table", "back wall", "narrow shelf", "open window", "front door", "stone floor")
_TIMES = 6
# The same word in vLLM, llama.cpp, SGLang and the reference engine.
FIXED_LENGTH_FIELDS: dict[str, Scalar] = {"ignore_eos": True}


def build_items(count: int, answer_tokens: int) -> tuple[Item, ...]:
    """Return `count` requests, each to copy a passage of its own over and over."""
    return tuple(
        Item(
            id=f"slot-{slot}",
            segments={},
            messages=(Message(role="user", content=_prompt(slot)),),
            max_tokens=answer_tokens,
        )
        for slot in range(count)
    )


def _prompt(slot: int) -> str:
    thing, place = _THINGS[slot % len(_THINGS)], _PLACES[slot % len(_PLACES)]
    sentence = (
        f"Number {slot + 11}: every morning the old keeper carries the {thing} to the {place}, counts "
        "the boats in the harbour, writes the sum into his book, and walks home before the rain begins. "
    )
    return f"Copy this text word for word, again and again, without an end.\n\n{sentence * _TIMES}"


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

    Raises PlanError: the arm only attaches, does not speculate, or its engine cannot fix the acceptance.
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
