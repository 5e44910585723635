"""The quantities of delivery that are compared between runs, each a positive number of one answer. Pure."""

from collections.abc import Callable
from typing import Literal

import msgspec

from draftproof.metrics.delivery import count_arrivals, count_characters, find_burst_bound_ns
from draftproof.metrics.percentiles import percentile
from draftproof.verdict.delivery import list_delivered
from draftproof.verdict.run_data import Observation, PreparedRun

BoundIndex = dict[tuple[str, str], float | None]  # arm, load


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of an answer.

    `value` gets the answer and its run's burst bound, ns. `kind`: times take the plan's statistic, counts
    the mean. `instead` is compared where this one is not known in both runs.
    """

    name: str
    kind: Literal["time", "count"]
    value: Callable[[Observation, float | None], float | None]
    instead: "Quantity | None" = None


def measure(quantity: Quantity, seen: Observation, bound_ns: float | None) -> float | None:
    """Return the quantity of one answer, None where it is not known or not positive (a ratio needs that)."""
    if not is_trusted(seen):
        return None
    value = quantity.value(seen, bound_ns)
    return value if value is not None and value > 0 else None


def is_trusted(seen: Observation) -> bool:
    """Return whether a request was answered, the client was on time, and no time runs backwards."""
    return seen.is_ok and seen.timed and seen.in_order


def find_bounds(prepared: PreparedRun) -> BoundIndex:
    """Return the burst bound of every arm at every load, ns."""
    return {
        (arm, load): find_burst_bound_ns(list_delivered(prepared.of_arm(arm, load)))
        for arm in prepared.arms
        for load in prepared.loads
    }


def _tpot(seen: Observation, _bound_ns: float | None) -> float | None:
    return seen.metrics.tpot_ns


def _first_token(seen: Observation, _bound_ns: float | None) -> float | None:
    return seen.metrics.ttft_from_schedule_ns


def _middle_gap(seen: Observation, _bound_ns: float | None) -> float | None:
    return percentile(seen.metrics.icl_ns, 0.50)


def _tokens(seen: Observation, _bound_ns: float | None) -> float | None:
    return seen.metrics.output_tokens


def _tokens_per_chunk(seen: Observation, _bound_ns: float | None) -> float | None:
    tokens, chunks = seen.metrics.output_tokens, len(seen.record.chunks)
    return tokens / chunks if tokens is not None and chunks else None


def _characters(seen: Observation, _bound_ns: float | None) -> float | None:
    return float(count_characters(seen.record))


def _characters_per_chunk(seen: Observation, _bound_ns: float | None) -> float | None:
    chunks = len(seen.record.chunks)
    return count_characters(seen.record) / chunks if chunks else None


def _chunks_per_arrival(seen: Observation, bound_ns: float | None) -> float | None:
    if bound_ns is None or not seen.record.chunks:
        return None
    return len(seen.record.chunks) / count_arrivals(seen.record, bound_ns)


QUANTITIES: tuple[Quantity, ...] = (
    Quantity(name="tpot_ns", kind="time", value=_tpot),
    Quantity(name="ttft_from_schedule_ns", kind="time", value=_first_token),
    Quantity(name="icl_p50_ns", kind="time", value=_middle_gap),
    Quantity(
        name="tokens_per_chunk",
        kind="count",
        value=_tokens_per_chunk,
        instead=Quantity(name="characters_per_chunk", kind="count", value=_characters_per_chunk),
    ),
    Quantity(name="chunks_per_arrival", kind="count", value=_chunks_per_arrival),
    Quantity(
        name="output_tokens",
        kind="count",
        value=_tokens,
        instead=Quantity(name="output_characters", kind="count", value=_characters),
    ),
)
