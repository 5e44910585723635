"""How a service delivers its answers: tokens per chunk, gaps between chunks, chunks that arrive together.

Pure, from records alone (docs/compare.md, "The delivery signature"). It is all that can be measured of a
service that discloses nothing. What it suggests is a hint: buffers, proxies and a server's stream interval
bundle tokens just as a verification step does, so nothing here states acceptance or proves speculation.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from draftproof.metrics.percentiles import percentile
from draftproof.metrics.request import chunk_gaps_ns, count_output_tokens, tokens_per_chunk
from draftproof.records import RequestRecord

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
    of chunks with two tokens or more, and `first_chunk_tokens` the mean of first chunks; both need counts per
    chunk. `characters_per_chunk` is known for every answer. `pause_ns` is the typical pause
    (`find_pause_ns`), `burst_gap_share` the share of gaps of at most a tenth of it; chunks with no longer gap
    between them are one arrival.
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
    chunks = sum(len(record.chunks) for record in answered)
    gaps = [gap for record in answered for gap in chunk_gaps_ns(record)]
    basis, counted = _choose_counted(answered)
    first, several = _describe_counts(answered)
    bound_ns = find_burst_bound_ns(answered)
    return DeliverySummary(
        requests=len(answered),
        chunks=chunks,
        counted_requests=len(counted),
        counted_by=basis,
        tokens_per_chunk=_divide(_sum_tokens(counted), sum(len(one.chunks) for one in counted)),
        several_tokens_share=several,
        first_chunk_tokens=first,
        characters_per_chunk=_divide(sum(map(count_characters, answered)), chunks),
        gap_p10_ns=percentile(gaps, 0.10),
        gap_p50_ns=percentile(gaps, 0.50),
        gap_p90_ns=percentile(gaps, 0.90),
        gap_p99_ns=percentile(gaps, 0.99),
        pause_ns=None if bound_ns is None else bound_ns / BURST_SHARE_OF_PAUSE,
        burst_gap_share=None
        if bound_ns is None
        else _divide(sum(gap <= bound_ns for gap in gaps), len(gaps)),
        chunks_per_arrival=_per_arrival(chunks, answered, bound_ns),
        tokens_per_arrival=_per_arrival(_sum_tokens(counted), counted, bound_ns),
    )


def find_pause_ns(gaps_ns: Sequence[int]) -> int | None:
    """Return the typical pause of one stream: half of its time passes in gaps no longer than this.

    None where no time passes at all.
    The median weighted by time, not by count: where four chunks arrive at once and then nothing for 60 ms,
    three gaps of four are a few microseconds long and the median is one of them, while all the time passes
    in the fourth.
    """
    half, passed = sum(gaps_ns) / 2, 0
    for gap in sorted(gaps_ns):
        passed += gap
        if passed >= half and gap > 0:
            return gap
    return None


def find_burst_bound_ns(records: Iterable[RequestRecord]) -> float | None:
    """Return the longest gap that still counts as "together": a tenth of the median pause over requests, ns.

    The median over requests keeps one stalled answer from stretching it. 0 where every gap is 0; None where
    no answer has two chunks.
    """
    gaps = [found for record in records if (found := chunk_gaps_ns(record))]
    pauses = [pause for each in gaps if (pause := find_pause_ns(each)) is not None]
    middle = percentile(pauses, 0.50)
    if middle is None:
        return 0.0 if gaps else None
    return BURST_SHARE_OF_PAUSE * middle


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
    answered: Sequence[RequestRecord],
) -> tuple[CountedBy | None, list[RequestRecord]]:
    """Return the best basis that any answer has, and the answers that have it."""
    per_chunk = [record for record in answered if tokens_per_chunk(record) is not None]
    if per_chunk:
        return "per_chunk", per_chunk
    totals = [record for record in answered if count_output_tokens(record) is not None]
    return ("final_usage", totals) if totals else (None, [])


def _sum_tokens(records: Iterable[RequestRecord]) -> int:
    return sum(count_output_tokens(record) or 0 for record in records)


def _describe_counts(answered: Iterable[RequestRecord]) -> tuple[float | None, float | None]:
    """Return the mean tokens of first chunks and the share of chunks with two or more."""
    counts = [found for record in answered if (found := tokens_per_chunk(record))]
    every = [count for each in counts for count in each]
    return (
        _divide(sum(each[0] for each in counts), len(counts)),
        _divide(sum(count >= 2 for count in every), len(every)),
    )


def _share_bursts(gaps_ns: Sequence[int], bound_ns: float | None) -> float | None:
    return None if bound_ns is None else _divide(sum(gap <= bound_ns for gap in gaps_ns), len(gaps_ns))


def _per_arrival(amount: int, records: Sequence[RequestRecord], bound_ns: float | None) -> float | None:
    if bound_ns is None:
        return None
    return _divide(amount, sum(count_arrivals(record, bound_ns) for record in records))


def _divide(amount: float, count: int) -> float | None:
    return amount / count if count else None
