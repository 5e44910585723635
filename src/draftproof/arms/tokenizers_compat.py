"""Whether a draft model speaks the target's tokens, decided from the files: ids and strings, not only sizes.

A draft is proposed as token ids, so every id must mean the same string in both. How text is split into
tokens (merges, normalisation) is not compared: the draft never tokenizes text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from draftproof.arms.model_files import read_json
from draftproof.errors import IncompatibleError, PlanError

SHOWN_DIFFERENCES = 5
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one model folder. `special_ids` come from config.json, where it states them."""

    strings: dict[int, str]
    special_strings: frozenset[str]
    special_ids: dict[str, Any]


class TokenizerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a comparison: the first differences in words, and how many there are in all."""

    compatible: bool
    target_size: int | None
    draft_size: int | None
    differences: tuple[str, ...]
    difference_count: int


# n-gram lookup copies token ids of the very sequence it drafts for: there is no second tokenizer.
COMPATIBLE_BY_CONSTRUCTION = TokenizerComparison(
    compatible=True, target_size=None, draft_size=None, differences=(), difference_count=0
)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the tokens of a model folder from tokenizer.json, else vocab.json and added_tokens.json.

    Raises:
        PlanError: neither file is there, or it cannot be read.
    """
    if (folder / "tokenizer.json").is_file():
        strings, special = _load_tokenizer_file(folder / "tokenizer.json")
    elif (folder / "vocab.json").is_file():
        added = read_json(folder / "added_tokens.json")
        strings = {index: text for text, index in (read_json(folder / "vocab.json") | added).items()}
        special = frozenset(added)
    else:
        raise PlanError(
            f"the folder {folder} has no tokenizer.json or vocab.json.",
            fix="add the model's tokenizer files.",
        )
    config = read_json(folder / "config.json")
    return Vocabulary(
        strings=strings,
        special_strings=special,
        special_ids={name: config[name] for name in _SPECIAL_IDS if config.get(name) is not None},
    )


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> TokenizerComparison:
    """Compare every id, the special tokens and the configured special ids. Pure."""
    differences = list(_iterate_differences(target, draft))
    return TokenizerComparison(
        compatible=not differences,
        target_size=len(target.strings),
        draft_size=len(draft.strings),
        differences=tuple(differences[:SHOWN_DIFFERENCES]),
        difference_count=len(differences),
    )


def compare_tokenizers(target: Path, draft: Path) -> TokenizerComparison:
    """Compare the tokenizers of two model folders.

    Raises:
        PlanError: a folder has no tokenizer files.
    """
    return compare_vocabularies(load_vocabulary(target), load_vocabulary(draft))


def check_tokenizers(target: Path, draft: Path) -> TokenizerComparison:
    """Return the comparison if the draft fits.

    Raises:
        IncompatibleError: it does not; names the sizes and the first differences.
    """
    compared = compare_tokenizers(target, draft)
    if not compared.compatible:
        further = compared.difference_count - len(compared.differences)
        raise IncompatibleError(
            f"the draft has another tokenizer than the target ({compared.target_size} and "
            f"{compared.draft_size} tokens): {'; '.join(compared.differences)}"
            + (f"; and {further} further." if further else "."),
            place=str(draft),
            fix="choose a draft that was trained for this target.",
        )
    return compared


def _iterate_differences(target: Vocabulary, draft: Vocabulary) -> Iterator[str]:
    for index in sorted(target.strings.keys() | draft.strings.keys()):
        left, right = target.strings.get(index), draft.strings.get(index)
        if left != right:
            yield f"id {index} is {_show(left)} in the target and {_show(right)} in the draft"
    for text in sorted(target.special_strings ^ draft.special_strings):
        where = "target" if text in target.special_strings else "draft"
        yield f"{text!r} is a special token only in the {where}"
    for name in sorted(target.special_ids.keys() & draft.special_ids.keys()):
        left_id, right_id = target.special_ids[name], draft.special_ids[name]
        if left_id != right_id:
            yield f"{name} is {left_id} in the target and {right_id} in the draft"


def _show(text: str | None) -> str:
    return "missing" if text is None else repr(text)


def _load_tokenizer_file(path: Path) -> tuple[dict[int, str], frozenset[str]]:
    stated = read_json(path)
    try:
        tokenizer = Tokenizer.from_str(msgspec.json.encode(stated).decode())
    except Exception as error:  # the library raises plain Exception for any bad file
        raise PlanError(f"is not a tokenizer ({error}).", place=str(path)) from error
    strings = {index: text for text, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = frozenset(token["content"] for token in stated.get("added_tokens", ()) if token.get("special"))
    return strings, special
