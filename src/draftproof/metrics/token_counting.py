"""Tokens of answers that no service counted, by a tokenizer and after the run. Pure.

A record keeps the characters of each chunk. Each part of an answer is tokenised once, as a whole: a chunk has
the tokens that begin in it. So the work grows with the text and not with the number of its beginnings, and no
tokenizer runs while answers arrive.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

import msgspec

from draftproof.records import Chunk, RequestRecord, TokenCounts

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
