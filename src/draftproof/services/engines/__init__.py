"""What each engine is asked and how all it says is read; one module per engine, all pure."""

from draftproof.core.errors import PlanError
from draftproof.services.engines.adapter import EngineAdapter, Evidence
from draftproof.services.engines.generic import GENERIC
from draftproof.services.engines.llamacpp import LLAMACPP
from draftproof.services.engines.reference import REFERENCE
from draftproof.services.engines.sglang import SGLANG
from draftproof.services.engines.tensorrtllm import TENSORRT_LLM
from draftproof.services.engines.tgi import TGI
from draftproof.services.engines.vllm import VLLM

__all__ = ["ADAPTERS", "GENERIC", "REFERENCE", "EngineAdapter", "Evidence", "adapter_for"]

ADAPTERS: dict[str, EngineAdapter] = {
    adapter.name: adapter for adapter in (REFERENCE, VLLM, SGLANG, TENSORRT_LLM, LLAMACPP, TGI, GENERIC)
}


def adapter_for(engine: str) -> EngineAdapter:
    """Return the adapter of an engine as the plan names it.

    Raises:
        PlanError: no adapter has that name.
    """
    if engine not in ADAPTERS:
        raise PlanError(f"unknown engine {engine!r}", place="arms", fix=f"use one of {sorted(ADAPTERS)}.")
    return ADAPTERS[engine]
