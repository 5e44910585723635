"""Whether a request came in time, and nearest-rank percentiles (docs/metrics.md, "Service", "Percentiles").

Every percentile of the project is one of the observed values: the smallest one whose cumulative share reaches
q, numpy's `inverted_cdf` (Hyndman & Fan 1996, definition 1). `q` is a share between 0 and 1.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from draftproof.core.clock import NS_PER_MS
from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.request import RequestMetrics

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


class Objectives(Protocol):
    """Deadlines in ms, None for no deadline; the plan's own type fits."""

    @property
    def ttft_ms(self) -> float | None:
        """Latest first content chunk after the scheduled time."""
        ...

    @property
    def tpot_ms(self) -> float | None:
        """Longest time per output token."""
        ...

    @property
    def e2e_ms(self) -> float | None:
        """Latest end after the scheduled time."""
        ...


def is_on_time(record: RequestRecord, metrics: RequestMetrics, objectives: Objectives) -> bool | None:
    """Tell whether the request succeeded and met every objective; None where that is not known.

    First token and end count from the scheduled time. An answer that came whole in its first chunk meets any
    time per token; one that is known within bounds meets or misses a deadline with all of them.
    """
    if record.outcome != "ok":
        return False
    whole = len(record.chunks) == 1 or (metrics.output_tokens is not None and metrics.tpot_ns is None)
    least, most = (
        _meets(one, objectives.tpot_ms, vacuous=whole) for one in (metrics.tpot_ns, metrics.tpot_most_ns)
    )
    met = (
        _meets(metrics.ttft_from_schedule_ns, objectives.ttft_ms, vacuous=False),
        least if least == most else None,
        _meets(metrics.e2e_from_schedule_ns, objectives.e2e_ms, vacuous=False),
    )
    if False in met:
        return False
    return None if None in met else True


def evaluate_times(
    is_ok: Bools,
    chunks: npt.NDArray[np.intp],
    *,
    ttft_ns: Floats,
    tpot_ns: Floats,
    tpot_most_ns: Floats,
    e2e_ns: Floats,
    tokens: Floats,
    objectives: Objectives,
) -> Floats:
    """Return `is_on_time` of many requests: 1 on time, 0 not, NaN where that is not known.

    Shape (requests,) each, NaN where not known: `chunks` of content, `ttft_ns` and `e2e_ns` from the
    scheduled time, `tpot_ns` and `tpot_most_ns` the bounds of the time per token, output `tokens`.
    """
    nothing_to_wait_for = (chunks == 1) | (~np.isnan(tokens) & np.isnan(tpot_ns))
    least, most = _meet(tpot_ns, objectives.tpot_ms), _meet(tpot_most_ns, objectives.tpot_ms)
    within = np.where(least == most, least, np.nan)
    met = np.stack(
        [
            _meet(ttft_ns, objectives.ttft_ms),
            np.where(np.isnan(tpot_ns) & nothing_to_wait_for, 1.0, within),
            _meet(e2e_ns, objectives.e2e_ms),
        ]
    )
    missed = (met == 0).any(axis=0) | ~is_ok
    found: Floats = np.where(missed, 0.0, np.where(np.isnan(met).any(axis=0), np.nan, 1.0))
    return found


def _meet(values_ns: Floats, limit_ms: float | None) -> Floats:
    """Return 1 within the limit, 0 beyond it, NaN where the value is not known."""
    if limit_ms is None:
        return np.ones(len(values_ns))
    found: Floats = np.where(np.isnan(values_ns), np.nan, values_ns <= limit_ms * NS_PER_MS)
    return found


def _meets(value_ns: float | None, limit_ms: float | None, *, vacuous: bool) -> bool | None:
    if limit_ms is None:
        return True
    if value_ns is None:
        return True if vacuous else None
    return value_ns <= limit_ms * NS_PER_MS


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
