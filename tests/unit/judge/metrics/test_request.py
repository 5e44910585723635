"""Per-request metrics beyond the golden cases: what is unknown stays None."""

import pytest

from draftproof.core.records import ToolCall, Withheld
from draftproof.judge.metrics.request import (
    compute_request_metrics,
    count_output_tokens,
    is_empty,
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


def test_tokens_and_time_are_of_one_span(build_record):
    """Counted chunks give the tokens between them, whatever the closing usage adds."""
    metrics = compute_request_metrics(build_record([(0, 2), (40, 6)], output_tokens=30), 200 * MS)
    assert (metrics.tpot_ns, metrics.output_tokens) == (10 * MS, 30)


def test_a_total_alone_ends_with_the_finish_reason(build_record):
    """Without counts the tokens of the closing usage have come when the service says that it is done."""
    fields = {"output_tokens": 11, "finish_ns": 100 * MS}
    assert (
        compute_request_metrics(build_record([(0, None), (60, None)], **fields), 200 * MS).tpot_ns == 10 * MS
    )
    # A finish reason before the last text, or none, ends nothing.
    early = build_record([(0, None), (60, None)], output_tokens=11, finish_ns=0)
    assert compute_request_metrics(early, 200 * MS).tpot_ns == 6 * MS


def test_a_total_of_which_a_part_was_never_streamed_gives_no_rate(build_record):
    """Hidden tokens are in the total and in no span; counted chunks need no total."""
    fields = {"output_tokens": 11, "unstreamed_tokens": 6}
    assert compute_request_metrics(build_record([(0, None), (60, None)], **fields), 200 * MS).tpot_ns is None
    assert compute_request_metrics(build_record([(0, 1), (60, 5)], **fields), 200 * MS).tpot_ns == 15 * MS


def test_a_total_of_zero_beside_content_is_a_placeholder(build_record):
    """Records of earlier versions may hold one; an answer of nothing has zero tokens."""
    assert count_output_tokens(build_record([(0, None)], output_tokens=0)) is None
    assert count_output_tokens(build_record([(0, 3)], output_tokens=0)) == 3
    assert count_output_tokens(build_record(output_tokens=0)) == 0


@pytest.mark.parametrize(
    ("chunks", "fields", "empty"),
    [
        ((), {"text": "lost"}, True),
        (((0, 1),), {}, True),
        (((0, 1),), {"text": "yes"}, False),
        (((0, 1),), {"reasoning_text": "hm"}, False),
        (((0, 1),), {"tool_calls": (ToolCall("find", ""),)}, False),
        (((0, 1),), {"withheld": Withheld(characters=3)}, False),
        (((0, 1),), {"withheld": Withheld()}, True),
        (((0, 9),), {"withheld": Withheld()}, False),
    ],
)
def test_an_answer_without_text_reasoning_or_call_is_empty(build_record, chunks, fields, empty):
    """An end token is no content; of a withheld answer characters or tokens tell."""
    assert is_empty(build_record(chunks, **fields)) is empty
