"""Share intervals pinned to published values and closed forms."""

import math

import pytest
from scipy import stats

from draftproof.judge.stats.shares import paired_share_difference, share_interval, tango_score

LEVEL_QUANTILE = stats.norm.ppf(0.975)


def find_difference(*counts):
    return paired_share_difference(*counts)


@pytest.mark.parametrize(
    ("table", "difference", "low", "high"),
    [((1, 1, 7, 12), -0.286, -0.517, -0.026), ((59, 6, 16, 80), -0.062, -0.124, -0.005)],
    ids=["airway", "response"],
)
def test_tango_interval_equals_the_published_examples(table, difference, low, high):
    """Fagerland, Lydersen & Laake (2014), Statistics in Medicine 33, 2850-2875: both worked examples."""
    assert find_difference(*table) == pytest.approx((difference, low, high), abs=6e-4)


@pytest.mark.parametrize("table", [(40, 5, 2, 3), (0, 1, 0, 43), (3, 7, 7, 3), (0, 0, 1, 0)])
def test_tango_limits_are_where_the_score_reaches_the_quantile(table):
    """At a limit inside (−1, 1) the score is ± 1.96 by definition."""
    _, low, high = find_difference(*table)
    for limit, score in ((low, LEVEL_QUANTILE), (high, -LEVEL_QUANTILE)):
        if abs(limit) < 1:
            assert tango_score(table[1], table[2], sum(table), limit) == pytest.approx(score, rel=1e-6)


def test_the_score_at_zero_is_mcnemars():
    """Against no difference the score is (b − c) / √(b + c)."""
    assert tango_score(20, 5, 60, 0.0) == pytest.approx(15 / 5)


@pytest.mark.parametrize("n", [1, 5, 30, 400])
def test_arms_that_never_differed_still_have_a_width(n):
    """Without discordant pairs the limits are ± z²/(n + z²)."""
    limit = LEVEL_QUANTILE**2 / (n + LEVEL_QUANTILE**2)
    assert find_difference(n, 0, 0, 0) == pytest.approx((0.0, -limit, limit))


def test_swapping_the_arms_mirrors_the_interval():
    """First − second is minus second − first."""
    difference, low, high = find_difference(50, 9, 3, 10)
    assert find_difference(50, 3, 9, 10) == pytest.approx((-difference, -high, -low))


def test_a_whole_win_ends_at_one():
    """If one arm won every pair the interval reaches the end of the scale and not beyond."""
    assert find_difference(0, 8, 0, 0)[::2] == (1.0, 1.0)
    assert find_difference(0, 0, 8, 0)[:2] == (-1.0, -1.0)


def test_the_score_without_variance_points_to_the_data():
    """Where a difference leaves no variance the score is infinite, or 0 if the data agree with it."""
    assert tango_score(0, 3, 3, -1.0) == 0.0
    assert tango_score(3, 0, 3, -1.0) == math.inf


def test_no_pairs_have_no_difference():
    """Nothing compared: None, not 0."""
    assert find_difference(0, 0, 0, 0) == (None, None, None)


@pytest.mark.parametrize("arguments", [(-1, 0, 0, 5), (1, 1, 1, 1, 95.0)])
def test_impossible_counts_and_levels_are_refused(arguments):
    """Negative counts and percent numbers are mistakes of the caller."""
    with pytest.raises(ValueError, match="must not be negative"):
        find_difference(*arguments)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2527, 0.3676), (15, 148, 0.0578, 0.1617), (0, 20, 0.0, 0.1684), (1, 29, 0.0009, 0.1776)],
)
def test_clopper_pearson_equals_the_published_table(successes, n, low, high):
    """Newcombe (1998), Statistics in Medicine 17, 857-872, table I, method 5: all four examples."""
    assert share_interval(successes, n)[1:] == pytest.approx((low, high), abs=6e-5)


@pytest.mark.parametrize("n", [1, 7, 50])
def test_all_or_none_have_the_closed_form(n):
    """No success of n: upper limit 1 − (alpha/2)^(1/n); all of n mirrors it."""
    limit = 1 - 0.025 ** (1 / n)
    assert share_interval(0, n) == pytest.approx((0.0, 0.0, limit))
    assert share_interval(n, n) == pytest.approx((1.0, 1 - limit, 1.0))


def test_nothing_counted_has_no_share():
    """An empty cell is None, not 0."""
    assert share_interval(0, 0) == (None, None, None)


@pytest.mark.parametrize("successes", [-1, 4])
def test_more_successes_than_trials_are_refused(successes):
    """Successes lie between 0 and n."""
    with pytest.raises(ValueError, match="between 0 and n"):
        share_interval(successes, 3)
