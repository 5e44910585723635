"""Identities inside one record: each breach is named, and a sound record has none."""

import pytest

from draftproof.core.records import SpecCounts
from draftproof.judge.metrics.identities import acceptance_faults, timeline_faults

MS = 1_000_000


def test_a_sound_record_has_no_fault(build_record, build_round):
    """Rounds, counters and token count that agree raise nothing."""
    record = build_record(
        [(10, 1), (20, 4), (30, 5)],
        output_tokens=5,
        rounds=(build_round(3, 2), build_round()),
        speculation=SpecCounts(1, 3, 2, (0, 0, 1)),
    )
    assert acceptance_faults(record) == ()
    assert timeline_faults(record) == ()


def test_a_record_without_counters_has_no_fault(build_record):
    """What a record does not state breaks nothing."""
    assert acceptance_faults(build_record()) == ()
    assert timeline_faults(build_record(sent_ns=None)) == ()


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (SpecCounts(2, 4, 5), "accepted 5 drafts of 4"),
        (SpecCounts(5, 4, 1), "5 verification steps checked 4 drafts"),
        (SpecCounts(0, 4, 0), "4 drafts without a verification step"),
        (SpecCounts(2, 4, -1), "negative"),
        (SpecCounts(3, 6, 2, (1, 1)), "holds 2 steps of 3"),
        (SpecCounts(2, 6, 2, (1, 1)), "holds 1 accepted drafts of 2"),
    ],
)
def test_a_broken_counter_is_named(counts, sentence, build_record):
    """Histogram sums, accepted ≤ drafted and steps ≤ drafted are all checked."""
    assert any(sentence in fault for fault in acceptance_faults(build_record(speculation=counts)))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"proposed": 2, "accepted": 3}, "accepted 3 drafts of 2"),
        ({"proposed": 2, "accepted": 1, "committed": 3}, "committed 3 tokens after 1"),
        ({"verify_ns": -1}, "negative duration"),
    ],
)
def test_a_broken_round_is_named(fields, sentence, build_record, build_round):
    """A round that accepts, commits or lasts what it cannot is a fault with its index."""
    faults = acceptance_faults(build_record(rounds=(build_round(), build_round(**fields))))
    assert any(sentence in fault and "round 1" in fault for fault in faults)


def test_rounds_cannot_commit_more_than_the_answer_holds(build_record, build_round):
    """Committed tokens above the final count of a finished request are a fault."""
    record = build_record(rounds=(build_round(3, 3), build_round(3, 3)), output_tokens=7)
    assert acceptance_faults(record) == ("rounds committed 8 tokens, the answer has 7",)


def test_counters_and_rounds_must_agree(build_record, build_round):
    """A server whose counters are not the sum of its rounds is caught."""
    faults = acceptance_faults(
        build_record(rounds=(build_round(3, 2),), speculation=SpecCounts(1, 3, 1), output_tokens=4)
    )
    assert faults == ("num_accepted_draft_tokens: the server states 1, its rounds sum to 2",)


@pytest.mark.parametrize(
    ("chunks", "fields", "sentence"),
    [
        ([(20, 1), (10, 2)], {"end_ns": 20 * MS}, "earlier"),
        ([(20, 1)], {"sent_ns": 30 * MS}, "earlier"),
        ([(20, 1)], {"end_ns": 10 * MS}, "earlier"),
        ([(10, 2), (20, 1)], {}, "falls"),
        ([(10, 2), (20, 5)], {"output_tokens": 4}, "counts 5 tokens, the final usage 4"),
    ],
)
def test_a_stream_that_runs_backwards_is_named(chunks, fields, sentence, build_record):
    """Times and counts never fall, and the stream never counts more than the final usage."""
    assert any(sentence in fault for fault in timeline_faults(build_record(chunks, **fields)))
