"""Records built from what a test cares about; everything else is fixed and plausible."""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from draftproof.core.records import Chunk, RequestRecord, Round

MS = 1_000_000
BuildRecord = Callable[..., RequestRecord]
BuildRound = Callable[..., Round]


@pytest.fixture
def build_record() -> BuildRecord:
    """Build a record from chunks in (ms, cumulative tokens); any field of the record can be given."""

    def build(chunks_ms: Sequence[tuple[float, int | None]] = (), **fields) -> RequestRecord:
        chunks = tuple(Chunk(round(at * MS), tokens) for at, tokens in chunks_ms)
        plain = RequestRecord(
            request_id="r",
            arm="baseline",
            load="low",
            block=0,
            repeat=0,
            item_id="i",
            phase="measure",
            order_in_block=0,
            concurrency=1,
            seed=None,
            scheduled_ns=0,
            sent_ns=0,
            headers_ns=None,
            end_ns=chunks[-1].arrival_ns if chunks else 0,
            outcome="ok",
            chunks=chunks,
        )
        return msgspec.structs.replace(plain, **fields)

    return build


@pytest.fixture
def build_round() -> BuildRound:
    """Build a round from its drafts, accepted drafts and (by default) accepted + 1 committed tokens."""

    def build(proposed: int = 0, accepted: int = 0, committed: int | None = None, **fields: int) -> Round:
        plain = Round(
            proposed=proposed,
            accepted=accepted,
            committed=accepted + 1 if committed is None else committed,
            draft_ns=0,
            verify_ns=0,
            sample_ns=0,
            schedule_ns=0,
            batch_size=1,
            prefill_tokens=0,
        )
        return msgspec.structs.replace(plain, **fields)

    return build
