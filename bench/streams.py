"""Ordinary decoding of several streams at once, over the same work done one after another."""

import statistics
from collections.abc import Sequence
from typing import Any

from sides import EngineSide, Limit, Prompt, ask

from draftproof.core.clock import monotonic_ns
from draftproof.reference.engine import Engine
from draftproof.reference.types import SpeculationParams


def measure_streams(engine: Engine, prompts: Sequence[Prompt], limit: Limit, repeats: int) -> dict[str, Any]:
    """Return the ratio of aggregate tokens per second, prefill included: all prompts at once over one by one.

    Both do the same work, every prompt once to the same number of tokens; they take periods.
    """
    alone = EngineSide(engine)
    _together_s(engine, prompts, limit)
    together, single = [], []
    for _ in range(repeats):
        together.append(_together_s(engine, prompts, limit))
        single.append(sum(alone(prompt, limit).seconds for prompt in prompts))
    ratios = sorted(one / all_ for one, all_ in zip(single, together, strict=True))
    tokens = len(prompts) * limit.max_tokens
    return {
        "median": round(statistics.median(ratios), 4),
        "lowest": round(ratios[0], 4),
        "highest": round(ratios[-1], 4),
        "repeats": repeats,
        "streams": len(prompts),
        "tokens_per_s": round(tokens / statistics.median(together), 2),
        "tokens_per_s_of_one": round(tokens / statistics.median(single), 2),
    }


def _together_s(engine: Engine, prompts: Sequence[Prompt], limit: Limit) -> float:
    start_ns = monotonic_ns()
    for at, prompt in enumerate(prompts):
        engine.add_request(ask(f"stream{at}", prompt, limit, SpeculationParams()))
    while engine.has_work:
        engine.step()
    return (monotonic_ns() - start_ns) / 1e9
