"""Whether every item fits an arm, in its context and in what it asks for, before anything is sent.

Pure but for the reading of a tokenizer's file.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from draftproof.core.errors import PlanError
from draftproof.core.manifests import ArmManifest
from draftproof.judge.metrics.request import TokenStarts
from draftproof.plan.environment import resolve_references
from draftproof.plan.schema import Plan, Scalar
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.engines.chat.frames import build_chat_payload
from draftproof.services.engines.facts import Feature
from draftproof.workload.formats import LEFT_TO_PLAN, OWN_KEYS
from draftproof.workload.items import Item
from draftproof.workload.labels import estimate_tokens

TOKENIZER_NAME = "tokenizer.json"
# A chat template spends a few tokens a message on roles and marks; this is on the safe side of those in use.
_TEMPLATE_TOKENS_PER_MESSAGE = 8


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

    `max_tokens`: the plan's cap on answers. `count`: exact token count of a text; None estimates.
    """
    return tuple(_compute_need(item, max_tokens, count) for item in items)


def _compute_need(item: Item, max_tokens: int | None, count: Callable[[str], int] | None) -> ContextNeed:
    measure = count or estimate_tokens
    answer_tokens = item.max_tokens if max_tokens is None else min(item.max_tokens, max_tokens)
    tools = msgspec.json.encode(item.tools).decode() if item.tools else None
    said = sum(measure(text) + _TEMPLATE_TOKENS_PER_MESSAGE for text in _list_texts(item))
    return ContextNeed(
        item_id=item.id,
        prompt_tokens=said + (measure(tools) if tools else 0) + len(item.follow_ups) * answer_tokens,
        answer_tokens=answer_tokens,
        estimated=count is None,
    )


def _list_texts(item: Item) -> list[str]:
    later = [text for one in item.follow_ups for text in (*one.tool_results, one.content)]
    return [*(message.text for message in item.messages), *later]


def find_tokenizer(plan: Plan, model: Path | None, environment: Mapping[str, str]) -> Path | None:
    """Return the file of the tokenizer that counts what no service counts; None where there is none.

    `model`: the target's folder or file, None where it is not at hand. `environment`: what references in the
    plan are taken from. Raises PlanError: the plan names a tokenizer and there is none.
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


def load_token_counter(file: Path) -> Callable[[str], int]:
    """Return an exact token count of a text, by a tokenizer.json.

    Raises PlanError: the file is no tokenizer.
    """
    tokenizer = _read_tokenizer(file)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def load_token_starts(file: Path) -> TokenStarts:
    """Return where the tokens of a text begin, by a tokenizer.json.

    Raises PlanError: the file is no tokenizer.
    """
    tokenizer = _read_tokenizer(file)
    return lambda text: [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]


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


METHOD_KEY = "speculation.method"
# With these values a field asks for nothing, beside None and what is empty.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1, 1.0),
    "response_format": ({"type": "text"},),
}


def find_method(manifest: ArmManifest) -> str | None:
    """Return the speculation method in force, None where the service does not disclose it."""
    value = manifest.settings.get(METHOD_KEY)
    return None if value is None else str(value)


def list_unsupported(manifest: ArmManifest, adapter: EngineAdapter) -> tuple[Feature, ...]:
    """Return the features that the engine lacks, and those it refuses while its method drafts."""
    method = find_method(manifest)
    if method in {"off", None}:
        return adapter.facts.lacks
    return adapter.facts.lacks + tuple(
        one for one in adapter.facts.refuses if not one.methods or method in one.methods
    )


def find_unsupported_items(
    items: Iterable[Item], request: Mapping[str, Scalar], manifest: ArmManifest, adapter: EngineAdapter
) -> dict[Feature, tuple[str, ...]]:
    """Return feature -> ids of the items whose requests ask for it; features that none asks for are left out.

    `request`: the plan's further fields of every request of the arm.
    """
    asked = {item.id: _count_asked(item, request) for item in items}
    found = {
        feature: tuple(name for name, fields in asked.items() if _asks(fields, feature, manifest))
        for feature in list_unsupported(manifest, adapter)
    }
    return {feature: ids for feature, ids in found.items() if ids}


def find_unknown_fields(
    items: Iterable[Item], request: Mapping[str, Scalar], adapter: EngineAdapter
) -> dict[str, tuple[str, ...]]:
    """Return field -> ids of the items whose requests have it, if the engine ignores it in silence."""
    known = adapter.facts.request_fields | OWN_KEYS.keys() | LEFT_TO_PLAN.keys()
    found: dict[str, list[str]] = {}
    for item in items if adapter.facts.request_fields else ():
        for key in sorted((item.request.keys() | request.keys()) - known):
            found.setdefault(key, []).append(item.id)
    return {key: tuple(ids) for key, ids in found.items()}


def find_replaced_fields(
    items: Iterable[Item], request: Mapping[str, Scalar], adapter: EngineAdapter
) -> dict[str, tuple[str, ...]]:
    """Return field -> ids of the items of which another value is sent than their own.

    `request`: the plan's further fields of every request of the arm. `adapter`: its engine, which asks for
    what measuring needs.
    """
    found: dict[str, list[str]] = {}
    for item in items:
        own = build_chat_payload(item, seed=item.sampling.seed, served_model="", max_tokens=None)
        by_engine = {key: value for key, value in adapter.ask(item).items() if key in item.request}
        if item.response_schema is not None:
            by_engine.pop("response_format", None)  # the same schema in the engine's own words
        sent = by_engine | dict(request)
        for key in sent.keys() & own.keys():
            if sent[key] != own[key]:
                found.setdefault(key, []).append(item.id)
    return {key: tuple(found[key]) for key in sorted(found)}


def _count_asked(item: Item, request: Mapping[str, Scalar]) -> dict[str, int]:
    """Return the fields by which an item and its arm ask for something, with the number of their values."""
    stops = max(len(item.stop), *(len(turn.stop or ()) for turn in item.follow_ups), 0)
    counts = {
        "top_k": int(item.sampling.top_k > 0),
        "stop": stops,
        "tools": len(item.tools),
        "response_format": int(item.response_schema is not None),
    }
    given = item.request | dict(request)
    counts |= {key: 1 for key, value in given.items() if value and value not in _NEUTRAL.get(key, ())}
    return {key: count for key, count in counts.items() if count}


def _asks(fields: Mapping[str, int], feature: Feature, manifest: ArmManifest) -> bool:
    stated = manifest.settings.get(feature.at_most_setting or "")
    most = stated if isinstance(stated, int) else feature.at_most
    return any(
        count > most and (field == name or (name.endswith(".") and field.startswith(name)))
        for field, count in fields.items()
        for name in feature.fields
    )
