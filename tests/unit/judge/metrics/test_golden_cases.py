"""The golden cases, every expected key of each."""

import json
from pathlib import Path

import pytest

from draftproof.core.records import SpecCounts
from draftproof.judge.metrics.acceptance import committed_progress, count_decode_steps, pool_acceptance
from draftproof.judge.metrics.request import (
    compute_request_metrics,
    end_to_end_gain,
    itl_arrival_ns,
    playback_wait_ns,
)

CASES = Path(__file__).parents[3] / "golden" / "cases"
MS = 1_000_000
TRACES = json.loads((CASES / "chunk_traces.json").read_text())
PROGRESS = json.loads((CASES / "progress.json").read_text())
DIRECT = {
    "ttft_ns",
    "ttft_from_schedule_ns",
    "output_tokens",
    "tpot_basis",
    "tpot_ns",
    "stall_count",
    "longest_stall_ns",
}


def _name(case):
    return case["name"]


@pytest.fixture
def trace_record(build_record):
    def build(case):
        return build_record(
            case["content_chunks_ms"],
            scheduled_ns=case["scheduled_ms"] * MS,
            sent_ns=case["sent_ms"] * MS,
            output_tokens=case["usage_completion_tokens"],
        )

    return build


@pytest.mark.parametrize("case", TRACES, ids=_name)
def test_a_chunk_trace_has_the_stated_metrics(case, trace_record):
    """Every value that a chunk trace states for a request comes out exactly."""
    record = trace_record(case)
    metrics = compute_request_metrics(record, case["stall_threshold_ms"] * MS)
    expected = case["expected"]
    for key in DIRECT & expected.keys():
        assert getattr(metrics, key) == expected[key], key
    assert list(metrics.icl_ns) == expected["icl_ns"]


@pytest.mark.parametrize("case", TRACES, ids=_name)
def test_a_chunk_trace_has_the_stated_token_times(case, trace_record):
    """Reading waits and per-token gaps of a chunk trace come out exactly, and are None without counts."""
    record, expected = trace_record(case), case["expected"]
    for rate, wait_ns in expected.get("playback_wait_ns", {}).items():
        assert playback_wait_ns(record, float(rate)) == wait_ns
    gaps = itl_arrival_ns(record)
    assert (None if gaps is None else list(gaps)) == expected.get("itl_arrival_ns")


@pytest.mark.parametrize("case", TRACES, ids=_name)
def test_no_expected_key_of_a_chunk_trace_is_left_out(case):
    """The two tests above look at every key a chunk trace states."""
    assert case["expected"].keys() <= DIRECT | {"icl_ns", "playback_wait_ns", "itl_arrival_ns"}


@pytest.mark.parametrize("case", PROGRESS["committed_progress"], ids=_name)
def test_committed_progress_is_pooled(case, build_round):
    """Time per committed token is total time over total tokens."""
    rounds = [build_round(committed=tokens, verify_ns=ms * MS) for ms, tokens in case["rounds"]]
    summary = committed_progress(rounds)
    assert summary is not None
    assert summary.time_per_committed_token_ns == pytest.approx(case["expected_ms_per_committed_token"] * MS)


@pytest.mark.parametrize("case", PROGRESS["end_to_end"], ids=_name)
def test_the_end_to_end_bound_follows_the_decode_share(case):
    """A task of fixed and decoding time speeds up as stated."""
    total_s = case["fixed_s"] + case["decode_s"]
    gain = end_to_end_gain(case["decode_s"] / total_s, case["decode_speedup"])
    assert gain == pytest.approx(case["expected_gain"])
    assert total_s / gain == pytest.approx(case["expected_total_s"])


@pytest.mark.parametrize("case", PROGRESS["acceptance"], ids=_name)
def test_acceptance_from_counters_has_the_stated_values(case, build_record):
    """Counters and a token count give every stated rate, and never beat the stated upper bound."""
    record = build_record(
        output_tokens=case["completion_tokens"],
        speculation=SpecCounts(case["verification_steps"], case["drafted"], case["accepted"]),
    )
    summary = pool_acceptance([record])
    assert summary is not None
    for key, value in case["expected"].items():
        assert getattr(summary, key) == pytest.approx(value), key
    bound = case.get("expected_upper_bound_tokens_per_decode_step", float("inf"))
    assert summary.tokens_per_decode_step is not None
    assert summary.tokens_per_decode_step <= bound
    assert count_decode_steps(record) == (summary.decode_steps, case["completion_tokens"] - 1)
