"""Where server time goes, and on-time requests."""

from types import SimpleNamespace

from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.metrics.service import is_on_time

MS = 1_000_000
NONE = SimpleNamespace(ttft_ms=None, tpot_ms=None, e2e_ms=None)


def judge(record, **limits):
    objectives = SimpleNamespace(**{**vars(NONE), **limits})
    return is_on_time(record, compute_request_metrics(record, 200 * MS), objectives)


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
