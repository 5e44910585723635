"""Other estimators: each formula by hand on one stream, and the disagreement they are known for."""

import numpy as np
import pytest

from draftproof.core.records import SpecCounts
from draftproof.judge.metrics.estimators import other_estimators

MS = 1_000_000


def by_name(records):
    return {value.estimator: value for value in other_estimators(records)}


@pytest.fixture
def stream(build_record):
    """Sent at 0; first chunk at 40 ms with 2 tokens, then 4 tokens at 60 ms and 1 at 80 ms."""
    return build_record([(40, 2), (60, 6), (80, 7)], output_tokens=7, speculation=SpecCounts(2, 8, 3))


@pytest.mark.parametrize(
    ("estimator", "mean_ms"),
    [
        ("chunk_gap", 20.0),
        ("gap_spread_over_tokens", 40 / 5),
        ("gap_over_run_acceptance", 20 / 2.5),
        ("zeros_and_full_gap", 40 / 6),
        ("request_rate_token_weighted", 40 / 6),
        ("latency_over_all_tokens", 80 / 7),
        ("waits_over_chunks", 80 / 3),
        ("tokens_minus_one", 40 / 6),
        ("tpot_ns", 40 / 5),
    ],
)
def test_every_estimator_follows_its_formula(estimator, mean_ms, stream):
    """The mean of each estimator on one stream equals the value worked out by hand."""
    assert by_name([stream])[estimator].mean_ns == pytest.approx(mean_ms * MS)


def test_the_median_token_gap_is_zero_under_speculation(stream):
    """Most tokens share a chunk with another one, so the median of per-token gaps says nothing."""
    assert by_name([stream])["zeros_and_full_gap"].p50_ns == 0.0


def test_a_long_request_weighs_by_its_tokens(build_record):
    """The token-weighted rate lets a request of 100 tokens outweigh three of 2 tokens."""
    long = build_record([(0, 1), (990, 100)])
    short = build_record([(0, 1), (50, 2)])
    values = by_name([long, short, short, short])
    assert values["request_rate_token_weighted"].p50_ns == pytest.approx(10 * MS)
    assert values["tokens_minus_one"].p50_ns == pytest.approx(50 * MS)


def test_undisclosed_acceptance_divides_by_one(build_record):
    """Without counters the corrected gap is the raw gap, as in the tool that uses it."""
    values = by_name([build_record([(0, 1), (20, 5)])])
    assert values["gap_over_run_acceptance"].mean_ns == values["chunk_gap"].mean_ns == 20 * MS


def test_failed_requests_and_empty_input_give_no_values(build_record):
    """Without a successful request every estimator is None."""
    failed = build_record([(1, 1), (2, 2)], outcome="cut")
    assert [value.mean_ns for value in other_estimators([failed])] == [None] * 9
    assert [value.p99_ns for value in other_estimators([])] == [None] * 9


def test_uncounted_streams_leave_token_estimators_without_a_value(build_record):
    """Gaps exist without token counts; what needs counts or a send time is None."""
    values = by_name([build_record([(0, None), (20, None)], sent_ns=None)])
    assert values["chunk_gap"].mean_ns == 20 * MS
    missing = {"gap_spread_over_tokens", "zeros_and_full_gap", "latency_over_all_tokens", "waits_over_chunks"}
    assert {name for name in missing if values[name].mean_ns is None} == missing


def test_the_same_service_is_worse_or_better_by_the_estimator(build_record):
    """Steps 1.5 times as long with 2.7 tokens each: raw gaps grow by half, time per token falls by 45 %."""
    rng = np.random.default_rng(4)
    baseline = build_record([(100 + 12 * i, 1 + i) for i in range(256)])
    tokens = np.cumsum(rng.choice([1, 2, 3, 4], p=[0.2, 0.2, 0.3, 0.3], size=95))
    chunks = [(100.0, 1), *[(100 + 18 * (i + 1), 1 + int(n)) for i, n in enumerate(tokens)]]
    before, after = by_name([baseline]), by_name([build_record(chunks)])
    ratio = {name: after[name].mean_ns / before[name].mean_ns for name in before}
    assert ratio["chunk_gap"] == pytest.approx(1.5)
    assert ratio["tpot_ns"] == pytest.approx(1.5 / (tokens[-1] / 95))
    assert 0.5 < ratio["tpot_ns"] < 0.6
    assert ratio["waits_over_chunks"] > 1.4
    assert after["zeros_and_full_gap"].p50_ns == 0.0
