"""What a model folder says of itself: content hashes, licence, context length, tokens. Reads files only."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from draftproof.core.errors import PlanError
from draftproof.plan.schema import Arm

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")
_CARD_LICENCE = re.compile(r"^licen[cs]e:\s*[\"']?([^\s\"']+)", re.MULTILINE)
_RECORD_NAMES = ("draftproof-model.json", "config.json")
_DRAFTER_RECORD, _DRAFTER_WEIGHTS = "drafter.json", "weights.safetensors"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx")


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts read from a model folder, each None where the folder does not say."""

    sha256: str | None = None
    tokenizer_sha256: str | None = None
    licence: str | None = None
    provenance: str | None = None
    max_context_tokens: int | None = None


def load_model_facts(folder: Path, key: str = "target.model") -> ModelFacts:
    """Hash every file of a model folder and read its licence and context length.

    Raises PlanError: the folder or a file that a model needs is missing.
    """
    check_model_folder(folder, key)
    hashes, config = hash_model(folder), read_json(folder / "config.json")
    return ModelFacts(
        sha256=combine_hashes(hashes),
        tokenizer_sha256=hashes.get("tokenizer.json") or hashes.get("vocab.json"),
        licence=find_licence(folder),
        max_context_tokens=next(
            (config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)), None
        ),
    )


def load_target_facts(path: Path) -> ModelFacts:
    """Return what a target's files say: a model folder, or one file of weights that holds all (GGUF).

    Raises PlanError: as `load_model_facts`.
    """
    return ModelFacts(sha256=_hash_file(path)) if path.is_file() else load_model_facts(path)


def load_drafter_facts(folder: Path, key: str) -> ModelFacts:
    """Return what a drafter's folder says: a whole model, or weights with a record and no tokenizer.

    `folder`: the drafter's, or its one file of weights (GGUF). `key`: of the plan, for messages. Raises
    PlanError: the folder or a file that it needs is missing, or its record is no JSON object.
    """
    if folder.is_file():
        return ModelFacts(sha256=_hash_file(folder))
    if not (folder / _DRAFTER_RECORD).is_file():
        return load_model_facts(folder, key)
    weights, record = folder / _DRAFTER_WEIGHTS, read_json(folder / _DRAFTER_RECORD)
    if not weights.is_file():
        raise PlanError(
            f"the drafter {folder} lacks {_DRAFTER_WEIGHTS}.", place=key, fix="copy the whole folder."
        )
    return ModelFacts(
        sha256=_hash_file(weights),
        licence=_find_text(record, "licence"),
        provenance=_find_text(record, "provenance"),
    )


def locate_drafter(arm: Arm) -> Path | None:
    """Return where an arm's drafter lies: as its facts say, else the one that a launched engine is given."""
    stated = arm.drafter.get("path")
    if stated:
        return Path(stated)
    given = arm.settings.get("drafter")
    is_launched = arm.engine == "reference" and arm.url is None and arm.command is None
    path = Path(given) if is_launched and isinstance(given, str) else None
    return path if path is not None and path.exists() else None


def check_model_folder(folder: Path, key: str = "target.model") -> None:
    """Do nothing if a folder has what a model needs: a configuration, a tokenizer and weights.

    Raises PlanError: names the plan's key and the missing file.
    """
    if not folder.is_dir():
        raise PlanError(f"there is no model folder {folder}.", place=key, fix="check the path.")
    names = {path.name for path in folder.iterdir()}
    missing = [] if "config.json" in names else ["config.json"]
    if not names & {"tokenizer.json", "vocab.json", "tokenizer.model"}:
        missing.append("tokenizer.json")
    if not any(name.endswith(_WEIGHT_SUFFIXES) for name in names):
        missing.append("the weights (*.safetensors)")
    if missing:
        raise PlanError(
            f"the model folder {folder} lacks {', '.join(missing)}.",
            place=key,
            fix="download the model again, whole.",
        )


def hash_model(folder: Path) -> dict[str, str]:
    """Return relative file name -> SHA-256 of the content, in order of names; hidden files are left out."""
    names = ((path, path.relative_to(folder)) for path in sorted(folder.rglob("*")))
    return {
        name.as_posix(): _hash_file(path)
        for path, name in names
        if path.is_file() and not any(part.startswith(".") for part in name.parts)
    }


def combine_hashes(hashes: dict[str, str]) -> str:
    """Return one SHA-256 over names and hashes: equal folders, and only they, have the same one."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()


def find_licence(folder: Path) -> str | None:
    """Return the licence that the folder's record, configuration or model card states, None if none does."""
    for name in _RECORD_NAMES:
        stated = read_json(folder / name)
        licence = stated.get("licence") or stated.get("license")
        if isinstance(licence, str):
            return licence
    card = folder / "README.md"
    if not card.is_file():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    header = text.split("---", 2)[1] if text.startswith("---") and text.count("---") > 1 else ""
    found = _CARD_LICENCE.search(header)
    return found[1] if found else None


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file, {} where the file is not there.

    Raises PlanError: the file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"is not a JSON object ({error}).", place=str(path)) from error


def _find_text(record: dict[str, Any], key: str) -> str | None:
    return record[key] if isinstance(record.get(key), str) else None


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SHOWN_DIFFERENCES = 5
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one model folder. `special_ids` come from config.json, where it states them."""

    strings: dict[int, str]
    special_strings: frozenset[str]
    special_ids: dict[str, Any]


class TokenizerComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a draft's tokens are the target's, and the first differences in words."""

    compatible: bool
    differences: tuple[str, ...] = ()


# n-gram lookup copies token ids of the very sequence it drafts for: there is no second tokenizer.
COMPATIBLE_BY_CONSTRUCTION = TokenizerComparison(compatible=True)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Read the tokens of a model folder from tokenizer.json, else vocab.json and added_tokens.json.

    Raises PlanError: neither file is there, or it cannot be read.
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


def compare_tokenizers(target: Path, draft: Path) -> TokenizerComparison:
    """Compare every id, the special tokens and the configured special ids of two model folders.

    A draft is proposed as token ids, so every id must mean the same string in both. How text is split into
    tokens (merges, normalisation) is not compared: the draft never tokenizes text. Raises PlanError: a folder
    has no tokenizer files.
    """
    differences = tuple(_iterate_differences(load_vocabulary(target), load_vocabulary(draft)))
    return TokenizerComparison(compatible=not differences, differences=differences[:SHOWN_DIFFERENCES])


def _iterate_differences(target: Vocabulary, draft: Vocabulary) -> Iterator[str]:
    for index in sorted(target.strings.keys() | draft.strings.keys()):
        left, right = target.strings.get(index), draft.strings.get(index)
        if left != right:
            said = ["missing" if text is None else repr(text) for text in (left, right)]
            yield f"id {index} is {said[0]} in the target and {said[1]} in the draft"
    for text in sorted(target.special_strings ^ draft.special_strings):
        where = "target" if text in target.special_strings else "draft"
        yield f"{text!r} is a special token only in the {where}"
    for name in sorted(target.special_ids.keys() & draft.special_ids.keys()):
        left_id, right_id = target.special_ids[name], draft.special_ids[name]
        if left_id != right_id:
            yield f"{name} is {left_id} in the target and {right_id} in the draft"


def _load_tokenizer_file(path: Path) -> tuple[dict[int, str], frozenset[str]]:
    stated = read_json(path)
    try:
        tokenizer = Tokenizer.from_str(msgspec.json.encode(stated).decode())
    except Exception as error:  # the library raises plain Exception for any bad file
        raise PlanError(f"is not a tokenizer ({error}).", place=str(path)) from error
    strings = {index: text for text, index in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = frozenset(token["content"] for token in stated.get("added_tokens", ()) if token.get("special"))
    return strings, special
