"""Cluster-bootstrap intervals: closed forms, floors, and refusals."""

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.bootstrap import interval_at, mean_interval, paired_ratio

PROMPTS = np.repeat(np.arange(8), 2)


def estimate_ratio(*arrays, **options):
    return paired_ratio(*arrays, **options)


def estimate_mean(*arrays, **options):
    return mean_interval(*arrays, **options)


def draw_pairs(seed, prompts=8, repeats=2):
    rng = np.random.default_rng(seed)
    prompt, arm = rng.normal(0, 0.5, (prompts, 1)), rng.normal(0, 0.2, (prompts, 1))
    noise = rng.normal(0, 0.1, (2, prompts, repeats))
    labels = np.repeat(np.arange(prompts), repeats)
    return np.exp(prompt + arm + noise[0]).ravel(), np.exp(prompt + noise[1]).ravel(), labels


def test_the_value_is_the_ratio_of_the_means():
    """The estimate is mean over mean, whatever the draws say."""
    above, below, prompts = draw_pairs(1)
    estimate = estimate_ratio(above, below, prompts, resamples=50)
    assert estimate.value == pytest.approx(above.mean() / below.mean())
    assert (estimate.n_pairs, estimate.n_clusters) == (16, 8)


def test_prompts_of_equal_weight_count_in_full():
    """Where all prompts weigh alike the degrees of freedom are prompts − 1, of medians always."""
    labels = np.arange(8)
    alike = paired_ratio([1.0, 2.0] * 4, [2.0, 1.0] * 4, labels, resamples=50)
    assert alike.degrees_of_freedom == pytest.approx(7)
    above, below, prompts = draw_pairs(1)
    assert estimate_ratio(above, below, prompts, statistic="p50", resamples=50).degrees_of_freedom == 7


def test_a_mean_has_the_degrees_of_freedom_of_its_effective_prompts():
    """One prompt of half the total, five of a tenth: 1/(0.25 + 5 · 0.01) = 3.33 prompts, less one (Kish)."""
    lengths = np.array([5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    estimate = paired_ratio(2.0 * lengths, lengths, np.arange(6), resamples=50)
    assert estimate.degrees_of_freedom == pytest.approx(1 / 0.3 - 1)
    halves = paired_ratio(2.0 * lengths, lengths, np.arange(6), [0, 0, 0, 1, 1, 1], resamples=50)
    assert halves.degrees_of_freedom == pytest.approx(1 / 0.3 - 2)


def test_one_prompt_that_outweighs_all_leaves_one_degree_of_freedom():
    """The effective number never falls so low that there is no interval at all."""
    estimate = paired_ratio([100.0, 1.0, 1.0], [90.0, 1.0, 1.0], np.arange(3), resamples=50)
    assert estimate.degrees_of_freedom == 1.0


def test_a_few_slow_requests_push_out_the_limit_on_their_side():
    """Four requests of a hundred that are six times as slow: the interval reaches farther up than down."""
    below = np.ones(100)
    above = np.where(np.arange(100) % 25 == 0, 6.0, 1.0) * (1 + np.arange(100) % 7 / 100)
    estimate = estimate_ratio(above, below, np.arange(100))
    down, up = np.log(estimate.value / estimate.low), np.log(estimate.high / estimate.value)
    assert up > 1.3 * down
    mirrored = estimate_ratio(below, above, np.arange(100))
    assert mirrored.skewness == pytest.approx(-estimate.skewness)
    assert (1 / mirrored.high, 1 / mirrored.low) == pytest.approx((estimate.low, estimate.high), rel=1e-6)


def test_the_corrected_limit_is_where_halls_score_is_students():
    """Hall (1992), JRSS B 54, 221-228: T + kT²/3 + k²T³/27 + k/6 at the limit is the t quantile."""
    above = np.where(np.arange(100) % 25 == 0, 6.0, 1.0) * (1 + np.arange(100) % 7 / 100)
    estimate = estimate_ratio(above, np.ones(100), np.arange(100))
    influence = above / above.sum() - 0.01
    k = (influence**3).sum() / (influence**2).sum() ** 1.5
    score = np.log(estimate.value / estimate.high) / estimate.standard_error
    quantile = stats.t.ppf(0.025, estimate.degrees_of_freedom)
    assert score + k * score**2 / 3 + k**2 * score**3 / 27 + k / 6 == pytest.approx(quantile)


def test_the_skewness_of_few_prompts_is_left_alone():
    """Below 20 prompts nothing is corrected, nor where the arms differ by one factor alone."""
    above = np.where(np.arange(19) == 0, 6.0, 1.0)
    assert paired_ratio(above, np.ones(19), np.arange(19)).skewness == 0.0
    assert paired_ratio(np.full(30, 2.0), np.ones(30), np.arange(30)).skewness == 0.0


def test_the_value_is_the_ratio_of_the_medians():
    """With p50 the estimate is the ratio of nearest-rank medians."""
    above, below, prompts = draw_pairs(2)
    estimate = estimate_ratio(above, below, prompts, statistic="p50", resamples=50)
    medians = [np.quantile(values, 0.5, method="inverted_cdf") for values in (above, below)]
    assert estimate.value == pytest.approx(medians[0] / medians[1])


def test_the_standard_error_agrees_with_linearisation():
    """For small spread the standard error is Taylor's for a ratio of totals (Cochran 1977, section 6.4)."""
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(10), 3)
    above, below = rng.normal(10, 0.2, 30), rng.normal(20, 0.4, 30)
    estimate = estimate_ratio(above, below, clusters, resamples=40_000, seed=1)
    residual = np.bincount(clusters, above / above.sum() - below / below.sum())
    linear = np.sqrt(10 / 9 * (residual**2).sum())
    assert estimate.standard_error == pytest.approx(linear, rel=0.02)


def test_the_interval_is_students_t_on_the_log_scale():
    """The limits are value × exp(± t × standard error), with the estimate's degrees of freedom."""
    estimate = estimate_ratio(*draw_pairs(4), resamples=200, level=0.9)
    reach = stats.t.ppf(0.95, estimate.degrees_of_freedom) * estimate.standard_error
    assert (estimate.low, estimate.high) == pytest.approx(
        (estimate.value * np.exp(-reach), estimate.value * np.exp(reach))
    )
    assert interval_at(estimate, 0.9) == pytest.approx((estimate.low, estimate.high))


def test_the_mean_of_one_arm_has_the_classical_t_interval():
    """One value per prompt and values of both signs: the interval is the textbook t interval."""
    values = np.random.default_rng(5).normal(0, 1, 12)
    estimate = estimate_mean(values, np.arange(12), resamples=40_000)
    low, high = stats.t.interval(0.95, 11, loc=values.mean(), scale=stats.sem(values))
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=0.02)
    assert estimate.value == pytest.approx(values.mean())


def test_the_mean_of_positive_values_has_a_positive_interval():
    """A latency's lower limit never falls below 0, even for three prompts of very different speed."""
    estimate = estimate_mean([1.0, 10.0, 100.0], ["a", "b", "c"])
    assert 0 < estimate.low < 37 < estimate.high


def test_repeats_of_a_prompt_are_no_new_evidence():
    """Copying every pair leaves the interval of the prompts unchanged."""
    above, below, prompts = draw_pairs(6, repeats=1)
    once = estimate_ratio(above, below, prompts, seed=9)
    twice = estimate_ratio(np.tile(above, 2), np.tile(below, 2), np.tile(prompts, 2), seed=9)
    assert (twice.low, twice.high) == pytest.approx((once.low, once.high))


def test_pairing_takes_the_prompts_own_length_out():
    """Arms that differ by exactly a factor give that factor without width, however unlike the prompts."""
    _, below, prompts = draw_pairs(7)
    estimate = estimate_ratio(0.6 * below, below, prompts)
    assert (estimate.low, estimate.high) == pytest.approx((0.6, 0.6))


def test_identical_arms_show_no_effect():
    """The ratio of an arm to itself is 1, without width."""
    _, below, prompts = draw_pairs(8)
    estimate = estimate_ratio(below, below, prompts)
    assert (estimate.low, estimate.value, estimate.high) == (1.0, 1.0, 1.0)


def test_strata_take_differences_between_segments_out():
    """Ratios that differ between segments but hardly within them give a narrow stratified interval."""
    rng = np.random.default_rng(10)
    segment = np.repeat(["a", "b"], 8)
    below = rng.lognormal(0, 0.05, 16)
    above = below * np.where(segment == "a", 0.5, 1.0) * rng.lognormal(0, 0.02, 16)
    plain = estimate_ratio(above, below, np.arange(16))
    stratified = estimate_ratio(above, below, np.arange(16), segment)
    assert stratified.standard_error < 0.3 * plain.standard_error
    assert 13 < stratified.degrees_of_freedom < 14


@pytest.mark.parametrize(("prompts", "needed"), [(0, 6), (1, 5), (5, 1)])
def test_below_the_floor_there_is_no_estimate(prompts, needed):
    """Too few prompts give None, the reason and how many more it takes."""
    values, labels = np.ones(prompts), np.arange(prompts)
    ratio = estimate_ratio(values, values, labels, minimum_clusters=6)
    mean = estimate_mean(values, labels, minimum_clusters=6)
    for estimate in (ratio, mean):
        assert (estimate.value, estimate.low, estimate.high, estimate.needed) == (None, None, None, needed)
        assert estimate.reason == f"{prompts} of at least 6 prompts"
    assert interval_at(ratio, 0.9) == (None, None)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_values_without_a_ratio_give_a_reason(bad):
    """A value that is not a positive number gives None with a reason, never an infinite ratio."""
    above = np.ones(16)
    above[3] = bad
    estimate = estimate_ratio(above, np.ones(16), PROMPTS)
    assert (estimate.value, estimate.needed) == (None, None)
    assert "not a positive number" in str(estimate.reason)


def test_a_mean_with_an_infinite_value_gives_a_reason():
    """A value that is not finite has no mean."""
    estimate = estimate_mean([1.0, np.inf, 2.0], [0, 1, 2])
    assert (estimate.value, estimate.reason) == (None, "a value is not finite")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"denominator": np.ones(15)}, "one length"),
        ({"clusters": np.arange(15)}, "one length"),
        ({"level": 95.0}, "level"),
        ({"resamples": 1}, "resamples"),
        ({"minimum_clusters": 1}, "clusters"),
    ],
)
def test_mistakes_of_the_caller_are_refused(arguments, message):
    """Arrays of different lengths and impossible settings raise with the name of what is wrong."""
    sound = {"numerator": np.ones(16), "denominator": np.ones(16), "clusters": PROMPTS}
    with pytest.raises(ValueError, match=message):
        estimate_ratio(**{**sound, **arguments})


def test_many_pairs_are_medianed_in_batches(monkeypatch):
    """Batches of draws give the same medians as one pass."""
    data = draw_pairs(12)
    whole = estimate_ratio(*data, statistic="p50", resamples=100)
    monkeypatch.setattr("draftproof.judge.stats.bootstrap.BATCH_NUMBERS", 64)
    np.testing.assert_array_equal(
        estimate_ratio(*data, statistic="p50", resamples=100).draws, whole.draws, strict=True
    )
