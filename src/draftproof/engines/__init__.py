"""What each engine is asked and how its answer is read; one module per engine, all pure."""

from draftproof.engines.generic import GenericAdapter
from draftproof.engines.protocol import EngineAdapter
from draftproof.engines.reference import ReferenceAdapter
from draftproof.errors import PlanError

__all__ = ["EngineAdapter", "GenericAdapter", "ReferenceAdapter", "adapter_for"]


def adapter_for(engine: str) -> EngineAdapter:
    """Return the adapter of an engine as the plan names it.

    Raises:
        PlanError: no adapter has that name.
    """
    adapters: dict[str, EngineAdapter] = {
        adapter.name: adapter for adapter in (ReferenceAdapter(), GenericAdapter())
    }
    if engine not in adapters:
        raise PlanError(f"unknown engine {engine!r}", place="arms", fix=f"use one of {sorted(adapters)}.")
    return adapters[engine]
