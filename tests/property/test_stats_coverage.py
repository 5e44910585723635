"""Coverage: how often intervals hold the truth in simulated worlds, against a stated binomial band.

A world has prompts of different length (log-normal, shared by both arms), prompts that profit differently,
and repeats with noise: latencies correlated within a prompt. All worlds are seeded.
"""

from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.bootstrap import interval_at, mean_interval, paired_ratio
from draftproof.judge.stats.permutation import simultaneous_intervals
from draftproof.judge.stats.quantiles import quantile_interval
from draftproof.judge.stats.shares import paired_share_difference

RATIO = 0.7


class Spread(NamedTuple):
    """Standard deviations of log latency: between prompts, of the ratio between prompts, of repeats."""

    prompt: float
    ratio: float
    noise: float


ALIKE = Spread(0.3, 0.05, 0.15)
UNLIKE = Spread(0.5, 0.25, 0.1)


def draw_world(rng, prompts, spread, repeats=2):
    prompt = rng.normal(0, spread.prompt, (prompts, 1))
    effect = rng.normal(np.log(RATIO), spread.ratio, (prompts, 1))
    noise = rng.normal(0, spread.noise, (2, prompts, repeats))
    labels = np.repeat(np.arange(prompts), repeats)
    return np.exp(prompt + effect + noise[0]).ravel(), np.exp(prompt + noise[1]).ravel(), labels


def true_ratio(spread, statistic):
    return RATIO * np.exp(spread.ratio**2 / 2) if statistic == "mean" else RATIO


def covers(interval, truth):
    return interval.low <= truth <= interval.high


def cover_ratio(worlds, prompts, spread, *, statistic="mean", level=0.95, resamples=400):
    rng, hits = np.random.default_rng(2026), 0
    for seed in range(worlds):
        data = draw_world(rng, prompts, spread)
        estimate = paired_ratio(*data, statistic=statistic, resamples=resamples, seed=seed)
        low, high = interval_at(estimate, level)
        hits += low <= true_ratio(spread, statistic) <= high
    return hits


def band(worlds, share):
    """Return the hits that `worlds` at a true coverage of `share` show in all but 1 of 1000 studies."""
    return stats.binom.ppf(0.0005, worlds, share), stats.binom.ppf(0.9995, worlds, share)


@pytest.mark.parametrize("prompts", [6, 12])
@pytest.mark.parametrize("spread", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_the_ratio_of_means_is_covered(prompts, spread):
    """In 300 worlds the 95 % interval covers as an interval of true coverage 94 to 95 % would."""
    hits = cover_ratio(300, prompts, spread)
    assert band(300, 0.94)[0] <= hits <= band(300, 0.95)[1]


@pytest.mark.parametrize("prompts", [6, 12])
def test_the_ratio_of_medians_is_covered(prompts):
    """Medians of few prompts are covered at least as often as stated: their interval is on the wide side."""
    assert cover_ratio(200, prompts, UNLIKE, statistic="p50") >= band(200, 0.95)[0]


def test_the_far_level_of_a_family_is_covered():
    """At six prompts the 99.8 % interval, that of one among 25 comparisons, misses hardly ever."""
    assert cover_ratio(300, 6, UNLIKE, level=0.998) >= band(300, 0.998)[0]


def test_all_intervals_of_a_family_hold_at_once():
    """Eight cells: all simultaneous intervals cover in 95 % of worlds, all single ones in far fewer."""
    rng, joint, single = np.random.default_rng(3), 0, 0
    for seed in range(120):
        family = [paired_ratio(*draw_world(rng, 8, ALIKE), resamples=300, seed=seed) for _ in range(8)]
        truth = true_ratio(ALIKE, "mean")
        joint += all(covers(one, truth) for one in simultaneous_intervals(family, 0.05))
        single += all(covers(one, truth) for one in family)
    assert joint >= band(120, 0.95)[0]
    assert single < band(120, 0.95)[0]


def test_the_mean_of_one_arm_is_covered():
    """The mean latency of eight prompts is covered as an interval of true coverage 93 to 95 % would."""
    rng, hits = np.random.default_rng(5), 0
    for seed in range(300):
        _, values, labels = draw_world(rng, 8, UNLIKE)
        estimate = mean_interval(values, labels, resamples=300, seed=seed)
        hits += covers(estimate, np.exp((UNLIKE.prompt**2 + UNLIKE.noise**2) / 2))
    assert band(300, 0.93)[0] <= hits <= band(300, 0.95)[1]


def test_a_median_with_repeats_is_covered():
    """Counting correlated repeats for less keeps the coverage that counting all of them loses."""
    rng, hits, naive = np.random.default_rng(6), 0, 0
    for _ in range(300):
        _, values, labels = draw_world(rng, 25, UNLIKE, repeats=4)
        hits += covers(quantile_interval(values, 0.5, clusters=labels), 1.0)
        naive += covers(quantile_interval(values, 0.5), 1.0)
    assert hits >= band(300, 0.95)[0]
    assert naive < band(300, 0.95)[0]


def test_a_paired_share_difference_is_covered():
    """Twenty pairs with rare disagreement: Tango's interval covers in about 95 % of worlds."""
    rng = np.random.default_rng(7)
    tables = rng.multinomial(20, [0.8, 0.1, 0.05, 0.05], size=400)
    intervals = [paired_share_difference(*(int(count) for count in table)) for table in tables]
    hits = sum(covers(one, 0.05) for one in intervals)
    assert hits >= band(400, 0.94)[0]


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [3, 6, 8, 10, 20])
@pytest.mark.parametrize("spread", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_coverage_in_many_worlds(prompts, spread):
    """In 2000 worlds, means are covered in 93 to 96 % and medians in at least 95 %."""
    worlds = 2000
    assert band(worlds, 0.93)[0] <= cover_ratio(worlds, prompts, spread) <= band(worlds, 0.96)[1]
    assert cover_ratio(worlds, prompts, spread, statistic="p50") >= band(worlds, 0.95)[0]
