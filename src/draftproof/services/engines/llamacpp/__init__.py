"""The llama.cpp server: its adapter, its command line, and the timings in its answers."""

from draftproof.services.engines.llamacpp.adapter import LLAMACPP

__all__ = ["LLAMACPP"]
