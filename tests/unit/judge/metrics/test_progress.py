"""Committed progress and its parts; the bound's limits."""

import math

import pytest

from draftproof.judge.metrics.acceptance import committed_progress
from draftproof.judge.metrics.request import end_to_end_gain


def test_the_parts_add_up_to_the_whole(build_round):
    """Drafting, verification, sampling and scheduling per token sum to the time per committed token."""
    part = {"draft_ns": 10, "verify_ns": 20, "sample_ns": 3, "schedule_ns": 7}
    summary = committed_progress([build_round(3, 1, **part), build_round(3, 2, **part)])
    assert summary is not None
    assert summary.time_per_committed_token_ns == pytest.approx(80 / 5)
    parts = [summary.draft_ns, summary.verify_ns, summary.sample_ns, summary.schedule_ns]
    assert parts == pytest.approx([20 / 5, 40 / 5, 6 / 5, 14 / 5])
    assert (summary.committed_tokens, summary.rounds) == (5, 2)


def test_no_rounds_is_none():
    """Without rounds there is no progress to speak of."""
    assert committed_progress([]) is None


def test_rounds_that_committed_nothing_have_no_time_per_token(build_round):
    """Time without tokens is None, and the rounds are still counted."""
    summary = committed_progress([build_round(committed=0, verify_ns=5)])
    assert summary is not None
    assert (summary.time_per_committed_token_ns, summary.verify_ns, summary.rounds) == (None, None, 1)


def test_a_share_of_zero_gains_nothing():
    """If nothing is decoding, faster decoding changes nothing."""
    assert end_to_end_gain(0.0, 5.0) == 1.0
    assert end_to_end_gain(0.0, None) == 1.0


def test_decoding_alone_gains_in_full():
    """If everything is decoding, the gain is the speed-up, and without limit where decoding is free."""
    assert end_to_end_gain(1.0, 3.0) == pytest.approx(3.0)
    assert end_to_end_gain(1.0, None) == math.inf


@pytest.mark.parametrize(("share", "speedup"), [(-0.1, 2.0), (1.1, 2.0), (0.5, 0.0)])
def test_an_impossible_bound_is_refused(share, speedup):
    """Shares outside 0 to 1 and speed-ups that are not positive are mistakes of the caller."""
    with pytest.raises(ValueError, match=r"must be positive|between 0 and 1"):
        end_to_end_gain(share, speedup)
