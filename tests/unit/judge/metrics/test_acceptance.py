"""Acceptance pooled from rounds and from counters."""

import pytest

from draftproof.core.records import SpecCounts
from draftproof.judge.metrics.acceptance import (
    bound_decode_steps,
    count_decode_steps,
    count_speculation,
    pool_acceptance,
    position_acceptance,
)


@pytest.fixture
def rounds(build_round):
    """Five rounds: one ordinary, drafts of 4, 4, 2 and 1 of which 4, 1, 2 and 0 are accepted."""
    return (
        build_round(),
        build_round(4, 4),
        build_round(4, 1),
        build_round(2, 2),
        build_round(1, 0),
    )


def test_rounds_give_every_pooled_figure(rounds, build_record):
    """Steps, rates, histogram and tokens per decode step come from the rounds, ordinary ones included."""
    summary = pool_acceptance([build_record(rounds=rounds)])
    assert summary is not None
    assert (summary.num_spec_steps, summary.num_draft_tokens, summary.num_accepted_draft_tokens) == (4, 11, 7)
    assert summary.draft_acceptance_rate == pytest.approx(7 / 11)
    assert summary.mean_acceptance_length == pytest.approx(1 + 7 / 4)
    assert summary.decode_steps == 5
    assert summary.tokens_per_decode_step == pytest.approx(12 / 5)
    assert summary.acceptance_histogram == (1, 1, 1, 0, 1)


def test_position_acceptance_counts_only_drafts_that_existed(rounds):
    """A short draft is no rejection at positions it never had."""
    assert position_acceptance((one.proposed, one.accepted) for one in rounds) == pytest.approx(
        (3 / 4, 2 / 3, 1.0, 1.0)
    )


def test_a_position_behind_every_rejection_is_unknown():
    """Where no step got as far, the conditional probability is None."""
    assert position_acceptance([(3, 0), (2, 1)]) == (0.5, 0.0, None)


def test_pooling_weighs_steps_not_requests(build_record, build_round):
    """A long request with low acceptance outweighs a short one with high acceptance."""
    low = build_record(rounds=tuple(build_round(2, 0) for _ in range(9)))
    high = build_record(rounds=(build_round(2, 2),))
    summary = pool_acceptance([low, high])
    assert summary is not None
    assert summary.draft_acceptance_rate == pytest.approx(0.1)


def test_rounds_are_preferred_to_counters(build_record, build_round):
    """Where a record has both, its rounds are used."""
    record = build_record(rounds=(build_round(2, 1),), speculation=SpecCounts(9, 9, 9))
    assert count_speculation(record) == SpecCounts(1, 2, 1, (0, 1))


def test_nothing_disclosed_is_none(build_record):
    """Requests without rounds and counters have no acceptance rather than zeros."""
    assert pool_acceptance([build_record()]) is None
    assert pool_acceptance([]) is None


def test_ordinary_decoding_has_steps_but_no_rates(build_record, build_round):
    """Speculation off: no verification step, one token per decode step, rates None."""
    summary = pool_acceptance([build_record(rounds=(build_round(), build_round()))])
    assert summary is not None
    assert (summary.num_spec_steps, summary.decode_steps, summary.tokens_per_decode_step) == (0, 2, 1.0)
    assert (summary.draft_acceptance_rate, summary.mean_acceptance_length) == (None, None)
    assert (summary.acceptance_histogram, summary.position_acceptance) == ((), ())


def test_histograms_of_counters_are_added(build_record):
    """Counters with histograms of different lengths add up position by position."""
    first = build_record(speculation=SpecCounts(3, 6, 3, (1, 1, 1)))
    second = build_record(speculation=SpecCounts(2, 2, 1, (1, 1)))
    summary = pool_acceptance([first, second])
    assert summary is not None
    assert summary.acceptance_histogram == (2, 2, 1)


def test_a_histogram_that_would_miss_steps_is_left_empty(build_record):
    """If one drafting request gives no histogram, none is shown for the pool."""
    with_one = build_record(speculation=SpecCounts(3, 6, 3, (1, 1, 1)))
    without = build_record(speculation=SpecCounts(2, 2, 1))
    summary = pool_acceptance([with_one, without])
    assert summary is not None
    assert summary.acceptance_histogram == ()


def test_counters_without_a_token_count_leave_decode_steps_unknown(build_record):
    """Decode steps cannot be told from counters alone."""
    summary = pool_acceptance([build_record(speculation=SpecCounts(2, 4, 1))])
    assert summary is not None
    assert (summary.decode_steps, summary.tokens_per_decode_step) == (None, None)


def told(build_record, **counts):
    """A record whose server lists its steps."""
    steps = {"num_spec_steps": 2, "num_draft_tokens": 5, "num_accepted_draft_tokens": 3} | counts
    return build_record(rounds=None, speculation=SpecCounts(**steps), output_tokens=6)


def test_lists_of_steps_tell_the_positions_as_rounds_do(build_record):
    """(3 drafted, 2 accepted) and (2, 1): position 0 both, position 1 one of two, position 2 none of one."""
    listed = told(build_record, per_step_drafted=(3, 2), per_step_accepted=(2, 1))
    pooled = pool_acceptance([listed])
    assert pooled is not None
    assert pooled.position_acceptance == (1.0, 0.5, 0.0)


def test_positions_are_unknown_where_a_request_that_drafted_lists_no_steps(build_record):
    """A pool without some of the steps would be a pool of the others: then there is none."""
    listed = told(build_record, per_step_drafted=(3, 2), per_step_accepted=(2, 1))
    pooled = pool_acceptance([listed, told(build_record)])
    assert pooled is not None
    assert pooled.position_acceptance == ()


def test_the_engine_s_own_count_of_steps_comes_before_the_rule(build_record):
    """Nine tokens in four steps after the first, whatever the counters would give."""
    record = build_record(rounds=None, speculation=None, output_tokens=9, decode_steps=4)
    assert count_decode_steps(record) == (4, 8)
    pooled = pool_acceptance([record])
    assert pooled is not None
    assert (pooled.tokens_per_decode_step, pooled.draft_acceptance_rate) == (2.0, None)


@pytest.mark.parametrize(
    ("tokens", "counts", "bounds"),
    [
        (20, SpecCounts(5, 15, 13, (0, 0, 2, 3)), (6, 9)),
        (20, SpecCounts(5, 15, 13, (0, 0, 2, 3, 0, 0)), (6, 9)),  # no step accepted more than three
        (20, SpecCounts(5, 15, 13, (), (3, 3, 3, 3, 3), (3, 3, 3, 3, 1)), (6, 7)),
        (20, SpecCounts(5, 15, 13), (6, 9)),  # without a list the last step drafted as much as the mean
        (20, SpecCounts(0, 0, 0), (19, 19)),
        (10, SpecCounts(2, 8, 8, (0, 0, 0, 0, 2)), (2, 6)),  # the answer ended inside the last step
        (1, SpecCounts(0, 0, 0), (0, 0)),
        (20, SpecCounts(30, 60, 10, (25, 0, 5)), None),  # more steps than tokens
        (20, SpecCounts(5, 99, 90, (0,) * 18 + (5,)), None),  # more accepted than the answer can hold
        (0, SpecCounts(0, 0, 0), None),
        (20, SpecCounts(-1, 0, 0), None),
    ],
)
def test_tokens_and_acceptance_bound_the_steps_on_both_sides(tokens, counts, bounds):
    """Never more steps than tokens and acceptance allow, never fewer than none."""
    assert bound_decode_steps(tokens, counts) == bounds


@pytest.mark.parametrize(("stated", "found"), [(5, 6), (6, 6), (9, 9), (10, 6), (19, 6), (-1, 6)])
def test_a_count_out_of_bounds_gives_way_to_the_rule(build_record, stated, found):
    """Records of earlier versions may hold a count of chunks that is none of steps."""
    record = build_record(
        output_tokens=20, decode_steps=stated, speculation=SpecCounts(5, 15, 13, (0, 0, 2, 3))
    )
    assert count_decode_steps(record) == (found, 19)


@pytest.mark.parametrize(("stated", "found"), [(19, (19, 19)), (20, None), (-1, None)])
def test_without_counters_tokens_alone_bound_the_steps(build_record, stated, found):
    """A count beyond the answer's tokens is none."""
    assert count_decode_steps(build_record(output_tokens=20, decode_steps=stated)) == found
