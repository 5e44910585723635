"""vLLM: its adapter, its command line, and what it states of itself."""

from draftproof.engines.vllm.adapter import VLLM

__all__ = ["VLLM"]
