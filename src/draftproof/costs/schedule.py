"""Which start of the engine measures what, in which order. Pure and seeded."""

import msgspec

from draftproof.engines.synthetic import Drafting
from draftproof.errors import UsageError
from draftproof.workload.ordering import order_by_seed

LONGEST_DRAFT = 64
SHORTEST_ANSWER = 24
# The last drafts of an answer are cut short, so an answer must be much longer than a draft.
ANSWER_TO_DRAFT = 6


class CostGrid(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured.

    `batches` are numbers of requests in flight at once; each is measured `repeats` times in every start, one
    time being one wave of so many requests of `answer_tokens` tokens. `acceptance` is the one for which the
    longest drafting time that pays is told. `split`: also time n-gram drafts where nothing else tells
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
    """Do nothing for a grid that can be measured.

    Raises:
        UsageError: names the option and what is allowed.
    """
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
