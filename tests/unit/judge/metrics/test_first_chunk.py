"""A time per token is an interval where nobody counts the first chunk's tokens: one to as many as fit."""

import pytest

from draftproof.core.records import ToolCall, Withheld
from draftproof.judge.metrics.request import compute_clocks, compute_request_metrics, most_first_tokens
from draftproof.judge.metrics.service import is_on_time
from draftproof.plan.schema import Objectives

MS = 1_000_000
UNKNOWN = [(100, None), (130, None), (160, None), (190, None)]  # four chunks in 90 ms


@pytest.mark.parametrize(
    ("total", "told", "most"),
    [
        (4, {}, 1),  # every chunk brings a token
        (10, {}, 7),
        (10, {"text": "The answer is no", "piece_chars": (3, 7, 3, 3)}, 3),  # "The": a byte each at least
        (10, {"text": "ありがとう", "piece_chars": (1, 1, 1, 2)}, 3),  # one character of three bytes
        (10, {"reasoning_text": "ab", "text": "cdef", "piece_chars": (3, 1, 1, 1)}, 3),
        (10, {"tool_calls": (ToolCall("go", "{}"),), "piece_chars": (2, 1, 1, 0)}, 2),
        (10, {"text": "abcdefghijkl", "piece_chars": (9, 1, 1, 1)}, 7),  # the chunks leave no more
        (10, {"decode_steps": 3}, 1),  # three steps, three chunks after the prefill's
        (10, {"decode_steps": 4}, 7),  # one step at least shares a chunk, perhaps the first
        (10, {"withheld": Withheld(first_bytes=5)}, 5),
        (10, {"withheld": Withheld()}, 7),
        (3, {}, 1),  # a chunk that only flushed text
    ],
)
def test_the_first_chunk_holds_no_more_than_the_rest_leaves_it(build_record, total, told, most):
    """The other chunks, its own text and the engine's steps bound it, whichever is least."""
    assert most_first_tokens(build_record(UNKNOWN, output_tokens=total, **told), total) == most


def test_the_interval_ends_at_the_most_that_the_first_chunk_may_hold(build_record):
    """90 ms for nine tokens, or for three if seven of the ten came first: 10 to 30 ms."""
    metrics = compute_request_metrics(build_record(UNKNOWN, output_tokens=10), 200 * MS)
    assert [metrics.tpot_ns, metrics.tpot_most_ns] == pytest.approx([10 * MS, 30 * MS])
    assert metrics.tpot_basis == "single_first_token_assumed"


def test_a_counted_first_chunk_leaves_no_interval(build_record):
    """Four tokens in the first chunk of ten: 90 ms for six, and nothing else."""
    record = build_record([(100, 4), (130, 6), (160, 8), (190, 10)])
    metrics = compute_request_metrics(record, 200 * MS)
    assert metrics.tpot_ns == metrics.tpot_most_ns == 15 * MS


def test_clocks_alone_have_no_bound(build_record):
    """What a live line shows of a request is made without its inner chunks, which the bound takes."""
    clocks = compute_clocks(build_record(UNKNOWN, output_tokens=10))
    assert (clocks.tpot_ns, clocks.tpot_most_ns) == (10 * MS, None)


@pytest.mark.parametrize(("limit_ms", "met"), [(9, False), (20, None), (31, True)])
def test_a_deadline_inside_the_interval_is_neither_met_nor_missed(build_record, limit_ms, met):
    """10 to 30 ms per token: too late for 9, in time for 31, and of 20 nobody can tell."""
    record = build_record(UNKNOWN, output_tokens=10)
    metrics = compute_request_metrics(record, 200 * MS)
    assert is_on_time(record, metrics, Objectives(tpot_ms=limit_ms)) is met
