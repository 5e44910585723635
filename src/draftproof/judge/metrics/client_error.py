"""How far a client's readings are from the truth of a server that knows when it wrote each chunk. Pure.

Both sides read the same clock. A first token is judged as a duration, from request to first chunk on each
side; a gap as the difference of the two sides' gaps; time per token as a ratio. So a constant delay of the
network counts against the first token and not against the cadence, as it would in a measurement.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.core.clock import NS_PER_MS
from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.metrics.service import percentile
from draftproof.judge.stats.quantiles import quantile_intervals

BOUNDS_LEVEL = 0.90  # of both bounds together, so that each holds with 95 %


class TrueAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the server knows of one answer: when the request was whole, when each chunk was written."""

    text: str
    received_ns: int
    written_ns: tuple[int, ...]
    cumulative_tokens: tuple[int, ...]


class ErrorSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Median and 99th percentile of absolute errors in ms; None without a pair to compare."""

    p50: float | None
    p99: float | None
    n: int


class ErrorBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What errors show of the median and the 99th percentile that many more would have, in ms.

    `p50_low` is below that median, `p99_low` and `p99_high` on both sides of that percentile, each with
    95 % confidence and whatever the distribution; None where there are too few for it. `missing`: how many
    more independent values the percentile's bounds need, 0 where they are there.
    """

    p50_low: float | None
    p99_low: float | None
    p99_high: float | None
    missing: int


class ClientError(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of one stretch of load.

    `tpot_relative_error` is the median over requests of |client / truth − 1|. `miscounted` requests delivered
    another number of chunks or tokens than were written; `failed` ones did not end `ok`; `unmatched` ones are
    unknown to the server. None of these has a time to compare.
    The bounds of gaps allow for gaps of one answer being alike.
    """

    ttft_error_ms: ErrorSpread
    gap_error_ms: ErrorSpread
    tpot_relative_error: float | None
    tpot_relative_error_p99: float | None
    requests: int
    chunks: int
    failed: int
    miscounted: int
    unmatched: int
    ttft_bounds_ms: ErrorBounds | None = None
    gap_bounds_ms: ErrorBounds | None = None


def compute_client_error(
    records: Iterable[RequestRecord], truth: Iterable[TrueAnswer], texts: dict[str, str]
) -> ClientError:
    """Return the errors of the records against the truth; `texts` maps an item to what it asked."""
    known = _index(truth)
    matched: list[tuple[RequestRecord, TrueAnswer]] = []
    failed = miscounted = unmatched = requests = chunks = 0
    for record in records:
        requests += 1
        chunks += len(record.chunks)
        answer = _match(record, known.get(texts[record.item_id], ()))
        if record.outcome != "ok":
            failed += 1
        elif answer is None:
            unmatched += 1
        elif not _is_counted_right(record, answer):
            miscounted += 1
        else:
            matched.append((record, answer))
    relative = [error for pair in matched if (error := _tpot_error(*pair)) is not None]
    first_ns = [_ttft_error_ns(*pair) for pair in matched]
    gaps_ns = [_gap_errors_ns(*pair) for pair in matched]
    own = np.repeat(np.arange(len(gaps_ns)), [len(one) for one in gaps_ns])
    every_ns = [error for one in gaps_ns for error in one]
    return ClientError(
        ttft_error_ms=_spread(first_ns),
        gap_error_ms=_spread(every_ns),
        tpot_relative_error=percentile(relative, 0.5),
        tpot_relative_error_p99=percentile(relative, 0.99),
        requests=requests,
        chunks=chunks,
        failed=failed,
        miscounted=miscounted,
        unmatched=unmatched,
        ttft_bounds_ms=_bound(first_ns),
        gap_bounds_ms=_bound(every_ns, own),
    )


def _index(truth: Iterable[TrueAnswer]) -> dict[str, list[TrueAnswer]]:
    known: defaultdict[str, list[TrueAnswer]] = defaultdict(list)
    for answer in truth:
        known[answer.text].append(answer)
    return known


def _match(record: RequestRecord, answers: Sequence[TrueAnswer]) -> TrueAnswer | None:
    """Return the answer to this very request: of those received before its end, the nearest to its sending.

    The server may have read the request before the client could note that the socket had taken it.
    """
    sent_ns = record.sent_ns
    if sent_ns is None:
        return None
    fits = [one for one in answers if one.received_ns <= record.end_ns]
    return min(fits, key=lambda one: abs(one.received_ns - sent_ns), default=None)


def _is_counted_right(record: RequestRecord, answer: TrueAnswer) -> bool:
    counts = tuple(chunk.cumulative_tokens for chunk in record.chunks)
    return counts == answer.cumulative_tokens and record.output_tokens == answer.cumulative_tokens[-1]


def _ttft_error_ns(record: RequestRecord, answer: TrueAnswer) -> float:
    client_ns = record.chunks[0].arrival_ns - (record.sent_ns or 0)
    return abs(client_ns - (answer.written_ns[0] - answer.received_ns))


def _gap_errors_ns(record: RequestRecord, answer: TrueAnswer) -> list[float]:
    arrivals = np.array([chunk.arrival_ns for chunk in record.chunks], dtype=np.int64)
    errors: list[float] = np.abs(np.diff(arrivals) - np.diff(np.array(answer.written_ns))).tolist()
    return errors


def _tpot_error(record: RequestRecord, answer: TrueAnswer) -> float | None:
    tokens = answer.cumulative_tokens[-1] - answer.cumulative_tokens[0]
    client_ns = compute_request_metrics(record, stall_threshold_ns=1).tpot_ns
    if client_ns is None or tokens < 1:
        return None
    true_ns = (answer.written_ns[-1] - answer.written_ns[0]) / tokens
    return abs(client_ns / true_ns - 1) if true_ns > 0 else None


def _bound(errors_ns: Sequence[float], answers: npt.NDArray[np.int64] | None = None) -> ErrorBounds:
    """Return the bounds of some errors; `answers` tells, for each, to which answer it belongs."""
    half, tail = quantile_intervals(np.array(errors_ns) / NS_PER_MS, (0.50, 0.99), BOUNDS_LEVEL, answers)
    return ErrorBounds(p50_low=half.low, p99_low=tail.low, p99_high=tail.high, missing=tail.needed or 0)


def _spread(errors_ns: Sequence[float]) -> ErrorSpread:
    p50, p99 = percentile(errors_ns, 0.50), percentile(errors_ns, 0.99)
    return ErrorSpread(
        p50=None if p50 is None else p50 / NS_PER_MS,
        p99=None if p99 is None else p99 / NS_PER_MS,
        n=len(errors_ns),
    )
