"""How other tools compute "inter-token latency" or "time per token", applied to the same records.

Under speculation these estimators part ways by tens of percent (docs/metrics.md, "Estimators"); a report
shows the disagreement and no gate uses any but `tpot_ns`. All see the successful requests and nearest-rank
percentiles, so that the definition alone differs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.acceptance import pool_acceptance
from draftproof.judge.metrics.delivery import collect_streams
from draftproof.judge.metrics.request import count_output_tokens, time_per_output_token_ns
from draftproof.judge.metrics.service import percentile, token_weighted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class EstimatorValue(msgspec.Struct, frozen=True, kw_only=True):
    """One estimator on one set of records, ns; all None where the records lack what it needs."""

    estimator: str
    used_by: str
    mean_ns: float | None
    p50_ns: float | None
    p99_ns: float | None


class Sample(NamedTuple):
    """Values of an estimator and how often each counts (the tokens it stands for); None: once each."""

    values: Floats
    weights: Ints | None = None


class Answers:
    """Successful answers with content as columns, shape (answers,) unless `streams` says otherwise."""

    def __init__(self, records: Sequence[RequestRecord]) -> None:
        self.records = records
        self.streams = collect_streams(records)

    @cached_property
    def spans_ns(self) -> Floats:
        """From the first chunk to the last."""
        return self._read(_span)

    @cached_property
    def waited_ns(self) -> Floats:
        """From sending to the last chunk, NaN where the sending is not known."""
        return self._read(
            lambda record: _nan(
                None if record.sent_ns is None else record.chunks[-1].arrival_ns - record.sent_ns
            )
        )

    @cached_property
    def tokens(self) -> Ints:
        """Output tokens, 0 where they are not known."""
        return np.fromiter(map(_tokens, self.records), np.int64, len(self.records))

    @cached_property
    def has_span(self) -> Bools:
        """Whether (last − first) / (N − 1) is a rate: one chunk spans no time, one token has no successor."""
        return (self.tokens > 1) & (self.streams.sizes > 1)

    def _read(self, read: Callable[[RequestRecord], float]) -> Floats:
        return np.fromiter(map(read, self.records), np.float64, len(self.records))


def other_estimators(records: Iterable[RequestRecord]) -> tuple[EstimatorValue, ...]:
    """Return every estimator on the successful requests among `records`, always in the same order."""
    answers = Answers([record for record in records if record.outcome == "ok" and record.chunks])
    return tuple(_summarise(name, used_by, sample(answers)) for name, used_by, sample in ESTIMATORS)


def gaps_of_chunks(answers: Answers) -> Sample:
    """Gaps between chunks, pooled over requests: the time of a step, not of a token."""
    return Sample(answers.streams.gaps_ns.astype(np.float64))


def gaps_spread_over_tokens(answers: Answers) -> Sample:
    """Each gap divided by the tokens of its chunk, once per token: hides that tokens arrive together."""
    streams = answers.streams
    tokens = np.delete(streams.tokens, np.cumsum(streams.sizes) - streams.sizes)
    known = streams.counted[streams.owners] & (tokens > 0)
    return Sample(streams.gaps_ns[known] / tokens[known], tokens[known])


def gaps_over_run_acceptance(answers: Answers) -> Sample:
    """Each gap divided by the run's mean acceptance length; 1 where none is disclosed, as that tool does."""
    pooled = pool_acceptance(answers.records)
    length = pooled.mean_acceptance_length if pooled is not None else None
    return Sample(answers.streams.gaps_ns / (length or 1.0))


def arrival_gaps_per_token(answers: Answers) -> Sample:
    """Zero inside a chunk and the full gap between chunks: the median periods 0 under speculation."""
    streams = answers.streams
    chunks_of = np.repeat(np.arange(len(streams.sizes)), streams.sizes)
    bearing = np.flatnonzero((streams.tokens > 0) & streams.counted[chunks_of])
    steps = np.zeros(len(streams.tokens), dtype=np.int64)
    steps[np.delete(np.arange(len(steps)), np.cumsum(streams.sizes) - streams.sizes)] = streams.gaps_ns
    arrivals, owners = np.cumsum(steps)[bearing], chunks_of[bearing]
    between = np.diff(arrivals)[owners[1:] == owners[:-1]]
    inside = int((streams.tokens[bearing] - 1).sum())
    weights = np.concatenate([[inside], np.ones(len(between), dtype=np.int64)])
    return Sample(np.concatenate([[0.0], between]), weights)


def request_rate_token_weighted(answers: Answers) -> Sample:
    """(last − first chunk) / (N − 1) per request, weighted by N − 1: a tail of means."""
    known = answers.has_span
    return Sample(span_over_tokens_minus_one(answers).values, answers.tokens[known] - 1)


def latency_over_all_tokens(answers: Answers) -> Sample:
    """(last chunk − sent) / N per request: the first token's wait is mixed in."""
    known = ~np.isnan(answers.waited_ns) & (answers.tokens > 0)
    return Sample(answers.waited_ns[known] / answers.tokens[known])


def waits_over_chunks(answers: Answers) -> Sample:
    """(first-chunk wait + all gaps) / number of chunks per request: counts lines, not tokens."""
    known = ~np.isnan(answers.waited_ns)
    return Sample(answers.waited_ns[known] / answers.streams.sizes[known])


def span_over_tokens_minus_one(answers: Answers) -> Sample:
    """(last − first chunk) / (N − 1) per request: too low where the first chunk brings several tokens."""
    known = answers.has_span
    return Sample(answers.spans_ns[known] / (answers.tokens[known] - 1))


def time_per_output_token(answers: Answers) -> Sample:
    """`tpot_ns` of every request, the project's own definition."""
    values = (_nan(time_per_output_token_ns(record)[0]) for record in answers.records)
    found = np.fromiter(values, np.float64, len(answers.records))
    return Sample(found[~np.isnan(found)])


ESTIMATORS: tuple[tuple[str, str, Callable[[Answers], Sample]], ...] = (
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
    values, weights = sample
    total = len(values) if weights is None else int(weights.sum())
    # Summed one after the other, so that the mean is that of a plain loop to the last bit.
    weighted = np.cumsum(values if weights is None else values * weights)
    return EstimatorValue(
        estimator=name,
        used_by=used_by,
        mean_ns=float(weighted[-1]) / total if total else None,
        p50_ns=_percentile(sample, 0.50),
        p99_ns=_percentile(sample, 0.99),
    )


def _percentile(sample: Sample, q: float) -> float | None:
    if sample.weights is None:
        return percentile(sample.values, q)
    return token_weighted(sample.values, sample.weights, q)


def _nan(value: float | None) -> float:
    return np.nan if value is None else value


def _span(record: RequestRecord) -> int:
    return record.chunks[-1].arrival_ns - record.chunks[0].arrival_ns


def _tokens(record: RequestRecord) -> int:
    return count_output_tokens(record) or 0
