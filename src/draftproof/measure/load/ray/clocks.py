"""How far another host's monotonic clock is from ours, and times carried over. Pure.

A ping is read here, there, and here again. Wherever in between the other clock was read, the middle of the
round trip is wrong by at most half of it, so the shortest ping bounds the error best; nothing is assumed of
how long either way took.
"""

from collections.abc import Sequence

import msgspec

from draftproof.core.records import BlockRecord, Chunk, RequestRecord
from draftproof.measure.load.workers.messages import Count, Start, Word


class Ping(msgspec.Struct, frozen=True):
    """One exchange in nanoseconds: sent and received by our clock, answered by the other one."""

    sent_ns: int
    answered_ns: int
    received_ns: int


class Offset(msgspec.Struct, frozen=True):
    """The other clock less ours, in nanoseconds, and how wrong that may be either way."""

    offset_ns: int
    error_ns: int


def estimate_offset(pings: Sequence[Ping]) -> Offset:
    """Return the offset that the ping with the shortest round trip shows, of at least one."""
    best = min(pings, key=lambda ping: ping.received_ns - ping.sent_ns)
    trip_ns = best.received_ns - best.sent_ns
    middle_ns = best.sent_ns + trip_ns // 2
    return Offset(best.answered_ns - middle_ns, -(-trip_ns // 2))


def widen_error(before: Offset, after: Offset) -> Offset:
    """Return the offset that a turn was run with, its error wide enough for what the clocks did meanwhile.

    `before`: estimated before the turn; times are converted by it. `after`: estimated after the turn.
    """
    moved_ns = abs(after.offset_ns - before.offset_ns) + after.error_ns
    return Offset(before.offset_ns, max(before.error_ns, moved_ns))


def to_worker_time(word: Word, offset_ns: int) -> Word:
    """Return a word with its time by the clock of the worker."""
    match word:
        case Start():
            return Start(word.start_ns + offset_ns)
        case Count():
            return Count(word.base_ns + offset_ns)
    return word


def record_to_our_time(record: RequestRecord, offset_ns: int) -> RequestRecord:
    """Return a request's record by our clock; every duration in it stays what it was."""
    return msgspec.structs.replace(
        record,
        scheduled_ns=record.scheduled_ns - offset_ns,
        sent_ns=_shift(record.sent_ns, offset_ns),
        headers_ns=_shift(record.headers_ns, offset_ns),
        end_ns=record.end_ns - offset_ns,
        finish_ns=_shift(record.finish_ns, offset_ns),
        chunks=tuple(Chunk(one.arrival_ns - offset_ns, one.cumulative_tokens) for one in record.chunks),
    )


def block_to_our_time(block: BlockRecord, offset_ns: int) -> BlockRecord:
    """Return the record of a part by our clock."""
    return msgspec.structs.replace(
        block,
        started_ns=block.started_ns - offset_ns,
        ended_ns=block.ended_ns - offset_ns,
        counted_from_ns=_shift(block.counted_from_ns, offset_ns),
    )


def _shift(at_ns: int | None, offset_ns: int) -> int | None:
    return None if at_ns is None else at_ns - offset_ns
