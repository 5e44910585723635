"""Metrics of one request, from its record alone (docs/metrics.md, "Per request").

Times are nanoseconds; a value that the record cannot give is None. A request that failed keeps the values it
got as far as it went. Tokens that no service counted are counted by a tokenizer after the run, each part of
an answer once, as a whole: a chunk has the tokens that begin in it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import Literal

import msgspec

from draftproof.core.records import Chunk, RequestRecord, TokenCounts

TpotBasis = Literal["counted", "single_first_token_assumed"]


# A metric by its field, as people say it; the words of every sentence and table.
METRIC_WORDS = {
    "tpot_ns": "time per token",
    "ttft_ns": "time to first token, from sending",
    "ttft_from_schedule_ns": "time to first token",
    "e2e_ns": "end-to-end time, from sending",
    "e2e_from_schedule_ns": "end-to-end time",
    "output_tokens": "output length",
}


class RequestMetrics(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one request shows. Times in ns.

    `tpot_basis` says how the first chunk's tokens were taken off: "counted" from the stream, or
    "single_first_token_assumed" where the stream gives no counts: time per token then is between `tpot_ns`,
    with one token in the first chunk, and `tpot_most_ns`, with as many as it may hold. `icl_ns` are the gaps
    between content chunks; `longest_stall_ns` is the largest of them, above the stall threshold or not.
    """

    ttft_ns: int | None
    ttft_from_schedule_ns: int | None
    e2e_ns: int | None
    e2e_from_schedule_ns: int
    output_tokens: int | None
    tpot_ns: float | None
    tpot_basis: TpotBasis | None
    icl_ns: tuple[int, ...]
    stall_count: int
    longest_stall_ns: int | None
    tpot_most_ns: float | None = None


def compute_request_metrics(record: RequestRecord, stall_threshold_ns: int) -> RequestMetrics:
    """Return the metrics of one request; gaps above `stall_threshold_ns` count as stalls."""
    gaps = chunk_gaps_ns(record)
    longest = max(gaps, default=0)
    clocks = compute_clocks(record)
    return msgspec.structs.replace(
        clocks,
        icl_ns=gaps,
        stall_count=sum([gap > stall_threshold_ns for gap in gaps]) if longest > stall_threshold_ns else 0,
        longest_stall_ns=longest if gaps else None,
        tpot_most_ns=_longest_per_token_ns(record, clocks.tpot_ns, clocks.tpot_basis),
    )


def compute_clocks(record: RequestRecord) -> RequestMetrics:
    """Return the metrics of one request without gaps, stalls and bounds: the cost does not grow with it."""
    first = record.chunks[0].arrival_ns if record.chunks else None
    tpot_ns, tpot_basis = time_per_output_token_ns(record)
    return RequestMetrics(
        ttft_ns=_elapsed(record.sent_ns, first),
        ttft_from_schedule_ns=_elapsed(record.scheduled_ns, first),
        e2e_ns=_elapsed(record.sent_ns, record.end_ns),
        e2e_from_schedule_ns=record.end_ns - record.scheduled_ns,
        output_tokens=count_output_tokens(record),
        tpot_ns=tpot_ns,
        tpot_basis=tpot_basis,
        icl_ns=(),
        stall_count=0,
        longest_stall_ns=None,
    )


def count_output_tokens(record: RequestRecord) -> int | None:
    """Return the server's final count, else the last cumulative count of the stream, else None.

    A count of 0 beside content is a placeholder and no count.
    """
    if record.output_tokens or (record.output_tokens is not None and not record.chunks):
        return record.output_tokens
    return (record.chunks[-1].cumulative_tokens or None) if record.chunks else None


def name_outcome(record: RequestRecord) -> str:
    """Return what a request came to: its outcome, or "empty" for an answer to the end without content."""
    return "empty" if record.outcome == "ok" and is_empty(record) else record.outcome


def is_answered(record: RequestRecord) -> bool:
    """Tell whether a request was answered to the end, and with something: text, reasoning or a tool call."""
    return record.outcome == "ok" and not is_empty(record)


def is_empty(record: RequestRecord) -> bool:
    """Tell whether an answer has no content: nothing arrived, or no text of it (an end token has none).

    Of a withheld one whose characters nobody noted, tokens tell it.
    """
    if not record.chunks:
        return True
    if record.withheld is not None:
        return not record.withheld.characters and (count_output_tokens(record) or 0) <= 1
    return not (record.text or record.reasoning_text or record.tool_calls)


def chunk_gaps_ns(record: RequestRecord) -> tuple[int, ...]:
    """Return the gaps between consecutive content chunks (inter-chunk latency), ns."""
    arrivals = [chunk.arrival_ns for chunk in record.chunks]
    return tuple(map(sub, arrivals[1:], arrivals))


def tokens_per_chunk(record: RequestRecord) -> tuple[int, ...] | None:
    """Return how many tokens each content chunk brought, None where a chunk's count is unknown."""
    counts = [chunk.cumulative_tokens for chunk in record.chunks]
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return None
    return tuple(after - before for before, after in pairwise([0, *known]))


def itl_arrival_ns(record: RequestRecord) -> tuple[int, ...] | None:
    """Return the gap before every token after the first, ns: 0 inside a chunk, the full gap between chunks.

    Shown for comparison with other tools. Its median says nothing under speculation and no gate uses it.
    None where the stream has no chunks or a chunk's count is unknown.
    """
    counts = tokens_per_chunk(record)
    if not counts:
        return None
    bearing = [
        (chunk.arrival_ns, count) for chunk, count in zip(record.chunks, counts, strict=True) if count > 0
    ]
    arrivals = [arrival for arrival, count in bearing for _ in range(count)]
    return tuple(after - before for before, after in pairwise(arrivals))


def playback_wait_ns(record: RequestRecord, tokens_per_s: float) -> float | None:
    """Return how long a reader of `tokens_per_s` who starts at the first chunk waits in all, ns.

    max(0, max over tokens i of t_i − t_1 − (i − 1)/v); inside a chunk the first token waits longest. None
    where the stream has no chunks or a chunk's count is unknown.

    Raises:
        ValueError: `tokens_per_s` is not positive.
    """
    if tokens_per_s <= 0:
        raise ValueError(f"tokens_per_s must be positive, got {tokens_per_s}")
    counts = tokens_per_chunk(record)
    if not counts:
        return None
    start, wait, seen = record.chunks[0].arrival_ns, 0.0, 0
    for chunk, count in zip(record.chunks, counts, strict=True):
        if count > 0:
            wait = max(wait, chunk.arrival_ns - start - seen * 1e9 / tokens_per_s)
        seen += count
    return wait


def time_per_output_token_ns(record: RequestRecord) -> tuple[float | None, TpotBasis | None]:
    """Return the time per output token after the first chunk, ns, and how that chunk's tokens came off.

    Time and tokens are of one span: those between the first and the last counted chunk. Where only the total
    is known the tokens end with the event that says so; a total of which some were never streamed belongs to
    no span.
    """
    if not record.chunks:
        return None, None
    first, last = record.chunks[0], record.chunks[-1]
    total = count_output_tokens(record)
    if first.cumulative_tokens is not None and last.cumulative_tokens is not None:
        basis: TpotBasis = "counted"
        tokens, end_ns = last.cumulative_tokens - first.cumulative_tokens, last.arrival_ns
    elif total is not None and not record.unstreamed_tokens:
        basis = "single_first_token_assumed"
        tokens, end_ns = total - 1, max(last.arrival_ns, record.finish_ns or 0)
    else:
        return None, None
    # A lone chunk spans no time: without counts the formula would give 0 ns per token, which is no rate.
    if tokens < 1 or len(record.chunks) < 2:
        return None, basis
    return (end_ns - first.arrival_ns) / tokens, basis


def most_first_tokens(record: RequestRecord, total: int) -> int:
    """Return the most tokens that a first chunk may hold whose tokens nobody counts, at least 1.

    Each other chunk brings a token at least, each token of the first a byte of its text. Where every decode
    step has a chunk after the first, that holds the one token of the prefill.
    """
    others = len(record.chunks) - 1
    if record.decode_steps is not None and record.decode_steps <= others:
        return 1
    return max(1, min(total - others, count_first_bytes(record) or total))


def count_first_bytes(record: RequestRecord) -> int | None:
    """Return the bytes (UTF-8) of the first chunk's text; None without text or where its length is lost."""
    if record.withheld is not None:
        return record.withheld.first_bytes
    if not record.piece_chars:
        return None
    calls = (part for call in record.tool_calls for part in (call.name, call.arguments))
    generated = "".join((record.reasoning_text, record.text, *calls))
    return len(generated[: record.piece_chars[0]].encode("utf-8", "surrogatepass")) or None


def _longest_per_token_ns(
    record: RequestRecord, tpot_ns: float | None, basis: TpotBasis | None
) -> float | None:
    """Return the time per token with as many tokens in the first chunk as it may hold, ns."""
    total = count_output_tokens(record)
    if tpot_ns is None or total is None or basis != "single_first_token_assumed":
        return tpot_ns
    return tpot_ns * (total - 1) / (total - most_first_tokens(record, total))


def _elapsed(start_ns: int | None, end_ns: int | None) -> int | None:
    return None if start_ns is None or end_ns is None else end_ns - start_ns


def end_to_end_gain(decode_share: float, decode_speedup: float | None) -> float:
    """Return old / new time, 1 / ((1 − f) + f / s), for decoding share f and speed-up s (Amdahl 1967).

    A speed-up of None asks for the limit, decoding made free; infinite where all the time is decoding then.

    Raises:
        ValueError: the share is outside [0, 1] or the speed-up is not positive.
    """
    if not 0.0 <= decode_share <= 1.0:
        raise ValueError(f"decode_share is a share between 0 and 1, got {decode_share}")
    if decode_speedup is not None and decode_speedup <= 0:
        raise ValueError(f"decode_speedup must be positive, got {decode_speedup}")
    decoding = 0.0 if decode_speedup is None else decode_share / decode_speedup
    remaining = (1.0 - decode_share) + decoding
    return 1.0 / remaining if remaining > 0 else math.inf


TokenStarts = Callable[[str], Sequence[int]]  # a text to the characters at which its tokens begin, in order


def list_uncounted(records: Iterable[RequestRecord]) -> tuple[RequestRecord, ...]:
    """Return the records whose chunks a tokenizer can count and nobody has."""
    return tuple(one for one in records if one.token_source is None and one.piece_chars is not None)


def count_tokens(record: RequestRecord, starts_of: TokenStarts) -> tuple[int, ...] | None:
    """Return the cumulative tokens of a record's chunks; None where its texts are not those that arrived."""
    ends = list(accumulate(record.piece_chars or ()))
    parts = [record.reasoning_text, record.text, *(call.name + call.arguments for call in record.tool_calls)]
    if len(ends) != len(record.chunks) or not ends or ends[-1] != sum(map(len, parts)):
        return None
    starts = list(_list_starts(parts, starts_of))
    return (*(bisect_left(starts, end) for end in ends[:-1]), len(starts))


def apply_counts(
    records: Iterable[RequestRecord], counts: Iterable[TokenCounts]
) -> tuple[RequestRecord, ...]:
    """Return records with the counts that were made of them; what a service counted stays as it is."""
    known = {(one.request_id, one.end_ns): one.cumulative_tokens for one in counts}
    if not known:
        return tuple(records)
    return tuple(_apply(one, known.get((one.request_id, one.end_ns))) for one in records)


def _list_starts(parts: Iterable[str], starts_of: TokenStarts) -> Iterator[int]:
    """Yield where each token begins in the parts put together."""
    before = 0
    for part in parts:
        if part:
            yield from accumulate((before + start for start in starts_of(part)), max)
        before += len(part)


def _apply(record: RequestRecord, counts: Sequence[int] | None) -> RequestRecord:
    if counts is None or record.token_source is not None or len(counts) != len(record.chunks):
        return record
    chunks = tuple(Chunk(chunk.arrival_ns, count) for chunk, count in zip(record.chunks, counts, strict=True))
    return msgspec.structs.replace(record, chunks=chunks, token_source="tokenizer")  # noqa: S106 - no secret
