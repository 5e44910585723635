"""How other tools compute "inter-token latency" or "time per token", applied to the same records.

Under speculation a chunk carries a whole verification step, and these estimators part ways by tens of percent
(docs/metrics.md, "Estimators"). They are here so that a report can show the disagreement; no gate uses any
but `tpot_ns`. What differs between rows is the definition alone: all of them see the successful requests and
nearest-rank percentiles, while a tool may interpolate or count failures differently.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from draftproof.metrics.acceptance import pool_acceptance
from draftproof.metrics.percentiles import token_weighted
from draftproof.metrics.request import (
    chunk_gaps_ns,
    count_output_tokens,
    itl_arrival_ns,
    time_per_output_token_ns,
    tokens_per_chunk,
)
from draftproof.records import RequestRecord


class EstimatorValue(msgspec.Struct, frozen=True, kw_only=True):
    """One estimator on one set of records, ns; all None where the records lack what it needs."""

    estimator: str
    used_by: str
    mean_ns: float | None
    p50_ns: float | None
    p99_ns: float | None


class Sample(NamedTuple):
    """Values of an estimator and how often each counts (1, or the tokens it stands for)."""

    values: list[float]
    weights: list[int]


def rival_estimators(records: Iterable[RequestRecord]) -> tuple[EstimatorValue, ...]:
    """Return every estimator on the successful requests among `records`, always in the same order."""
    answered = [record for record in records if record.outcome == "ok" and record.chunks]
    return tuple(_summarise(name, used_by, sample(answered)) for name, used_by, sample in ESTIMATORS)


def gaps_of_chunks(records: Sequence[RequestRecord]) -> Sample:
    """Gaps between chunks, pooled over requests: the time of a step, not of a token."""
    return _unweighted(gap for record in records for gap in chunk_gaps_ns(record))


def gaps_spread_over_tokens(records: Sequence[RequestRecord]) -> Sample:
    """Each gap divided by the tokens of its chunk, once per token: hides that tokens arrive together."""
    pairs = [pair for record in records for pair in _gaps_with_tokens(record)]
    return Sample([gap / count for gap, count in pairs], [count for _, count in pairs])


def gaps_over_run_acceptance(records: Sequence[RequestRecord]) -> Sample:
    """Each gap divided by the run's mean acceptance length; 1 where none is disclosed, as that tool does."""
    pooled = pool_acceptance(records)
    length = pooled.mean_acceptance_length if pooled is not None else None
    return _unweighted(gap / (length or 1.0) for record in records for gap in chunk_gaps_ns(record))


def arrival_gaps_per_token(records: Sequence[RequestRecord]) -> Sample:
    """Zero inside a chunk and the full gap between chunks: the median turns 0 under speculation."""
    return _unweighted(gap for record in records for gap in itl_arrival_ns(record) or ())


def request_rate_token_weighted(records: Sequence[RequestRecord]) -> Sample:
    """(last − first chunk) / (N − 1) per request, weighted by N − 1: a tail of means."""
    rates = [
        (rate, _tokens(record) - 1) for record in records if (rate := mean_span_per_token(record)) is not None
    ]
    return Sample([rate for rate, _ in rates], [weight for _, weight in rates])


def latency_over_all_tokens(records: Sequence[RequestRecord]) -> Sample:
    """(last chunk − sent) / N per request: the first token's wait is mixed in."""
    return _means(records, mean_latency_per_token)


def waits_over_chunks(records: Sequence[RequestRecord]) -> Sample:
    """(first-chunk wait + all gaps) / number of chunks per request: counts lines, not tokens."""
    return _means(records, mean_wait_per_chunk)


def span_over_tokens_minus_one(records: Sequence[RequestRecord]) -> Sample:
    """(last − first chunk) / (N − 1) per request: too low where the first chunk brings several tokens."""
    return _means(records, mean_span_per_token)


def time_per_output_token(records: Sequence[RequestRecord]) -> Sample:
    """`tpot_ns` of every request, the project's own definition."""
    return _means(records, lambda record: time_per_output_token_ns(record)[0])


def mean_chunk_gap(record: RequestRecord) -> float | None:
    """Return the mean gap between the chunks of one request, ns; None without two chunks."""
    return _span(record) / (len(record.chunks) - 1) if len(record.chunks) > 1 else None


def mean_latency_per_token(record: RequestRecord) -> float | None:
    """Return (last chunk − sent) / N of one request that has chunks, ns; None without tokens."""
    waited, tokens = _until_last_chunk(record), _tokens(record)
    return None if waited is None or tokens < 1 else waited / tokens


def mean_wait_per_chunk(record: RequestRecord) -> float | None:
    """Return (last chunk − sent) / number of chunks of one request that has chunks, ns."""
    waited = _until_last_chunk(record)
    return None if waited is None else waited / len(record.chunks)


def mean_span_per_token(record: RequestRecord) -> float | None:
    """Return (last − first chunk) / (N − 1) of one request, ns.

    One chunk spans no time, and one token has no successor: such requests have no rate in any tool.
    """
    divisor = _tokens(record) - 1
    return None if divisor < 1 or len(record.chunks) < 2 else _span(record) / divisor


ESTIMATORS: tuple[tuple[str, str, Callable[[Sequence[RequestRecord]], Sample]], ...] = (
    ("chunk_gap", "vllm bench serve ITL", gaps_of_chunks),
    ("gap_spread_over_tokens", "SGLang bench_serving ITL (native endpoint)", gaps_spread_over_tokens),
    ("gap_over_run_acceptance", "SGLang bench_serving ITL (first correction)", gaps_over_run_acceptance),
    ("zeros_and_full_gap", "inference-perf ITL", arrival_gaps_per_token),
    ("request_rate_token_weighted", "GuideLLM ITL", request_rate_token_weighted),
    ("latency_over_all_tokens", "GuideLLM TPOT", latency_over_all_tokens),
    ("waits_over_chunks", "llmperf ITL", waits_over_chunks),
    ("tokens_minus_one", "vllm bench serve TPOT, trtllm-bench, MLPerf", span_over_tokens_minus_one),
    ("tpot_ns", "draftproof", time_per_output_token),
)


def _summarise(name: str, used_by: str, sample: Sample) -> EstimatorValue:
    total = sum(sample.weights)
    weighted = sum(value * weight for value, weight in zip(sample.values, sample.weights, strict=True))
    return EstimatorValue(
        estimator=name,
        used_by=used_by,
        mean_ns=weighted / total if total else None,
        p50_ns=token_weighted(sample.values, sample.weights, 0.50),
        p99_ns=token_weighted(sample.values, sample.weights, 0.99),
    )


def _unweighted(values: Iterable[float]) -> Sample:
    listed = list(values)
    return Sample(listed, [1] * len(listed))


def _gaps_with_tokens(record: RequestRecord) -> list[tuple[int, int]]:
    counts = tokens_per_chunk(record)
    if counts is None:
        return []
    return [(gap, count) for gap, count in zip(chunk_gaps_ns(record), counts[1:], strict=True) if count > 0]


def _means(records: Iterable[RequestRecord], mean: Callable[[RequestRecord], float | None]) -> Sample:
    return _unweighted(value for record in records if (value := mean(record)) is not None)


def _span(record: RequestRecord) -> int:
    return record.chunks[-1].arrival_ns - record.chunks[0].arrival_ns


def _tokens(record: RequestRecord) -> int:
    return count_output_tokens(record) or 0


def _until_last_chunk(record: RequestRecord) -> int | None:
    return None if record.sent_ns is None else record.chunks[-1].arrival_ns - record.sent_ns
