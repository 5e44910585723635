"""The interval of a share whose trials hang together, against closed forms and simulated truth."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import signal, stats

from draftproof.judge.stats.shares import (
    clustered_share,
    correlation_time,
    exact_limits,
    rising_times,
    share_interval,
)


def share_of(*trials, **options):
    return clustered_share(*trials, **options)


def test_independent_trials_give_the_exact_interval():
    """With a cluster for each trial and no correlation the interval is that of Clopper and Pearson."""
    hits = [1] * 57 + [0] * 3
    found = share_of(hits, range(60), 0.95)
    assert (found.low, found.high) == pytest.approx(share_interval(57, 60, 0.95)[1:])
    assert found.effective == 60


def test_whole_counts_give_the_limits_of_the_beta_quantiles():
    """Limits of all and of none are closed forms."""
    assert exact_limits(40, 40, 0.95) == pytest.approx((0.025 ** (1 / 40), 1.0))
    assert exact_limits(0, 40, 0.95) == pytest.approx((0.0, 1 - 0.025 ** (1 / 40)))


def test_trials_in_a_row_count_once():
    """A correlation time of k leaves n/k trials."""
    hits = np.ones(200)
    found = share_of(hits, np.arange(200), 0.95, correlation_time=4.0)
    assert found.effective == 50
    assert found.low == pytest.approx(0.025 ** (1 / 50))


def test_prompts_that_fail_as_a_whole_are_worth_their_number():
    """Twenty copies of each of ten prompts that agree in all copies are worth at most ten trials."""
    hits, prompts = np.repeat([1] * 8 + [0] * 2, 20), np.repeat(np.arange(10), 20)
    found = share_of(hits, prompts, 0.95)
    assert found.effective <= 10
    assert found.value == 0.8


def test_a_single_prompt_that_varies_is_worth_one_trial():
    """Nothing is known of other prompts from one."""
    assert share_of([1, 1, 0, 1], ["a"] * 4, 0.95).effective == 1


def test_no_trial_gives_nothing():
    """Of nothing there is no share."""
    assert share_of([], [], 0.95) is None


@pytest.mark.parametrize(("hits", "labels", "level"), [([1, 0], ["a"], 0.95), ([1], ["a"], 1.0)])
def test_labels_must_fit_and_levels_be_inside_their_range(hits, labels, level):
    """A call that makes no sense is refused."""
    with pytest.raises(ValueError, match="one cluster"):
        share_of(hits, labels, level)


def test_a_constant_and_an_empty_series_have_no_correlation():
    """What never varies has a correlation time of 1, and so has nothing."""
    assert correlation_time([[3.0] * 50]) == correlation_time([]) == correlation_time([[]]) == 1.0


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_the_correlation_time_of_an_autoregression_is_that_of_its_ranks(phi):
    """For a long AR(1) the time is near (1 + φ)/(1 − φ), less a little because ranks are taken."""
    rng = np.random.default_rng(5)
    noise, series = rng.standard_normal(40_000), np.zeros(40_000)
    for at in range(1, series.size):
        series[at] = phi * series[at - 1] + noise[at]
    assert correlation_time([series]) == pytest.approx((1 + phi) / (1 - phi), rel=0.15)


def test_infinite_values_and_separate_runs_are_taken_as_they_come():
    """Failed requests are the largest of all; two runs in a row are not one long one."""
    rng = np.random.default_rng(6)
    runs = [rng.standard_normal(400), rng.standard_normal(400) + 0.0]
    runs[0][::50] = np.inf
    assert 1.0 <= correlation_time(runs) < 2.0


def test_a_short_series_counts_as_more_correlated_than_it_shows():
    """The same autocorrelation is taken for more in a short series than in a long one."""
    rng = np.random.default_rng(8)
    steps = rng.standard_normal(20_000)
    series = np.convolve(steps, np.ones(10), mode="valid")
    short = [correlation_time([series[start : start + 200]]) for start in range(0, 19_000, 200)]
    assert np.mean(short) > correlation_time([series]) * 0.9


def test_times_the_wrong_way_round_become_their_weighted_geometric_mean():
    """8 before 2 with weights 1 and 3 are both 8^(1/4) · 2^(3/4); what rises already stays."""
    assert rising_times([1.0, 8.0, 2.0, 30.0], [5, 1, 3, 2]) == pytest.approx(
        (1.0, 8**0.25 * 2**0.75, 8**0.25 * 2**0.75, 30.0)
    )
    assert rising_times([1.5, 2.0, 9.0], [1, 1, 1]) == pytest.approx((1.5, 2.0, 9.0))
    assert rising_times([3.0], [200]) == (3.0,)
    assert rising_times([], []) == ()


def test_each_time_has_a_weight():
    """A call that makes no sense is refused."""
    with pytest.raises(ValueError, match="weight"):
        rising_times([1.0, 2.0], [1])


@given(st.lists(st.tuples(st.floats(1, 1000), st.integers(1, 1000)), min_size=1, max_size=12))
def test_a_rising_curve_never_leaves_what_was_estimated(pairs):
    """It does not fall, lies within the estimates, and keeps their weighted mean."""
    times, weights = zip(*pairs, strict=True)
    found = rising_times(times, weights)
    assert all(later >= before * (1 - 1e-9) for before, later in itertools.pairwise(found))
    assert min(times) * (1 - 1e-9) <= min(found)
    assert max(found) <= max(times) * (1 + 1e-9)
    assert np.dot(weights, np.log(found)) == pytest.approx(np.dot(weights, np.log(times)), abs=1e-6)


@pytest.mark.parametrize("phi", [0.0, 0.9])
def test_runs_of_late_requests_are_covered(phi):
    """Lateness that comes in runs is covered at the stated level, where independence would not be."""
    rng, limit = np.random.default_rng(3), stats.norm.ppf(0.9)
    covered = naive = 0
    for _ in range(300):
        noise = rng.standard_normal(600) * np.sqrt(1 - phi**2)
        noise[0] /= np.sqrt(1 - phi**2)
        series = signal.lfilter([1.0], [1.0, -phi], noise)
        hits = (series <= limit).astype(float)
        found = share_of(hits, np.arange(600), 0.95, correlation_time=correlation_time([series]))
        covered += found.low <= 0.9 <= found.high
        low, high = exact_limits(hits.sum(), 600, 0.95)
        naive += low <= 0.9 <= high
    assert covered / 300 >= stats.binom.ppf(0.001, 300, 0.95) / 300
    if phi:
        assert naive / 300 < 0.8
