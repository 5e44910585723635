"""vLLM: its adapter, its command line, and what it states of itself."""

from draftproof.services.engines.vllm.adapter import VLLM

__all__ = ["VLLM"]
