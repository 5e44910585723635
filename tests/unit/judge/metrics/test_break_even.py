"""Break-even acceptance and drafting time against closed forms and golden values."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.judge.metrics.acceptance import break_even_acceptance, break_even_draft_ns, expected_tokens

shares = st.floats(0.0, 1.0)
lengths = st.integers(1, 64)


@given(shares.filter(lambda share: share < 0.999), lengths)
def test_expected_tokens_are_the_closed_form(acceptance, length):
    """A step commits (1 − a^(K+1)) / (1 − a) tokens on average."""
    closed = (1 - acceptance ** (length + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, length) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    ("acceptance", "length", "tokens"),
    [(0.0, 5, 1.0), (1.0, 5, 6.0), (0.8, 0, 1.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 4, 3.3616)],
)
def test_expected_tokens_golden(acceptance, length, tokens):
    """None accepted commits the target's own token, all accepted K + 1, and known values in between."""
    assert expected_tokens(acceptance, length) == pytest.approx(tokens)


@given(st.floats(1.0, 2.0))
def test_with_one_draft_the_acceptance_is_the_ratio_less_one(ratio):
    """K = 1: 1 + a = ratio."""
    assert break_even_acceptance(ratio, 1) == pytest.approx(ratio - 1, abs=1e-12)


@given(st.floats(1.0, 3.0))
def test_with_two_drafts_the_acceptance_solves_a_quadratic(ratio):
    """K = 2: 1 + a + a² = ratio."""
    root = (-1 + math.sqrt(1 + 4 * (ratio - 1))) / 2
    assert break_even_acceptance(ratio, 2) == pytest.approx(root, abs=1e-9)


@given(shares, lengths)
def test_the_acceptance_is_the_inverse_of_the_expected_tokens(acceptance, length):
    """At break-even a step commits exactly what it costs."""
    tokens = expected_tokens(acceptance, length)
    found = break_even_acceptance(tokens, length)
    assert found is not None
    assert expected_tokens(found, length) == pytest.approx(tokens, rel=1e-9)


@given(st.floats(0.1, 80.0), st.floats(0.0, 5.0), lengths)
def test_a_dearer_step_never_needs_less(ratio, more, length):
    """The needed acceptance rises with the ratio until none is enough, and then none ever is."""
    first, second = (break_even_acceptance(value, length) for value in (ratio, ratio + more))
    if first is None:
        assert second is None
    else:
        assert second is None or second >= first


@given(st.floats(1.0, 60.0), lengths)
def test_longer_drafts_of_the_same_cost_need_less(ratio, length):
    """At one ratio a longer draft breaks even at no higher an acceptance."""
    short, long = break_even_acceptance(ratio, length), break_even_acceptance(ratio, length + 1)
    assert short is None or (long is not None and long <= short + 1e-12)


def test_the_ends():
    """A step no dearer than an ordinary one needs no acceptance; one dearer than K + 1 tokens has none."""
    assert break_even_acceptance(0.9, 4) == break_even_acceptance(1.0, 4) == 0.0
    assert break_even_acceptance(5.0, 4) == pytest.approx(1.0)
    assert break_even_acceptance(5.000001, 4) is None
    assert break_even_acceptance(1.2, 0) is None


def test_drafting_time_golden():
    """2 tokens of 40 ms pay for a checked step of 50 ms with up to 30 ms of drafting; fewer tokens, none."""
    assert break_even_draft_ns(2.0, 40e6, 50e6) == pytest.approx(30e6)
    assert break_even_draft_ns(1.25, 40e6, 50e6) == 0.0
    assert break_even_draft_ns(1.2, 40e6, 50e6) is None


@given(st.floats(1.0, 9.0), st.floats(1e3, 1e9), st.floats(1.0, 3.0))
def test_drafting_at_the_limit_breaks_even(tokens, ordinary_ns, factor):
    """Verification and the longest drafting together take exactly as long as the tokens are worth."""
    verified_ns = ordinary_ns * factor
    limit_ns = break_even_draft_ns(tokens, ordinary_ns, verified_ns)
    if limit_ns is None:
        assert verified_ns > tokens * ordinary_ns
    else:
        assert limit_ns + verified_ns == pytest.approx(tokens * ordinary_ns)


@pytest.mark.parametrize(("acceptance", "length"), [(-0.1, 2), (1.1, 2), (0.5, -1)])
def test_what_is_no_share_or_length_is_refused(acceptance, length):
    """A share outside 0 to 1 and a negative draft length are errors, not numbers."""
    with pytest.raises(ValueError, match="got"):
        expected_tokens(acceptance, length)
