"""Properties of share intervals and of Holm's procedure."""

from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.judge.stats.permutation import bonferroni_level, holm_adjusted
from draftproof.judge.stats.shares import paired_share_difference, share_interval

COUNTS = st.integers(0, 200)


def assert_ordered(least, estimate):
    value, low, high = estimate
    assert least <= low <= value <= high <= 1


@settings(max_examples=200, deadline=None)
@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_a_share_difference_lies_inside_its_interval(both, first, second, neither):
    """−1 ≤ low ≤ difference ≤ high ≤ 1 for every table."""
    if both + first + second + neither > 0:
        assert_ordered(-1, paired_share_difference(both, first, second, neither))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.floats(0.0, 1.0))
def test_a_share_lies_inside_its_interval(n, share):
    """0 ≤ low ≤ share ≤ high ≤ 1."""
    assert_ordered(0, share_interval(round(share * n), n))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.floats(0.001, 0.5))
def test_adjusted_p_values_decide_like_the_step_down(ps, alpha):
    """Rejecting by adjusted p-values equals stepping down the levels and stopping at the first failure."""
    rejected = set()
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda place: (ps[place], place))):
        if ps[index] > 1 - bonferroni_level(len(ps) - rank, alpha) + 1e-12:
            break
        rejected.add(index)
    near = {index for index, p in enumerate(holm_adjusted(ps)) if abs(p - alpha) < 1e-9}
    assert rejected - near == {index for index, p in enumerate(holm_adjusted(ps)) if p <= alpha} - near
