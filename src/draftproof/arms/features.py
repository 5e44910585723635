"""What requests ask for and an arm does not give: found before anything is sent (requirement B6). Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from draftproof.engines.adapter import EngineAdapter
from draftproof.engines.chat.payload import build_chat_payload
from draftproof.engines.facts import Feature
from draftproof.manifests import ArmManifest
from draftproof.plan.schema import Scalar
from draftproof.workload.items import Item
from draftproof.workload.request_fields import LEFT_TO_PLAN, OWN_KEYS

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

    Args:
        items: what is asked.
        request: the plan's further fields of every request of the arm.
        manifest: the arm.
        adapter: its engine.
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

    Args:
        items: what is asked.
        request: the plan's further fields of every request of the arm.
        adapter: its engine, which asks for what measuring needs.
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
    return any(count > most for field, count in fields.items() if _is_one_of(field, feature.fields))


def _is_one_of(field: str, names: Iterable[str]) -> bool:
    return any(field == name or (name.endswith(".") and field.startswith(name)) for name in names)
