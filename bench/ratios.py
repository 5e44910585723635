"""Ratios of two sides, prompt by prompt, and how they spread."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sides import Call, typical_rate, typical_tpot_s

Figure = dict[str, Any]


def spread(values: Iterable[float]) -> Figure:
    """Return median, quartiles and number of values; what is not a number is left out."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return {"median": None, "q1": None, "q3": None, "prompts": 0}
    quartiles = statistics.quantiles(finite, n=4, method="inclusive") if len(finite) > 1 else finite * 3
    return {
        "median": round(statistics.median(finite), 4),
        "q1": round(quartiles[0], 4),
        "q3": round(quartiles[2], 4),
        "prompts": len(finite),
    }


def rate_ratio(ours: Sequence[Sequence[Call]], theirs: Sequence[Sequence[Call]]) -> Figure:
    """Return how many times their tokens per second ours are, whole calls: the spread over prompts."""
    return _paired(typical_rate, ours, theirs)


def decode_speedup(ours: Sequence[Sequence[Call]], theirs: Sequence[Sequence[Call]]) -> Figure:
    """Return their time per output token over ours, prefill left out: the spread over prompts."""
    return _paired(typical_tpot_s, theirs, ours)


def rates(calls: Sequence[Sequence[Call]]) -> Figure:
    """Return tokens per second and milliseconds per output token of one side: spreads over prompts."""
    return {
        "tokens_per_s": spread(typical_rate(one) for one in calls),
        "tpot_ms": spread(1e3 * typical_tpot_s(one) for one in calls),
    }


def _paired(
    figure: Callable[[Sequence[Call]], float],
    upper: Sequence[Sequence[Call]],
    lower: Sequence[Sequence[Call]],
) -> Figure:
    return spread(figure(one) / figure(other) for one, other in zip(upper, lower, strict=True))
