"""What each engine is asked and how all it says is read; a module or folder for each engine, all pure."""

from collections.abc import Sequence

from draftproof.core.errors import PlanError
from draftproof.services.engines.adapter import EngineAdapter, ProbeObservation
from draftproof.services.engines.commands import Drafting, Drafts, Variation
from draftproof.services.engines.generic import GENERIC
from draftproof.services.engines.llamacpp import LLAMACPP
from draftproof.services.engines.reference import REFERENCE
from draftproof.services.engines.sglang import SGLANG
from draftproof.services.engines.tensorrtllm import TENSORRT_LLM
from draftproof.services.engines.tgi import TGI
from draftproof.services.engines.vllm import VLLM

__all__ = [
    "ADAPTERS",
    "GENERIC",
    "REFERENCE",
    "EngineAdapter",
    "ProbeObservation",
    "adapter_for",
    "vary_command",
]

ADAPTERS: dict[str, EngineAdapter] = {
    adapter.name: adapter for adapter in (REFERENCE, VLLM, SGLANG, TENSORRT_LLM, LLAMACPP, TGI, GENERIC)
}


def adapter_for(engine: str) -> EngineAdapter:
    """Return the adapter of an engine as the plan names it. Raises PlanError: no adapter has that name."""
    if engine not in ADAPTERS:
        raise PlanError(f"unknown engine {engine!r}", place="arms", fix=f"use one of {sorted(ADAPTERS)}.")
    return ADAPTERS[engine]


def vary_command(
    engine: str,
    command: Sequence[str],
    draft_length: int,
    *,
    drafting: Drafting = "own",
    synthetic: bool = True,
) -> Variation:
    """Return a speculating command changed to drafts of one length, none of them accepted; see `Drafts`.

    The time per output token of such a service is the time of its step. Raises PlanError: the command does
    not speculate, or its engine has no way to fix the acceptance.
    """
    adapter = adapter_for(engine)
    if adapter.vary is None:
        raise PlanError(
            f"step costs cannot be measured on {engine}: {adapter.cannot_vary}.", place="arms.candidate"
        )
    return adapter.vary(tuple(command), Drafts(length=draft_length, drafting=drafting, synthetic=synthetic))
