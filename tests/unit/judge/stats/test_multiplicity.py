"""Simultaneous intervals and Holm's procedure."""

import numpy as np
import pytest

from draftproof.judge.stats.bootstrap import interval_at, paired_ratio
from draftproof.judge.stats.permutation import (
    bonferroni_level,
    holm_adjusted,
    simultaneous_intervals,
)


def join(family):
    return simultaneous_intervals(family, 0.05)


def estimate(ratio, prompts=10):
    rng = np.random.default_rng(int(ratio * 100))
    below = rng.lognormal(0, 0.3, prompts)
    return paired_ratio(ratio * below * rng.lognormal(0, 0.1, prompts), below, np.arange(prompts))


def test_holm_adjusts_as_in_the_textbook_example():
    """R's p.adjust(c(0.01, 0.02, 0.03, 0.04, 0.05), "holm") gives 0.05 0.08 0.09 0.09 0.09."""
    assert holm_adjusted([0.03, 0.01, 0.05, 0.02, 0.04]) == pytest.approx((0.09, 0.05, 0.09, 0.08, 0.09))


def test_a_comparison_without_a_p_is_outside_the_family():
    """None stays None and does not make the others stricter."""
    assert holm_adjusted([None, 0.02, 0.04]) == (None, 0.04, 0.04)


def test_adjusted_p_never_exceeds_one():
    """Large p-values stop at 1."""
    assert holm_adjusted([0.6, 0.9]) == (1.0, 1.0)


def test_simultaneous_intervals_are_held_at_alpha_over_the_family():
    """Each of three is the interval of its own estimate at 1 − alpha/3."""
    family = [estimate(0.5), estimate(0.9), estimate(1.4)]
    intervals = join(family)
    for single, joint in zip(family, intervals, strict=True):
        assert joint.level == pytest.approx(1 - 0.05 / 3)
        assert (joint.low, joint.high) == interval_at(single, joint.level)
        assert joint.low < single.low < single.high < joint.high


def test_a_family_of_one_is_the_single_interval():
    """One comparison needs no widening."""
    single = estimate(0.7)
    (joint,) = join([single])
    assert (joint.low, joint.high) == pytest.approx((single.low, single.high))


def test_missing_estimates_make_no_claim():
    """A comparison below its floor has no interval and does not widen the others."""
    missing = estimate(0.7, prompts=2)
    joint = join([missing, estimate(0.5)])
    assert (joint[0].low, joint[0].high, joint[0].level) == (None, None, None)
    assert joint[1].level == pytest.approx(0.95)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 95.0])
def test_an_impossible_alpha_is_refused(alpha):
    """Alpha is a share between 0 and 1."""
    with pytest.raises(ValueError, match="alpha"):
        bonferroni_level(3, alpha)


def test_an_empty_family_has_no_intervals():
    """No comparison, no interval, no error."""
    assert join([]) == ()
