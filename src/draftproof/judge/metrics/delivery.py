"""How a service delivers its answers: tokens per chunk, gaps between chunks, chunks that arrive together.

From records alone (docs/compare.md, "The delivery signature"). What it suggests is a hint: buffers, proxies
and a stream interval bundle tokens just as verification does, so nothing here states acceptance or proves
speculation.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from draftproof.core.records import RequestRecord
from draftproof.judge.metrics.request import chunk_gaps_ns, count_output_tokens
from draftproof.judge.metrics.service import nearest_rank

Ints = npt.NDArray[np.int64]
CountedBy = Literal["per_chunk", "final_usage"]
Hint = Literal["bundled_chunks", "bursts", "bundled_chunks_and_bursts", "no_sign", "unknown"]

# A gap of at most this share of the answer's typical pause is no pause: its two chunks arrived together.
BURST_SHARE_OF_PAUSE = 0.10
# Characters split over two chunks and held-back stop strings make a chunk of two tokens now and then; a
# quarter more tokens than chunks is more than these explain.
SEVERAL_TOKENS = 1.25
# Without any token count: three ordinary English tokens. Scripts with fewer characters a token stay below it.
MANY_CHARACTERS = 12.0
MANY_BURST_GAPS = 0.20


class DeliverySummary(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of some answered requests, pooled. Times in ns; what is not known is None.

    `tokens_per_chunk` is tokens / content chunks over the `counted_requests`, by `counted_by`: "per_chunk"
    where the stream counts, "final_usage" where only the total is known. `several_tokens_share` is the share
    of chunks with two tokens or more, `first_chunk_tokens` the mean of first chunks; both need counts per
    chunk. `pause_ns` is the typical pause: half of the time passes in gaps up to it. `burst_gap_share` is the
    share of gaps of at most a tenth of it; chunks with no longer gap between them are one arrival.
    """

    requests: int
    chunks: int
    counted_requests: int
    counted_by: CountedBy | None
    tokens_per_chunk: float | None
    several_tokens_share: float | None
    first_chunk_tokens: float | None
    characters_per_chunk: float | None
    gap_p10_ns: float | None
    gap_p50_ns: float | None
    gap_p90_ns: float | None
    gap_p99_ns: float | None
    pause_ns: float | None
    burst_gap_share: float | None
    chunks_per_arrival: float | None
    tokens_per_arrival: float | None


def summarise_delivery(records: Iterable[RequestRecord]) -> DeliverySummary:
    """Return the delivery of the answered requests among `records`; all None where none has content."""
    answered = [record for record in records if record.outcome == "ok" and record.chunks]
    streams = collect_streams(answered)
    chunks, gaps = len(streams.tokens), streams.gaps_ns
    basis, counted = _choose_counted(answered, streams)
    first, several = _describe_counts(streams)
    bound_ns = streams.find_burst_bound_ns()
    arrivals = None if bound_ns is None else streams.count_arrivals(bound_ns)
    tokens, sizes = _sum_tokens(answered, counted), streams.sizes
    return DeliverySummary(
        requests=len(answered),
        chunks=chunks,
        counted_requests=int(counted.sum()),
        counted_by=basis,
        tokens_per_chunk=_divide(tokens, int(sizes[counted].sum())),
        several_tokens_share=several,
        first_chunk_tokens=first,
        characters_per_chunk=_divide(sum(map(count_characters, answered)), chunks),
        gap_p10_ns=_percentile_ns(gaps, 0.10),
        gap_p50_ns=_percentile_ns(gaps, 0.50),
        gap_p90_ns=_percentile_ns(gaps, 0.90),
        gap_p99_ns=_percentile_ns(gaps, 0.99),
        pause_ns=None if bound_ns is None else bound_ns / BURST_SHARE_OF_PAUSE,
        burst_gap_share=None if bound_ns is None else _divide(int((gaps <= bound_ns).sum()), len(gaps)),
        chunks_per_arrival=None if arrivals is None else _divide(chunks, int(arrivals.sum())),
        tokens_per_arrival=None if arrivals is None else _divide(tokens, int(arrivals[counted].sum())),
    )


class Streams(NamedTuple):
    """The chunks of some answers, one answer after the other.

    `sizes`, shape (answers,): chunks of each, at least one. `tokens`, shape (chunks,): those each chunk
    brought; `counted`, shape (answers,): whether an answer's are all known, 0 stands for them if not.
    `gaps_ns` and `owners`, shape (gaps,): the gaps between chunks and whose they are.
    """

    sizes: Ints
    tokens: Ints
    counted: npt.NDArray[np.bool_]
    gaps_ns: Ints
    owners: Ints

    def find_burst_bound_ns(self) -> float | None:
        """Return the bound of `find_burst_bound_ns`."""
        middle = _percentile_ns(self._find_pauses_ns(), 0.50)
        if middle is None:
            return 0.0 if len(self.gaps_ns) else None
        return BURST_SHARE_OF_PAUSE * middle

    def count_arrivals(self, bound_ns: float) -> Ints:
        """Return how many separate deliveries each answer came in."""
        parted = self.owners[self.gaps_ns > bound_ns]
        return 1 + np.bincount(parted, minlength=len(self.sizes)).astype(np.int64)

    def _find_pauses_ns(self) -> Ints:
        """Return the pause of each answer in which time passes: half of its time passes in gaps up to it.

        Weighted by time, not by count: where four chunks arrive at once and then none for 60 ms, three gaps
        of four are a few microseconds long, while all the time passes in the fourth.
        """
        order = np.lexsort((self.gaps_ns, self.owners))
        gaps, owners = self.gaps_ns[order], self.owners[order]
        passed, counts = np.cumsum(gaps), np.bincount(owners, minlength=len(self.sizes))
        ends = np.cumsum(counts)
        before = np.concatenate([[0], passed])[ends - counts]
        totals = np.concatenate([[0], passed])[ends] - before
        halfway = np.flatnonzero((2 * (passed - before[owners]) >= totals[owners]) & (gaps > 0))
        found: Ints = gaps[halfway[np.unique(owners[halfway], return_index=True)[1]]]
        return found


def collect_streams(answered: Sequence[RequestRecord]) -> Streams:
    """Return the chunks of answers as columns; every answer has one at least."""
    sizes = np.fromiter((len(record.chunks) for record in answered), np.int64, len(answered))
    total, owners = int(sizes.sum()), np.repeat(np.arange(len(answered)), sizes)
    chunks = [chunk for record in answered for chunk in record.chunks]
    arrivals = np.fromiter((chunk.arrival_ns for chunk in chunks), np.int64, total)
    reached = [chunk.cumulative_tokens for chunk in chunks]
    unknown = np.fromiter((count is None for count in reached), np.bool_, total)
    counts = np.fromiter((count or 0 for count in reached), np.int64, total)
    inner = owners[1:] == owners[:-1]
    tokens = np.diff(counts, prepend=0)
    tokens[1:][~inner] = counts[1:][~inner]
    counted = np.bincount(owners[unknown], minlength=len(answered)) == 0
    tokens[~counted[owners]] = 0
    return Streams(sizes, tokens, counted, np.diff(arrivals)[inner], owners[1:][inner])


def find_burst_bound_ns(records: Iterable[RequestRecord]) -> float | None:
    """Return the longest gap that still counts as "together": a tenth of the median pause over requests, ns.

    The median over requests keeps one stalled answer from stretching it. 0 where every gap is 0; None where
    no answer has two chunks.
    """
    return collect_streams([record for record in records if record.chunks]).find_burst_bound_ns()


def count_arrivals(record: RequestRecord, bound_ns: float) -> int:
    """Return how many separate deliveries an answer came in; a gap up to the bound parts nothing."""
    return 1 + sum(gap > bound_ns for gap in chunk_gaps_ns(record)) if record.chunks else 0


def count_characters(record: RequestRecord) -> int:
    """Return the characters of all generated text: answer, reasoning, and tool calls with their names."""
    if record.withheld is not None:
        return record.withheld.characters
    calls = sum(len(call.name) + len(call.arguments) for call in record.tool_calls)
    return len(record.text) + len(record.reasoning_text) + calls


def find_hint(summary: DeliverySummary) -> Hint:
    """Return what the delivery looks like. A hint, whatever it says: see the module's docstring."""
    if not summary.chunks:
        return "unknown"
    is_bundled, is_bursty = _is_bundled(summary), (summary.burst_gap_share or 0.0) >= MANY_BURST_GAPS
    if is_bundled:
        return "bundled_chunks_and_bursts" if is_bursty else "bundled_chunks"
    return "bursts" if is_bursty else "no_sign"


def describe_hint(summary: DeliverySummary) -> str:
    """Return the hint in words; it always says that it is one."""
    hint = find_hint(summary)
    if hint == "unknown":
        return "Hint: none, because no answer was delivered."
    if hint == "no_sign":
        return f"Hint, no proof: nothing suggests bundling ({_describe_chunks(summary)})."
    seen = []
    if hint != "bursts":
        seen.append(f"chunks carry {_describe_chunks(summary)}")
    if hint != "bundled_chunks":
        share = f"{summary.burst_gap_share or 0.0:.0%}"
        seen.append(f"chunks arrive in bursts ({share} of the gaps are no pause)")
    return (
        f"Hint, no proof: delivery looks bundled: {' and '.join(seen)}. Speculation does this, and so do "
        "buffers, proxies and stream intervals; nothing about acceptance follows from it."
    )


def _is_bundled(summary: DeliverySummary) -> bool:
    if summary.tokens_per_chunk is not None:
        return summary.tokens_per_chunk >= SEVERAL_TOKENS
    return (summary.characters_per_chunk or 0.0) >= MANY_CHARACTERS


def _describe_chunks(summary: DeliverySummary) -> str:
    if summary.tokens_per_chunk is None:
        return f"{summary.characters_per_chunk or 0.0:.1f} characters on average, tokens not counted"
    how = " by the final usage" if summary.counted_by == "final_usage" else ""
    return f"{summary.tokens_per_chunk:.2f} tokens on average{how}"


def _choose_counted(
    answered: Sequence[RequestRecord], streams: Streams
) -> tuple[CountedBy | None, npt.NDArray[np.bool_]]:
    """Return the best basis that any answer has, and which answers have it."""
    if streams.counted.any():
        return "per_chunk", streams.counted
    totals = np.fromiter((count_output_tokens(record) is not None for record in answered), np.bool_)
    return ("final_usage" if totals.any() else None), totals


def _sum_tokens(answered: Sequence[RequestRecord], counted: npt.NDArray[np.bool_]) -> int:
    return sum(count_output_tokens(record) or 0 for record in compress(answered, counted.tolist()))


def _describe_counts(streams: Streams) -> tuple[float | None, float | None]:
    """Return the mean tokens of first chunks and the share of chunks with two or more."""
    starts = (np.cumsum(streams.sizes) - streams.sizes)[streams.counted]
    every = streams.tokens[np.repeat(streams.counted, streams.sizes)]
    return (
        _divide(int(streams.tokens[starts].sum()), len(starts)),
        _divide(int((every >= 2).sum()), len(every)),
    )


def _percentile_ns(values: Ints, q: float) -> int | None:
    rank = nearest_rank(len(values), q)
    return int(np.partition(values, rank - 1)[rank - 1]) if len(values) else None


def _divide(amount: float, count: int) -> float | None:
    return amount / count if count else None
