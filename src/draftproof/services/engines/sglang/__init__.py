"""SGLang: its adapter, its settings, and what its answers say."""

from draftproof.services.engines.sglang.adapter import SGLANG

__all__ = ["SGLANG"]
