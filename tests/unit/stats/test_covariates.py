"""What a circumstance adds to a difference: exact where an arm's periods tell it, else unknown."""

import numpy as np
import pytest

from draftproof.stats.covariates import Bias, estimate_bias

BLOCKS, ARMS = 6, 3


def make_values(circumstance, effect, *, noise=0.0):
    rng = np.random.default_rng(5)
    arms, blocks = np.array([[0.0, -0.3, 0.1]]), rng.normal(0, 0.2, (BLOCKS, 1))
    return arms + blocks + effect * circumstance + noise * rng.normal(0, 1, (BLOCKS, ARMS))


def span(bias: Bias) -> tuple[float, float, float]:
    assert bias.value is not None
    assert bias.low is not None
    assert bias.high is not None
    return bias.low, bias.value, bias.high


def test_a_circumstance_that_varies_within_arms_is_taken_out_exactly():
    """Half of one arm's periods and a sixth of the other's are 8 % slower: a third of that is no effect."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 1], held[4, 0] = 1.0, 1.0
    found = span(estimate_bias(make_values(held, 0.08), held[None], 1, 0))
    assert found == pytest.approx((0.08 / 3, 0.08 / 3, 0.08 / 3))


def test_noise_gives_the_bias_an_interval():
    """With noise the truth lies inside, and a higher level is wider."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 1] = 1.0
    values = make_values(held, 0.08, noise=0.02)
    narrow, wide = (span(estimate_bias(values, held[None], 1, 0, level=level)) for level in (0.8, 0.99))
    assert wide[0] < narrow[0] < narrow[2] < wide[2]
    assert wide[0] < 0.04 < wide[2]


def test_a_circumstance_of_all_periods_of_an_arm_may_add_anything():
    """Nothing tells it from the arm, however many blocks there are."""
    held = np.zeros((BLOCKS, ARMS))
    held[:, 1] = 1.0
    bias = estimate_bias(make_values(held, 0.08), held[None], 1, 0)
    assert (bias.value, bias.low, bias.high) == (None, None, None)


def test_circumstances_that_both_arms_meet_alike_add_nothing():
    """Whatever their effect: the shares are equal."""
    held = np.zeros((BLOCKS, ARMS))
    held[:3, 0], held[3:, 1] = 1.0, 1.0
    found = span(estimate_bias(make_values(held, 0.5, noise=0.02), held[None], 1, 0))
    assert found == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)


def test_of_too_few_periods_nothing_is_told():
    """Two blocks of two arms have one value to spare, which the circumstance takes."""
    values, held = np.array([[0.0, 0.1], [0.2, 0.1]]), np.array([[[1.0, 0.0], [0.0, 0.0]]])
    assert estimate_bias(values, held, 0, 1).value is None
