"""Nearest-rank percentiles (docs/metrics.md, "Percentiles").

Every percentile of the project is one of the observed values: the smallest one whose cumulative share
reaches q, numpy's `inverted_cdf` (Hyndman & Fan 1996, definition 1). `q` is a share between 0 and 1.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

RANK_DIGITS = 9  # 0.07 × 100 is 7.000000000000001 in binary; rounding keeps the rank at 7


def percentile(values: Iterable[float], q: float) -> float | None:
    """Return the nearest-rank percentile, None for no values.

    Raises:
        ValueError: q is outside [0, 1].
    """
    ordered = sorted(values)
    rank = nearest_rank(len(ordered), q)
    return ordered[rank - 1] if ordered else None


def nearest_rank(count: int, q: float) -> int:
    """Return the 1-based rank of percentile q among `count` ordered values.

    Raises:
        ValueError: q is outside [0, 1].
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"q is a share between 0 and 1, got {q}")
    return max(1, math.ceil(round(q * count, RANK_DIGITS)))


def failure_inclusive(values_ok: Iterable[float], failures: int, q: float) -> float | None:
    """Return the percentile with every failed request counted as +∞; `math.inf` where it falls on one."""
    return percentile([*values_ok, *[math.inf] * failures], q)


def token_weighted(values: Sequence[float], tokens: Sequence[int], q: float) -> float | None:
    """Return the percentile over tokens: each value counts as often as its request has tokens.

    Raises:
        ValueError: q is outside [0, 1], or the lengths differ.
    """
    pairs = sorted((value, count) for value, count in zip(values, tokens, strict=True) if count > 0)
    if not pairs:
        return None
    rank = nearest_rank(sum(count for _, count in pairs), q)
    reached = accumulate(count for _, count in pairs)
    return next(value for (value, _), total in zip(pairs, reached, strict=True) if total >= rank)
