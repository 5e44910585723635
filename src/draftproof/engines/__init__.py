"""What each engine is asked and how all it says is read; one module per engine, all pure."""

from draftproof.engines.adapter import EngineAdapter, Evidence
from draftproof.engines.generic import GENERIC
from draftproof.engines.llamacpp import LLAMACPP
from draftproof.engines.reference import REFERENCE
from draftproof.engines.sglang import SGLANG
from draftproof.engines.tensorrtllm import TENSORRT_LLM
from draftproof.engines.tgi import TGI
from draftproof.engines.vllm import VLLM
from draftproof.errors import PlanError

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
