"""Ratios of totals over clusters: golden arithmetic, invariances, and coverage in seeded worlds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftproof.judge.stats.bootstrap import MeanEstimate
from draftproof.judge.stats.totals import ratio_of_ratios, ratio_of_totals, sum_by_cluster

positive = st.floats(0.1, 100.0)
rows = st.lists(st.tuples(positive, positive, st.sampled_from("abcdef")), min_size=6, max_size=40)


def ends(found: MeanEstimate) -> tuple[float, float, float]:
    """Return (low, value, high) of an estimate that has an interval."""
    assert found.low is not None
    assert found.value is not None
    assert found.high is not None
    return found.low, found.value, found.high


def totals_of(found):
    return sum_by_cluster([y for y, _, _ in found], [x for _, x, _ in found], [name for _, _, name in found])


def test_the_ratio_and_its_error_are_those_done_by_hand():
    """With y = 2, 4, 6 and x = 1, 2, 5: ratio 12/8; ψ = (2 − 1.5, 4 − 3, 6 − 7.5)/12; s = √(3/2 · Σψ²)."""
    found = ratio_of_totals(sum_by_cluster([2, 4, 6], [1, 2, 5], ["a", "b", "c"]))
    error = math.sqrt(1.5 * (0.5**2 + 1.0**2 + 1.5**2)) / 12
    reach = stats.t.ppf(0.975, 2) * error
    assert found.value == pytest.approx(1.5)
    assert found.low == pytest.approx(1.5 * math.exp(-reach))
    assert found.high == pytest.approx(1.5 * math.exp(reach))


def test_a_share_stays_between_0_and_1():
    """On the logistic scale even a share near 1 from few prompts has an interval inside (0, 1)."""
    found = ratio_of_totals(sum_by_cluster([9, 99, 40], [10, 100, 41], list("abc")), scale="logit")
    low, value, high = ends(found)
    assert 0 < low < value < high < 1


def test_a_part_that_takes_no_time_is_0_and_not_unknown():
    """Nobody queued: 0 with an interval of no width, on the plain scale."""
    found = ratio_of_totals(sum_by_cluster([0, 0, 0], [1, 2, 3], list("abc")), scale="logit")
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_below_the_floor_there_is_a_value_and_no_interval():
    """What was counted stands; the interval says how many prompts it lacks."""
    found = ratio_of_totals(sum_by_cluster([1, 2], [2, 2], ["a", "b"]), minimum_clusters=6)
    assert (found.value, found.low, found.needed) == (0.75, None, 4)


def test_nothing_to_divide_by_is_none_with_a_reason():
    """No token and no good request give no cost per token, never a division by zero."""
    empty = ratio_of_totals(sum_by_cluster([], [], []))
    assert empty.value is None
    assert empty.reason
    one_sided = ratio_of_ratios(sum_by_cluster([1.0], [0.0], ["a"]), sum_by_cluster([1.0], [1.0], ["a"]))
    assert one_sided.value is None
    assert one_sided.reason


@given(rows, st.randoms())
def test_the_order_of_rows_does_not_matter(found, random):
    """The same rows in another order give the same bits."""
    mixed = random.sample(found, len(found))
    assert ratio_of_totals(totals_of(found)) == ratio_of_totals(totals_of(mixed))


@given(rows)
def test_an_arm_against_itself_is_exactly_1(found):
    """Influences cancel prompt by prompt: no interval at all."""
    same = ratio_of_ratios(totals_of(found), totals_of(found), minimum_clusters=2)
    if same.n_clusters >= 2:
        assert (same.value, same.low, same.high) == pytest.approx((1.0, 1.0, 1.0))


@given(rows, rows)
def test_the_mirrored_comparison_is_the_reciprocal(one, other):
    """The arm / versus and versus / arm say the same."""
    there = ratio_of_ratios(totals_of(one), totals_of(other), minimum_clusters=2)
    back = ratio_of_ratios(totals_of(other), totals_of(one), minimum_clusters=2)
    if there.n_clusters >= 2:
        low, value, high = ends(back)
        assert ends(there) == pytest.approx((1 / high, 1 / value, 1 / low))


@pytest.mark.parametrize("prompts", [12, 24])
def test_intervals_cover_the_truth_about_as_often_as_they_say(prompts):
    """500 seeded worlds of correlated repeats: shares and paired costs are covered in 91 to 98 %."""
    rng = np.random.default_rng(prompts)
    shares = costs = 0
    for _ in range(500):
        names = np.repeat(np.arange(prompts), 2).astype(str)

        def draw(centre, spread, rng=rng):
            own = rng.lognormal(centre, spread, prompts)
            return np.repeat(own, 2) * rng.lognormal(0, 0.05, 2 * prompts)

        part, rest = draw(0.0, 0.6), draw(1.0, 0.5)
        share = ratio_of_totals(sum_by_cluster(part, part + rest, names), scale="logit")
        low, _, high = ends(share)
        shares += low <= math.exp(0.18) / (math.exp(0.18) + math.exp(1.125)) <= high
        tokens = np.repeat(rng.integers(10, 60, prompts), 2).astype(float)
        base = tokens * draw(0.0, 0.3)
        arm = base * draw(-0.2, 0.25)
        cost = ratio_of_ratios(sum_by_cluster(arm, tokens, names), sum_by_cluster(base, tokens, names))
        low, _, high = ends(cost)
        costs += low <= math.exp(-0.2 + 0.25**2 / 2 + 0.05**2 / 2) <= high
    assert 455 <= shares <= 490
    assert 455 <= costs <= 490


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_level_that_is_no_level_is_refused(level):
    """0 and 1 are no coverage."""
    with pytest.raises(ValueError, match="level"):
        ratio_of_totals(sum_by_cluster([1.0], [1.0], ["a"]), level=level)
