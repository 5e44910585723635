"""What the client got over a period, to be held against the service's counters."""

import msgspec
from tests.builders.records import build_failure, build_record, build_round

from draftproof.core.records import SpecCounts
from draftproof.judge.metrics.acceptance import (
    tally_client,
    tokens_per_step_from_chunks,
    tokens_per_step_from_fields,
)


def test_every_phase_but_the_warm_up_counts():
    """A period's first sample comes after the warm-up, and the fill is work that the service does."""
    records = [
        build_record(phase=phase, request_id=phase) for phase in ("measure", "fill", "interrupted", "warmup")
    ]
    found = tally_client(records, {})
    assert (found.sent, found.answered, found.tokens) == (3, 3, 12)


def test_tokens_of_a_request_that_was_broken_off_are_known_in_part():
    """What was delivered counts, and the rest up to the item's limit may have been made."""
    cut = build_record(outcome="cancelled", output_tokens=None, tokens_per_chunk=(1, 2), request_id="cut")
    found = tally_client([build_record(), cut], {"item-1": 16})
    assert (found.tokens, found.open_tokens, found.unanswered) == (4 + 3, 13, 1)


def test_a_refused_request_costs_the_service_nothing():
    """A 429 is not an open end."""
    found = tally_client([build_failure("rejected")], {"item-1": 16})
    assert (found.sent, found.answered, found.open_tokens) == (1, 0, 0)


def test_an_answer_without_a_count_leaves_the_tokens_unknown():
    """One uncounted answer makes the sum unknown, not smaller."""
    record = msgspec.structs.replace(build_record(), output_tokens=None, chunks=())
    assert tally_client([record, build_record(request_id="b")], {}).tokens is None


def test_drafts_are_known_only_if_every_answer_tells_them():
    """Counts of some answers are not the counts of the period."""
    told = build_record(speculation=SpecCounts(2, 8, 3))
    assert tally_client([told], {}).num_accepted_draft_tokens == 3
    assert tally_client([told, build_record(request_id="b")], {}).num_draft_tokens is None
    assert tally_client([], {}).num_spec_steps is None


def test_steps_from_chunks_and_from_fields_agree_on_the_same_answers():
    """Chunks of 1, 3 and 3 tokens are two steps of 3; four accepted drafts in two steps say the same."""
    counts = SpecCounts(2, 8, 4, per_step_drafted=(4, 4), per_step_accepted=(4, 0))
    record = build_record(tokens_per_chunk=(1, 3, 3), speculation=counts)
    assert tokens_per_step_from_chunks([record]) == (3.0, 1)
    assert tokens_per_step_from_fields([record]) == (3.0, 3.0)


def test_drafts_accepted_behind_an_answer_s_end_leave_a_range():
    """Six tokens after the first with four accepted: two steps, or three if the last two were cut off."""
    listed = SpecCounts(2, 8, 4, per_step_drafted=(4, 4), per_step_accepted=(2, 2))
    record = build_record(tokens_per_chunk=(1, 3, 3), speculation=listed)
    assert tokens_per_step_from_fields([record]) == (3.0, 1.5)
    counted = SpecCounts(2, 8, 4, acceptance_histogram=(0, 0, 2))
    assert tokens_per_step_from_fields([build_record(tokens_per_chunk=(1, 3, 3), speculation=counted)]) == (
        3.0,
        1.5,
    )


def test_the_engines_own_count_of_steps_is_taken_where_no_drafts_are_counted():
    """Where the engine tells its passes, they are taken: 6 tokens after the first in 3 passes."""
    record = build_record(tokens_per_chunk=(1, 3, 3), decode_steps=3)
    assert tokens_per_step_from_fields([record]) == (2.0, 2.0)


def test_rounds_come_before_a_count():
    """A record of every round is the best source: two rounds that committed 3 each."""
    record = build_record(tokens_per_chunk=(1, 3, 3), rounds=(build_round(), build_round()), decode_steps=6)
    assert tokens_per_step_from_fields([record]) == (3.0, 3.0)


def test_uncounted_chunks_and_silent_answers_give_nothing():
    """One chunk is no gap, chunks without counts are no tokens, and answers without fields no steps."""
    single = build_record(tokens_per_chunk=(4,))
    plain = build_record(tokens_per_chunk=(1, 3))
    assert tokens_per_step_from_chunks([single]) == (None, 0)
    assert tokens_per_step_from_fields([plain]) == (None, None)
