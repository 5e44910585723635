"""Per-request metrics beyond the golden cases: what is unknown stays None."""

import pytest

from draftproof.metrics.request import (
    compute_request_metrics,
    count_output_tokens,
    itl_arrival_ns,
    playback_wait_ns,
    tokens_per_chunk,
)

MS = 1_000_000


def test_a_request_that_was_never_sent_has_only_its_time_from_schedule(build_record):
    """Without a send time and chunks, every value but the one from the schedule is None."""
    metrics = compute_request_metrics(
        build_record(sent_ns=None, scheduled_ns=5, end_ns=30, outcome="http_error"), 200 * MS
    )
    assert metrics.e2e_from_schedule_ns == 25
    unknown = (metrics.ttft_ns, metrics.ttft_from_schedule_ns, metrics.e2e_ns, metrics.output_tokens)
    assert unknown == (None, None, None, None)
    assert (metrics.tpot_ns, metrics.tpot_basis, metrics.longest_stall_ns) == (None, None, None)


def test_e2e_ends_at_the_last_event_not_at_the_last_chunk(build_record):
    """The end of the stream counts, from sending and from schedule alike."""
    metrics = compute_request_metrics(
        build_record([(10, 1), (20, 2)], scheduled_ns=-3 * MS, end_ns=25 * MS), 200 * MS
    )
    assert (metrics.e2e_ns, metrics.e2e_from_schedule_ns) == (25 * MS, 28 * MS)


def test_the_stream_counts_where_the_server_gives_no_usage(build_record):
    """Without final usage the last cumulative count is the number of output tokens."""
    record = build_record([(10, 1), (20, 4)])
    assert count_output_tokens(record) == 4
    assert compute_request_metrics(record, 200 * MS).tpot_ns == pytest.approx(10 * MS / 3)


def test_tokens_that_cannot_be_counted_give_no_rate(build_record):
    """Neither usage nor counts: tokens, rate and basis are None, gaps are still there."""
    metrics = compute_request_metrics(build_record([(10, None), (20, None)]), 200 * MS)
    assert (metrics.output_tokens, metrics.tpot_ns, metrics.tpot_basis) == (None, None, None)
    assert metrics.icl_ns == (10 * MS,)


def test_one_uncounted_chunk_is_no_rate_of_zero(build_record):
    """An answer that came in one chunk without counts has no time per token rather than 0 ns."""
    metrics = compute_request_metrics(build_record([(10, None)], output_tokens=7), 200 * MS)
    assert (metrics.tpot_ns, metrics.tpot_basis) == (None, "single_first_token_assumed")


def test_a_gap_as_long_as_the_threshold_is_no_stall(build_record):
    """Stalls are gaps above the threshold."""
    record = build_record([(0, 1), (200, 2), (401, 3)])
    metrics = compute_request_metrics(record, 200 * MS)
    assert (metrics.stall_count, metrics.longest_stall_ns) == (1, 201 * MS)


def test_a_chunk_without_new_tokens_keeps_nobody_waiting(build_record):
    """A late chunk that brings no token adds neither a wait nor a token gap."""
    record = build_record([(0, 1), (10, 2), (900, 2)])
    assert tokens_per_chunk(record) == (1, 1, 0)
    assert playback_wait_ns(record, 50.0) == 0
    assert itl_arrival_ns(record) == (10 * MS,)


def test_token_times_of_an_uncounted_stream_are_unknown(build_record):
    """One unknown count makes waits and token gaps None."""
    record = build_record([(0, 1), (10, None), (20, 3)])
    assert playback_wait_ns(record, 50.0) is None
    assert itl_arrival_ns(record) is None


def test_an_empty_stream_has_no_token_times(build_record):
    """No chunk: waits and token gaps are None, not 0."""
    assert playback_wait_ns(build_record(), 50.0) is None
    assert itl_arrival_ns(build_record()) is None


def test_a_reader_without_speed_is_refused(build_record):
    """A reading speed of zero is a mistake of the caller."""
    with pytest.raises(ValueError, match="tokens_per_s"):
        playback_wait_ns(build_record([(0, 1)]), 0.0)
