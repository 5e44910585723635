"""Whether every item fits the context of every arm, before the first request. Pure but for one file read."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from draftproof.errors import PlanError
from draftproof.metrics.token_counting import TokenStarts
from draftproof.plan.environment import resolve_references
from draftproof.plan.schema import Plan
from draftproof.workload.items import Item

TOKENIZER_NAME = "tokenizer.json"
# A chat template spends a few tokens a message on roles and marks; this is on the safe side of those in use.
_TEMPLATE_TOKENS_PER_MESSAGE = 8
_ASCII_CHARACTERS_PER_TOKEN = 4


class ContextNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that one item needs, prompt and answer, and whether the prompt was only estimated."""

    item_id: str
    prompt_tokens: int
    answer_tokens: int
    estimated: bool

    @property
    def total_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.answer_tokens


def compute_needs(
    items: Iterable[Item], max_tokens: int | None, count: Callable[[str], int] | None = None
) -> tuple[ContextNeed, ...]:
    """Return what every item needs; a conversation at its last turn, whose prompt holds all said before.

    Args:
        items: the chosen items.
        max_tokens: the plan's cap on answers.
        count: exact token count of a text; None estimates.
    """
    return tuple(
        ContextNeed(
            item_id=item.id,
            prompt_tokens=sum(
                (count or estimate_tokens)(text) + _TEMPLATE_TOKENS_PER_MESSAGE for text in _list_texts(item)
            )
            + _count_tools(item, count or estimate_tokens)
            + len(item.follow_ups)
            * (item.max_tokens if max_tokens is None else min(item.max_tokens, max_tokens)),
            answer_tokens=item.max_tokens if max_tokens is None else min(item.max_tokens, max_tokens),
            estimated=count is None,
        )
        for item in items
    )


def _list_texts(item: Item) -> list[str]:
    later = [text for one in item.follow_ups for text in (*one.tool_results, one.content)]
    return [*(message.text for message in item.messages), *later]


def estimate_tokens(text: str) -> int:
    """Estimate a text's tokens: four ASCII characters each, and every other character as one token.

    Outside ASCII four characters a token would be far too few for vocabularies trained on English.
    """
    ascii_characters = sum(character.isascii() for character in text)
    return math.ceil(ascii_characters / _ASCII_CHARACTERS_PER_TOKEN) + len(text) - ascii_characters


def find_tokenizer(plan: Plan, model: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file of the tokenizer that counts what no service counts; None where there is none.

    Args:
        plan: the plan.
        model: the target's folder or file, None where it is not at hand.
        environment: what references in the plan are taken from.

    Raises:
        PlanError: the plan names a tokenizer and there is none.
    """
    stated, place = plan.target.tokenizer, "target.tokenizer"
    if stated is None:
        path = None if model is None else model / TOKENIZER_NAME
        return path if path is not None and path.is_file() else None
    path = Path(resolve_references(stated, environment, place)).expanduser()
    path = path / TOKENIZER_NAME if path.is_dir() else path
    if not path.is_file():
        raise PlanError(
            f"there is no file {path}.", place=place, fix=f"name a {TOKENIZER_NAME} or its folder."
        )
    return path


def load_token_counter(folder: Path) -> Callable[[str], int] | None:
    """Return an exact token count from a tokenizer.json, given as it is or by its folder; None without one.

    Raises:
        PlanError: the file is no tokenizer.
    """
    tokenizer = _load_tokenizer(folder)
    if tokenizer is None:
        return None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def load_token_starts(file: Path) -> TokenStarts:
    """Return where the tokens of a text begin, by a tokenizer.json.

    Raises:
        PlanError: the file is no tokenizer.
    """
    tokenizer = _read_tokenizer(file)
    return lambda text: [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]


def _load_tokenizer(path: Path) -> Tokenizer | None:
    file = path if path.name.endswith(".json") else path / TOKENIZER_NAME
    return _read_tokenizer(file) if file.is_file() else None


def _read_tokenizer(file: Path) -> Tokenizer:
    """Return a file's tokenizer; limits that it sets for training are lifted."""
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for any bad file
        raise PlanError(
            f"this is not a tokenizer ({error}).", place=str(file), fix=f"name a {TOKENIZER_NAME}."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _count_tools(item: Item, count: Callable[[str], int]) -> int:
    return count(msgspec.json.encode(item.tools).decode()) if item.tools else 0
