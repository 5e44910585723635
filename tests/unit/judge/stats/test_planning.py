"""Sample sizes: published values, closed forms, and the power that simulation sees at them."""

import math

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.bootstrap import paired_ratio
from draftproof.judge.stats.planning import (
    MOST,
    prompts_needed,
    share_pairs_needed,
    spread_of,
    tail_prompts_needed,
)
from draftproof.judge.stats.quantile_ratio import paired_quantile_ratio, tail_floor
from draftproof.judge.stats.shares import paired_share_difference


@pytest.mark.parametrize(
    ("effect", "power", "count"), [(0.2, 0.8, 199), (0.5, 0.8, 34), (0.8, 0.8, 15), (0.5, 0.9, 44)]
)
def test_prompts_are_those_of_the_one_sample_t_test(effect, power, count):
    """Sizes of the two-sided one-sample t-test at 5 % as G*Power 3 gives them (Faul et al. 2007)."""
    needed = prompts_needed(log_spread=1.0, ratio=math.exp(-effect), margin=0.0, level=0.95, power=power)
    assert needed == count


def test_a_smaller_distance_or_a_higher_level_takes_more():
    """What makes a claim harder never makes it cheaper."""

    def needed(ratio=0.85, margin=0.05, level=0.95, power=0.8, log_spread=0.2):
        return prompts_needed(log_spread=log_spread, ratio=ratio, margin=margin, level=level, power=power)

    harder = [needed(ratio=0.9), needed(margin=0.1), needed(level=0.998), needed(power=0.95)]
    assert min(harder, default=0) > needed() > needed(log_spread=0.1)


def test_non_inferiority_looks_to_the_other_bound():
    """A ratio of 1 is to be shown below 1 + margin: the distance is log(1 + margin)."""
    shown = prompts_needed(log_spread=0.5, ratio=1.0, margin=0.25, level=0.95, power=0.8)
    assert shown == prompts_needed(log_spread=0.5, ratio=0.8, margin=0.0, level=0.95, power=0.8)


def test_a_size_has_a_floor_and_an_end():
    """No spread still takes an interval's three prompts; a hopeless claim ends at a million."""
    assert prompts_needed(log_spread=0.0, ratio=0.9, margin=0.05, level=0.95, power=0.8) == 3
    assert prompts_needed(log_spread=9.0, ratio=0.9499, margin=0.05, level=0.95, power=0.8) == MOST


@pytest.mark.parametrize(
    ("ratio", "margin"), [(0.95, 0.05), (0.97, 0.05), (0.0, 0.05), (1.05, 0.05), (0.9, 1.0), (1.2, -0.1)]
)
def test_a_claim_that_is_not_true_has_no_size(ratio, margin):
    """A ratio on its bound, or one short of the gain to be shown, is refused."""
    with pytest.raises(ValueError, match=r"cannot be shown|are needed"):
        prompts_needed(log_spread=0.2, ratio=ratio, margin=margin, level=0.95, power=0.8)


def test_rates_are_shares():
    """Percent numbers and negative spreads are mistakes of the caller."""
    with pytest.raises(ValueError, match="shares between 0 and 1"):
        prompts_needed(log_spread=0.2, ratio=0.9, margin=0.05, level=95, power=0.8)
    with pytest.raises(ValueError, match="not negative"):
        prompts_needed(log_spread=-0.2, ratio=0.9, margin=0.05, level=0.95, power=0.8)
    with pytest.raises(ValueError, match="not negative"):
        tail_prompts_needed(q=0.95, ratio=1.0, margin=0.25, level=0.95, power=0.8, log_spread=-0.2)


def test_the_size_for_a_mean_has_the_power_it_promises():
    """Of 400 simulated runs of the planned size, the share whose interval clears the bound is the power."""
    spread, ratio, margin = 0.15, 0.85, 0.05
    count = prompts_needed(log_spread=spread, ratio=ratio, margin=margin, level=0.95, power=0.8)
    rng, seen = np.random.default_rng(3), 0
    for seed in range(300):
        effect = rng.normal(math.log(ratio) - spread**2 / 2, spread, count)
        estimate = paired_ratio(np.exp(effect), np.ones(count), np.arange(count), resamples=200, seed=seed)
        assert estimate.high is not None
        seen += estimate.high < 1 - margin
    assert seen / 300 == pytest.approx(0.8, abs=0.08)


def test_the_size_for_a_tail_has_the_power_it_promises():
    """The same for p90 of log-normal latencies in independent arms, whose intervals are a little wider."""
    spread, margin = 0.3, 0.25
    count = tail_prompts_needed(q=0.9, ratio=1.0, margin=margin, level=0.95, power=0.8, log_spread=spread)
    rng, seen = np.random.default_rng(4), 0
    for _ in range(100):
        arms = np.exp(rng.normal(0, spread, (2, count)))
        estimate = paired_quantile_ratio(arms[0], arms[1], np.arange(count), q=0.9)
        seen += estimate.high is not None and estimate.high < 1 + margin
    assert seen / 100 == pytest.approx(0.77, abs=0.13)


def test_a_tail_takes_the_square_of_its_spread():
    """√(q(1 − q))/φ(z) is 2.11 at p95, of which two independent arms have √2."""
    asked = {"q": 0.95, "ratio": 1.0, "margin": 0.25, "level": 0.95, "power": 0.8}
    reach = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    density = stats.norm.pdf(stats.norm.ppf(0.95))
    wanted = 2 * 0.95 * 0.05 / density**2 * (0.5 * reach / math.log(1.25)) ** 2
    assert tail_prompts_needed(**asked, log_spread=0.5) == math.ceil(wanted)
    assert tail_prompts_needed(**asked, log_spread=0.01) == tail_floor(0.95)


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05, 0.1])
def test_pairs_without_a_discordant_one_have_a_closed_form(margin):
    """Tango's upper limit without discordant pairs is z²/(n + z²): at the planned n it is just inside."""
    count = share_pairs_needed(margin=margin, level=0.95, power=0.9)
    z_squared = stats.norm.ppf(0.975) ** 2
    assert count == math.ceil(z_squared * (1 - margin) / margin)
    assert paired_share_difference(0, 0, 0, count).high <= margin
    assert paired_share_difference(0, 0, 0, count - 1).high > margin


def test_pairs_have_the_power_they_promise():
    """Exact binomial simulation of Tango's interval at the planned number of pairs."""
    margin, discordant = 0.1, 0.12
    count = share_pairs_needed(margin=margin, level=0.95, power=0.8, discordant=discordant)
    shares = [discordant / 2, discordant / 2, 1 - discordant]
    draws = np.random.default_rng(5).multinomial(count, shares, size=400)
    highs = [paired_share_difference(0, *map(int, draw)).high for draw in draws]
    seen = sum(high is not None and high < margin for high in highs)
    assert seen / 400 == pytest.approx(0.8, abs=0.07)


@pytest.mark.parametrize("asked", [{"margin": 0.0}, {"margin": 0.1, "discordant": 1.1}, {"margin": 1.2}])
def test_a_growth_at_the_margin_cannot_be_shown_below_it(asked):
    """No number of pairs shows what is not true."""
    with pytest.raises(ValueError, match="cannot be shown"):
        share_pairs_needed(level=0.95, power=0.8, **asked)


def test_the_spread_of_a_run_is_the_spread_between_its_prompts():
    """The standard error times √prompts gives back the spread that was drawn; without an estimate none."""
    rng = np.random.default_rng(6)
    above, below, prompts = np.exp(rng.normal(0, 0.2, 400)), np.ones(400), np.arange(400)
    assert spread_of(paired_ratio(above, below, prompts)) == pytest.approx(0.2, rel=0.15)
    tail = paired_quantile_ratio(above, below * np.exp(rng.normal(0, 0.2, 400)), prompts, q=0.9)
    assert spread_of(tail) == pytest.approx(0.2 * math.sqrt(2 * 0.09) / stats.norm.pdf(1.2816), rel=0.3)
    assert spread_of(paired_ratio(above[:2], below[:2], prompts[:2])) is None
