"""Effects read against the off-off null."""

import math

import numpy as np
import pytest

from draftproof.judge.stats.bootstrap import compare_with_null, null_difference, paired_ratio


def estimate(ratio, prompts=12, spread=0.03):
    rng = np.random.default_rng(1)
    below = rng.lognormal(0, 0.4, prompts)
    return paired_ratio(ratio * below * rng.lognormal(0, spread, prompts), below, np.arange(prompts))


def compare(effect, null):
    return compare_with_null((effect.low, effect.high), (null.low, null.high))


def test_a_large_effect_stands_out_of_a_clean_null():
    """A halved latency lies outside what equal arms show."""
    floor, is_beyond = compare(estimate(0.5), estimate(1.0))
    assert is_beyond is True
    assert 1.0 < floor < 1.1


def test_an_effect_inside_the_null_does_not_stand_out():
    """An effect no larger than the farthest reach of the null is within noise."""
    assert compare(estimate(0.99), estimate(1.0))[1] is False


def test_a_slower_arm_stands_out_as_well():
    """Harm is an effect too."""
    assert compare(estimate(1.5), estimate(1.0))[1] is True


@pytest.mark.parametrize(("effect", "null"), [(12, 2), (2, 12)])
def test_a_missing_estimate_gives_no_answer(effect, null):
    """Without an effect or a null the comparison is None, never a pass."""
    floor, is_beyond = compare(estimate(0.5, prompts=effect), estimate(1.0, prompts=null))
    assert is_beyond is None
    assert (floor is None) == (null == 2)


@pytest.mark.parametrize("ratio", [math.exp(0.05), math.exp(-0.05)])
def test_the_null_difference_is_what_chance_leaves_of_the_null(ratio):
    """exp(√(0.05² − 0.03²)) = exp(0.04) whichever arm is slower; in full without a known error."""
    assert null_difference(ratio, 0.03) == pytest.approx(math.exp(0.04))
    assert null_difference(ratio, None) == pytest.approx(math.exp(0.05))


def test_a_null_within_its_error_is_no_difference():
    """A stalled period moves the null by no more than its error: nothing counts; nor without a null."""
    assert null_difference(math.exp(0.08), 0.081) == 1.0
    assert null_difference(None, None) == 1.0
