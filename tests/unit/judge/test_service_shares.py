"""Shares of the server's own timings and the on-time share, as the cells of an arm get them from columns."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from tests.builders.records import build_item, build_record

from draftproof.core.records import Chunk, ServerTimings
from draftproof.judge.inform.arm_cells import _to_share
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.observe.columns import Columns
from draftproof.judge.observe.observed import Observation

MS = 1_000_000


def columns_of(*records):
    return Columns(
        [
            Observation(
                record=record,
                item=build_item(record.item_id),
                segment="all",
                metrics=compute_request_metrics(record, 200 * MS),
                checks=(),
                timed=True,
                in_order=True,
            )
            for record in records
        ]
    )


def shares_of(*records):
    columns = columns_of(*records)
    answered = np.flatnonzero(columns.is_ok)
    return [_to_share(columns, answered, part) for part in ("queue_ns", "prefill_ns", "decode_ns")]


def test_shares_are_pooled_over_requests():
    """Long requests weigh more: shares are total part over total time."""
    short = build_record(end_ns=100, server=ServerTimings(queue_ns=50, prefill_ns=10, decode_ns=40))
    long = build_record(end_ns=900, server=ServerTimings(queue_ns=0, prefill_ns=90, decode_ns=760))
    assert shares_of(short, long) == pytest.approx([0.05, 0.1, 0.8])


def test_undisclosed_parts_are_none():
    """A part that no request discloses is None; the disclosed part stays."""
    assert shares_of(build_record(end_ns=100, server=ServerTimings(queue_ns=25))) == [0.25, None, None]


def test_failed_and_unsent_requests_have_no_shares():
    """Only answered requests enter the shares."""
    server = ServerTimings(queue_ns=1, prefill_ns=1, decode_ns=1)
    failed = build_record(end_ns=10, outcome="timeout", server=server)
    unsent = msgspec.structs.replace(build_record(end_ns=10, server=server), sent_ns=None)
    assert shares_of(failed, unsent) == [None, None, None]


def test_a_failure_is_late_and_an_uncounted_answer_cannot_be_judged():
    """Failures are in the denominator, requests that cannot be judged are in neither count."""
    columns = columns_of(
        build_record(tokens_per_chunk=(1, 2), ttft_ns=5 * MS, gap_ns=MS),
        build_record(outcome="timeout"),
        build_record(
            chunks=(Chunk(5 * MS, None), Chunk(9 * MS, None)),
            token_source=None,
            output_tokens=None,
        ),
    )
    judged = columns.on_time(SimpleNamespace(ttft_ms=None, tpot_ms=2.0, e2e_ms=None))
    assert judged[:2].tolist() == [1.0, 0.0]
    assert np.isnan(judged[2])
