"""The metrics block: what is read, and which identities are checked."""

from draftproof.core.records import ServerTimings, SpecCounts
from draftproof.services.engines.chat.metrics_block import find_disagreements, parse_metrics

ROUNDS = {
    "proposed": [4, 0, 4],
    "accepted": [2, 0, 4],
    "committed": [3, 1, 5],
    "draft_ns": [1, 0, 1],
    "verify_ns": [20, 20, 20],
    "sample_ns": [1, 1, 1],
    "schedule_ns": [2, 2, 2],
    "batch_size": [1, 2, 1],
    "prefill_tokens": [0, 7, 0],
}
COUNTERS = {
    "num_spec_steps": 2,
    "num_draft_tokens": 8,
    "num_accepted_draft_tokens": 6,
    "acceptance_histogram": [0, 0, 1, 0, 1],
    "mean_acceptance_length": 4.0,
}


def test_counters_rounds_times_and_fallbacks_are_read():
    """Every part of the reference engine's block reaches the record, times in nanoseconds."""
    reading = parse_metrics(
        {
            "queue_time_ms": 1.5,
            "prefill_time_ms": 2,
            "generation_time_ms": None,
            "speculative_decoding": COUNTERS,
            "rounds": ROUNDS,
            "fallbacks": 1,
        }
    )
    assert reading.rounds is not None
    assert reading.server == ServerTimings(queue_ns=1_500_000, prefill_ns=2_000_000, decode_ns=None)
    assert reading.speculation == SpecCounts(2, 8, 6, (0, 0, 1, 0, 1))
    assert [one.rejection_position for one in reading.rounds] == [2, None, None]
    assert reading.rounds[1].prefill_tokens == 7
    assert reading.fallbacks == 1
    assert find_disagreements(reading, output_tokens=10) == ()


def test_an_absent_block_leaves_everything_unknown():
    """No block is None everywhere, not zero."""
    reading = parse_metrics(None)
    assert (reading.speculation, reading.rounds, reading.fallbacks) == (None, None, None)
    assert find_disagreements(reading, output_tokens=3) == ()


def test_an_unreadable_block_is_named_and_does_not_fail_the_answer():
    """A missing or mistyped counter gives a warning and no numbers."""
    for block in ({"speculative_decoding": {"num_spec_steps": 2}}, [1], {"queue_time_ms": "soon"}):
        reading = parse_metrics(block)
        assert reading.speculation is None
        assert "cannot be read" in reading.warnings[0]


def test_lists_of_rounds_that_differ_in_length_are_refused():
    """Rounds cannot be told apart then, so there are none, and the reason is given."""
    reading = parse_metrics({"rounds": ROUNDS | {"accepted": [2]}})
    assert reading.rounds is None
    assert reading.warnings == ("the lists of rounds differ in length: [1, 3]",)


def test_counters_that_break_an_identity_are_named_and_kept():
    """Histogram sums and accepted ≤ drafted are checked; the stated values stay."""
    broken = COUNTERS | {"num_spec_steps": 3, "num_accepted_draft_tokens": 9}
    reading = parse_metrics({"speculative_decoding": broken})
    assert reading.speculation is not None
    assert reading.speculation.num_accepted_draft_tokens == 9
    assert find_disagreements(reading, None) == (
        "the acceptance histogram holds 2 steps, num_spec_steps says 3",
        "the acceptance histogram holds 6 accepted tokens, num_accepted_draft_tokens says 9",
        "9 draft tokens accepted of 8 drafted",
    )


def test_rounds_that_break_an_identity_are_named():
    """Rounds must agree with themselves, with the counters and with the usage."""
    rounds = ROUNDS | {"accepted": [5, 0, 4], "committed": [3, 2, 5]}
    reading = parse_metrics({"rounds": rounds, "speculative_decoding": COUNTERS})
    assert find_disagreements(reading, 12) == (
        "round 0 commits 3 tokens with 5 of 4 drafts accepted",
        "rounds add up to 9 for num_accepted_draft_tokens, the counter says 6",
        "rounds commit 10 tokens after the first, usage says 12 in all",
    )
