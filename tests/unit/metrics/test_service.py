"""Where server time goes, and on-time requests."""

from types import SimpleNamespace

import pytest

from draftproof.metrics.request import compute_request_metrics
from draftproof.metrics.service import count_on_time, is_on_time, service_shares
from draftproof.records import ServerTimings

MS = 1_000_000
NONE = SimpleNamespace(ttft_ms=None, tpot_ms=None, e2e_ms=None)


def judge(record, **limits):
    objectives = SimpleNamespace(**{**vars(NONE), **limits})
    return is_on_time(record, compute_request_metrics(record, 200 * MS), objectives)


def test_shares_are_pooled_over_requests(build_record):
    """Long requests weigh more: shares are total part over total time."""
    short = build_record(end_ns=100, server=ServerTimings(queue_ns=50, prefill_ns=10, decode_ns=40))
    long = build_record(end_ns=900, server=ServerTimings(queue_ns=0, prefill_ns=90, decode_ns=760))
    shares = service_shares([short, long])
    assert (shares.queue_share, shares.prefill_share, shares.decode_share) == pytest.approx((0.05, 0.1, 0.8))
    assert shares.other_share == pytest.approx(0.05)
    assert shares.requests == 2


def test_undisclosed_parts_are_none(build_record):
    """A part no request discloses is None, and so is the rest; the disclosed part stays."""
    shares = service_shares([build_record(end_ns=100, server=ServerTimings(queue_ns=25))])
    assert (shares.queue_share, shares.prefill_share, shares.decode_share) == (0.25, None, None)
    assert shares.other_share is None


def test_failed_and_unsent_requests_have_no_shares(build_record):
    """Only answered requests enter the shares."""
    server = ServerTimings(queue_ns=1, prefill_ns=1, decode_ns=1)
    records = [
        build_record(end_ns=10, outcome="timeout", server=server),
        build_record(end_ns=10, sent_ns=None, server=server),
    ]
    assert service_shares(records).queue_share is None
    assert service_shares(records).requests == 0


def test_first_token_and_end_count_from_the_schedule(build_record):
    """A request sent late is late for its user even if the server was quick."""
    record = build_record([(60, 1), (70, 2)], sent_ns=50 * MS)
    assert judge(record, ttft_ms=60.0) is True
    assert judge(record, ttft_ms=59.0) is False
    assert judge(record, e2e_ms=69.0) is False


def test_time_per_token_has_its_objective(build_record):
    """The limit on time per output token decides by itself."""
    record = build_record([(60, 1), (70, 2)])
    assert judge(record, tpot_ms=10.0) is True
    assert judge(record, tpot_ms=9.9) is False


def test_a_failed_request_is_never_on_time(build_record):
    """A failure is late, whatever the objectives."""
    assert judge(build_record([(1, 1)], outcome="cut")) is False


def test_an_answer_in_one_chunk_meets_any_time_per_token(build_record):
    """Nothing follows the first chunk, so nothing can come too late."""
    assert judge(build_record([(5, 7)], output_tokens=7), tpot_ms=1.0) is True
    assert judge(build_record([(5, None)]), tpot_ms=1.0) is True


def test_an_uncounted_answer_cannot_be_judged_by_time_per_token(build_record):
    """An unknown rate is neither met nor missed; another missed objective still decides."""
    record = build_record([(5, None), (9, None)])
    assert judge(record, tpot_ms=1.0) is None
    assert judge(record, tpot_ms=1.0, ttft_ms=1.0) is False


def test_the_on_time_share_leaves_out_what_cannot_be_judged(build_record):
    """Failures are in the denominator, requests that cannot be judged are counted apart."""
    records = [
        build_record([(5, 1), (6, 2)]),
        build_record(outcome="timeout"),
        build_record([(5, None), (9, None)]),
    ]
    pairs = [(record, compute_request_metrics(record, 200 * MS)) for record in records]
    counted = count_on_time(pairs, SimpleNamespace(ttft_ms=None, tpot_ms=2.0, e2e_ms=None))
    assert (counted.on_time, counted.judged, counted.unjudged, counted.share) == (1, 2, 1, 0.5)


def test_nothing_attempted_has_no_share():
    """An empty cell has no on-time share rather than 0 or 1."""
    assert count_on_time([], NONE).share is None
