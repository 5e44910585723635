"""What a circumstance adds to a difference: exact where periods tell it, else at most what is assumed."""

import numpy as np
import pytest

from draftproof.judge.stats.order import MOST, estimate_bias

BLOCKS, ARMS = 6, 3


def make_values(circumstance, effect, *, noise=0.0):
    rng = np.random.default_rng(5)
    arms, blocks = np.array([[0.0, -0.3, 0.1]]), rng.normal(0, 0.2, (BLOCKS, 1))
    return arms + blocks + effect * circumstance + noise * rng.normal(0, 1, (BLOCKS, ARMS))


def span(values, held, *, kinds=(0, 1, 2), level=0.95) -> tuple[float, float, float]:
    """Return low, value and high of the second arm less the first."""
    bias = estimate_bias(values, held[None], np.array(kinds), 1, 0, level=level)
    return bias.low, bias.value, bias.high


def test_a_circumstance_that_varies_within_arms_is_taken_out_exactly():
    """Half of one arm's periods and a sixth of the other's are 8 % slower: a third of that is no effect."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 1], held[4, 0] = 1.0, 1.0
    found = span(make_values(held, 0.08), held)
    assert found == pytest.approx((0.08 / 3, 0.08 / 3, 0.08 / 3))


def test_noise_gives_the_bias_an_interval():
    """With noise the truth lies inside, and a higher level is wider."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 1] = 1.0
    values = make_values(held, 0.08, noise=0.02)
    narrow, wide = (span(values, held, level=level) for level in (0.8, 0.99))
    assert wide[0] < narrow[0] < narrow[2] < wide[2]
    assert wide[0] < 0.04 < wide[2]


def test_a_circumstance_of_all_periods_of_an_arm_adds_what_is_assumed_at_most():
    """Nothing tells it from the arm, however many blocks there are: by up to half, either way."""
    held = np.zeros((BLOCKS, ARMS))
    held[:, 1] = 1.0
    assert span(make_values(held, 0.08), held) == pytest.approx((-np.log(MOST), 0.0, np.log(MOST)))
    held[:3, 1] = 0.0
    held[:3, 2] = held[3:, 0] = 1.0
    assert span(make_values(held, 0.08, noise=0.02), held)[2] < np.log(MOST) / 4


def test_equal_arms_tell_what_their_own_periods_do_not():
    """All periods of one of two equal arms are 8 % slower: the other arm's ratio to it is as much too low."""
    held = np.zeros((BLOCKS, ARMS))
    held[:, 0] = 1.0
    rng = np.random.default_rng(2)
    values = 0.08 * held + rng.normal(0, 0.2, (BLOCKS, 1)) + [0.0, -0.3, 0.0]
    assert span(values, held, kinds=(0, 1, 0)) == pytest.approx((-0.08, -0.08, -0.08))
    low, value, high = span(values + rng.normal(0, 0.01, values.shape), held, kinds=(0, 1, 0))
    assert -0.11 < low < -0.08 < high < -0.05
    assert low < value < high


def test_what_periods_tell_is_told_and_only_the_rest_is_assumed():
    """One circumstance shows between equal arms, another in the one arm alone."""
    held = np.zeros((2, BLOCKS, ARMS))
    held[0, :, 0] = 1.0
    held[1, :3, 1] = 1.0
    held[1, :, 2] = 0.0
    values = 0.1 * held[0] + 0.3 * held[1]
    bias = estimate_bias(values, held, np.array([0, 1, 0]), 1, 0)
    assert [bias.value, bias.assumed] == pytest.approx([0.05, 0.0])
    held[1, :, 1] = 0.5
    bias = estimate_bias(0.1 * held[0] + 0.3 * held[1], held, np.array([0, 1, 0]), 1, 0)
    assert [bias.value, bias.assumed] == pytest.approx([-0.1, np.log(MOST) / 2])


def test_no_interval_reaches_beyond_what_is_assumed_at_most():
    """Student's t with one degree would allow a factor of 12; what is seen may be beyond."""
    held = np.zeros((2, ARMS))
    held[0, 1] = 1.0
    values = np.array([[0.0, 0.0, 0.2], [0.1, 0.0, -0.1]])
    low, value, high = span(values, held)
    assert (low, high) == pytest.approx((-np.log(MOST) / 2, np.log(MOST) / 2))
    assert span(values + held, held)[2] > value + 0.5


def test_circumstances_that_both_arms_meet_alike_add_nothing():
    """Whatever their effect: the shares are equal."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 0], held[3:, 1] = 1.0, 1.0
    found = span(make_values(held, 0.5, noise=0.02), held)
    assert found == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_of_too_few_periods_nothing_is_told():
    """Two blocks of two arms have one value to spare, which the circumstance takes."""
    values, held = np.array([[0.0, 0.1], [0.2, 0.1]]), np.array([[[1.0, 0.0], [0.0, 0.0]]])
    bias = estimate_bias(values, held, np.arange(2), 0, 1)
    assert [bias.value, bias.high] == pytest.approx([0.0, np.log(MOST) / 2])
