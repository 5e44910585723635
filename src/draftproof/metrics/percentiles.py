"""Nearest-rank percentiles (docs/metrics.md, "Percentiles").

Every percentile of the project is one of the observed values: the smallest one whose cumulative share
reaches q, numpy's `inverted_cdf` (Hyndman & Fan 1996, definition 1). `q` is a share between 0 and 1.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

RANK_DIGITS = 9  # 0.07 × 100 is 7.000000000000001 in binary; rounding keeps the rank at 7


def percentile(values: Iterable[float] | npt.NDArray[np.float64], q: float) -> float | None:
    """Return the nearest-rank percentile, None for no values; of an array without sorting all of it.

    Raises:
        ValueError: q is outside [0, 1].
    """
    if isinstance(values, np.ndarray):
        rank = nearest_rank(len(values), q)
        return float(np.partition(values, rank - 1)[rank - 1]) if len(values) else None
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


def token_weighted(
    values: Sequence[float] | npt.NDArray[np.float64], tokens: Sequence[int] | npt.NDArray[np.int64], q: float
) -> float | None:
    """Return the percentile over tokens: each value counts as often as its request has tokens.

    Raises:
        ValueError: q is outside [0, 1], or the lengths differ.
    """
    if len(values) != len(tokens):
        raise ValueError(f"one count per value is needed, got {len(tokens)} for {len(values)}")
    counts = np.maximum(np.asarray(tokens, dtype=np.int64), 0)
    rank = nearest_rank(total := int(counts.sum()), q)
    if total == 0:
        return None
    order = np.argsort(np.asarray(values, dtype=np.float64), kind="stable")
    return float(values[int(order[np.searchsorted(np.cumsum(counts[order]), rank)])])
