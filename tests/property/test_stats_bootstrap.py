"""Properties of the paired ratio that hold for any data."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.judge.stats.bootstrap import paired_ratio

STATISTICS = st.sampled_from(["mean", "p50"])


@st.composite
def paired_data(draw):
    """Draw positive values of two arms with labels of 3 to 9 prompts, each seen 1 to 3 times."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=3, max_size=9))
    values = st.floats(1e3, 1e9, allow_nan=False)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    pairs = draw(st.lists(st.tuples(values, values), min_size=len(labels), max_size=len(labels)))
    above, below = np.array(pairs).T
    return above, below, labels


def estimate_ratio(*arrays, **options):
    return paired_ratio(*arrays, **options)


def limits(estimate):
    return np.array([estimate.value, estimate.low, estimate.high])


@settings(max_examples=40, deadline=None)
@given(paired_data(), STATISTICS, st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_units_do_not_matter(data, statistic, up, down):
    """Scaling either arm scales value and limits by the same factor."""
    above, below, labels = data
    plain = estimate_ratio(above, below, labels, statistic=statistic, resamples=60)
    scaled = estimate_ratio(up * above, down * below, labels, statistic=statistic, resamples=60)
    np.testing.assert_allclose(limits(scaled), limits(plain) * up / down, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(paired_data(), STATISTICS, st.randoms(use_true_random=False))
def test_the_order_of_pairs_does_not_matter(data, statistic, shuffler):
    """Permuting the rows leaves value and limits as they are."""
    above, below, labels = data
    order = list(range(len(labels)))
    shuffler.shuffle(order)
    plain = estimate_ratio(above, below, labels, statistic=statistic, resamples=60)
    moved = estimate_ratio(above[order], below[order], labels[order], statistic=statistic, resamples=60)
    np.testing.assert_allclose(limits(moved), limits(plain), rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(paired_data(), STATISTICS, st.integers(0, 2**32 - 1))
def test_the_seed_decides(data, statistic, seed):
    """The same seed gives the same draws bit by bit, and does not touch the caller's arrays."""
    above, below, labels = data
    before = above.copy(), below.copy(), labels.copy()
    first = estimate_ratio(above, below, labels, statistic=statistic, resamples=60, seed=seed)
    second = estimate_ratio(above, below, labels, statistic=statistic, resamples=60, seed=seed)
    np.testing.assert_array_equal(first.draws, second.draws)
    assert (first.low, first.high) == (second.low, second.high)
    for kept, given_array in zip(before, (above, below, labels), strict=True):
        np.testing.assert_array_equal(kept, given_array)


@settings(max_examples=40, deadline=None)
@given(paired_data(), STATISTICS)
def test_swapping_the_arms_inverts_the_interval(data, statistic):
    """Baseline / candidate is the mirror image of candidate / baseline."""
    above, below, labels = data
    forward = estimate_ratio(above, below, labels, statistic=statistic, resamples=60)
    backward = estimate_ratio(below, above, labels, statistic=statistic, resamples=60)
    assert backward.low == pytest.approx(1 / forward.high, rel=1e-9)
    assert backward.high == pytest.approx(1 / forward.low, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(paired_data(), st.floats(0.5, 0.9), st.floats(0.91, 0.999))
def test_a_higher_level_gives_a_wider_interval(data, lower, higher):
    """Intervals of the same data are nested by level and hold the value."""
    narrow = estimate_ratio(*data, resamples=60, level=lower)
    wide = estimate_ratio(*data, resamples=60, level=higher)
    assert wide.low <= narrow.low <= narrow.value <= narrow.high <= wide.high


@settings(max_examples=30, deadline=None)
@given(paired_data())
def test_prompt_names_do_not_matter(data):
    """Any names in the same order of sorting give the same interval."""
    above, below, labels = data
    names = np.array([f"prompt-{label:03d}" for label in labels])
    plain = estimate_ratio(above, below, labels, resamples=60)
    named = estimate_ratio(above, below, names, resamples=60)
    assert (named.low, named.high) == (plain.low, plain.high)
