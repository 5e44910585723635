"""What target and drafters hold in memory, read from the live objects."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from sides import Limit, Prompt, ask
from torch import nn

from draftproof.reference.engine import Engine
from draftproof.reference.models.ragged import CacheShape
from draftproof.reference.types import SpeculationMethod, SpeculationParams


def held_bytes(*roots: Any, besides: Any = None) -> int:
    """Return the bytes of the tensors reachable from `roots`, each storage once, less those of `besides`."""
    known = {} if besides is None else _storages(besides)
    found: dict[int, int] = {}
    for root in roots:
        found |= _storages(root)
    return sum(size for key, size in found.items() if key not in known)


def _storages(root: Any) -> dict[int, int]:
    return {_key(tensor): _size(tensor) for tensor in _tensors(root, set())}


def _key(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.is_mkldnn else tensor.untyped_storage().data_ptr()


def _size(tensor: torch.Tensor) -> int:
    opaque = tensor.is_mkldnn  # a layout of oneDNN: its storage cannot be asked, its padding is not counted
    return tensor.numel() * tensor.element_size() if opaque else tensor.untyped_storage().nbytes()


def _tensors(thing: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield thing
        return
    for part in _parts(thing):
        yield from _tensors(part, seen)


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, list | tuple | set):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, one.name) for one in fields(thing)]
    if isinstance(thing, nn.Module) or type(thing).__module__.startswith("draftproof.reference"):
        return list(getattr(thing, "__dict__", {}).values())
    return []


def describe_memory(
    engine: Engine, proposers: Mapping[str, Any], prompt: Prompt, tokens: int
) -> dict[str, Any]:
    """Return weights and cache bytes of the target alone and of each pair, and how the cache grows.

    Args:
        engine: holds the target and all drafters.
        proposers: the engine's drafters by method.
        prompt: of the request whose cache is watched.
        tokens: it generates.
    """
    target = engine.target
    weights = held_bytes(target.decoder)
    alone = _growth(engine, "off", prompt, tokens)
    per_token = target.cache_shape.bytes_per_token
    drafters = {}
    for method, proposer in proposers.items():
        own = held_bytes(proposer, besides=target.decoder)
        cache = _cache_bytes_per_token(proposer)
        drafters[method] = {
            "weight_bytes": own,
            "cache_bytes_per_token": cache,
            "pair_over_target_weights": round((weights + own) / weights, 4),
            "pair_over_target_cache": round((per_token + cache) / per_token, 4),
            "cache_growth": _growth(engine, method, prompt, tokens),
        }
    return {
        "target": {
            "weight_bytes": weights,
            "cache_bytes_per_token": per_token,
            "cache_bytes_at_max_model_len": per_token * engine.config.max_model_len,
            "cache_growth": alone,
            "cache_grows_with_use": all(_near_use(row, per_token) for row in alone),
        },
        "drafters": drafters,
    }


def _near_use(row: Mapping[str, int], per_token: int) -> bool:
    """Return whether a cache holds what is in use, a quarter more, and a block of 64 tokens at most."""
    return row["target"] <= per_token * (1.25 * row["tokens"] + 64)


def _cache_bytes_per_token(proposer: Any) -> int:
    shape = getattr(getattr(proposer, "network", None), "_shape", None)
    return shape.bytes_per_token if isinstance(shape, CacheShape) else 0


def _growth(engine: Engine, method: str, prompt: Prompt, tokens: int) -> list[dict[str, int]]:
    """Return, whenever the bytes change, tokens in use and what target's and drafter's caches hold."""
    chosen: SpeculationMethod = method  # type: ignore[assignment]  # the engine's own keys
    engine.add_request(
        ask("memory", prompt, Limit(tokens, ignore_eos=True), SpeculationParams(method=chosen))
    )
    rows: list[dict[str, int]] = []
    while engine.has_work:
        engine.step()
        stats = engine.stats()
        row = {"tokens": stats.kv_tokens, "target": stats.kv_bytes, "drafter": _drafter_bytes(engine, method)}
        news = not rows or any(row[key] != rows[-1][key] for key in ("target", "drafter"))
        if stats.kv_tokens and news:
            rows.append(row)
    return rows


def _drafter_bytes(engine: Engine, method: str) -> int:
    proposers: Mapping[str, Any] = engine._drafters.proposers  # noqa: SLF001 - the live object is what counts
    network = getattr(proposers.get(method), "network", None)
    return int(getattr(network, "cache_bytes", 0))
