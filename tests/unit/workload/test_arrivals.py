"""Arrival processes: distributions on many draws, closed forms of the profiles, and determinism."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from draftproof.core.clock import NS_PER_S
from draftproof.workload.arrivals import (
    OnOff,
    Profile,
    Ramp,
    Spacing,
    Steady,
    Steps,
    arrival_times_ns,
    mean_rate_rps,
    think_time_ns,
    times_within,
)

EVEN = Spacing(kind="even")
# So many draws find what is wrong with a law; the million of `make test-all` would find what is nearly right.
DRAWS = pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])


def first(profile: Profile, spacing: Spacing, count: int, seed: int = 7) -> np.ndarray:
    times = itertools.islice(arrival_times_ns(profile, spacing, seed), count)
    return np.fromiter(times, dtype=np.int64, count=count)


def unit_gaps(times_ns: np.ndarray, rps: float) -> np.ndarray:
    return np.diff(times_ns) / NS_PER_S * rps


@DRAWS
def test_even_arrivals_never_drift(count: int) -> None:
    """The last even arrival of many is due to the nanosecond where arithmetic puts it."""
    times = first(Steady(rps=500), EVEN, count)
    wanted = np.round((np.arange(count) + 0.5) * NS_PER_S / 500).astype(np.int64)
    assert np.abs(times - wanted).max() <= 1


@DRAWS
def test_poisson_gaps_are_exponential(count: int) -> None:
    """Poisson gaps at 50 per second pass a Kolmogorov-Smirnov test against the exponential law."""
    gaps = unit_gaps(first(Steady(rps=50), Spacing(kind="poisson"), count), 50)
    assert stats.kstest(gaps, "expon").pvalue > 0.001
    assert abs(gaps.mean() - 1) < 5 / math.sqrt(count)


@DRAWS
def test_poisson_counts_are_poisson(count: int) -> None:
    """Arrivals of one second have variance equal to their mean, and those of neighbours do not depend."""
    times = first(Steady(rps=100), Spacing(kind="poisson"), count)
    counts = np.bincount(times // NS_PER_S)[:-1]
    assert abs(counts.var() / counts.mean() - 1) < 5 * math.sqrt(2 / len(counts))
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 5 / math.sqrt(len(counts))


@DRAWS
@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_gamma_gaps_have_their_law(cv: float, count: int) -> None:
    """Gamma gaps have mean one and the stated coefficient of variation, and pass the KS test."""
    gaps = unit_gaps(first(Steady(rps=10), Spacing(kind="gamma", cv=cv), count), 10)
    # Times are whole nanoseconds: gaps far below that are rounded, which the test must not see.
    assert stats.kstest(gaps[gaps > 1e-6], _gamma_above(1 / cv**2, 1e-6)).pvalue > 0.001
    assert abs(gaps.mean() - 1) < 6 * cv / math.sqrt(count)
    assert abs(gaps.std() / cv - 1) < 0.02 * math.sqrt(1_000_000 / count)


def _gamma_above(shape: float, floor: float):
    law = stats.gamma(shape, scale=1 / shape)
    below = law.cdf(floor)
    return lambda x: (law.cdf(x) - below) / (1 - below)


def test_a_gamma_of_one_is_poisson() -> None:
    """A coefficient of variation of 1 gives the very arrivals of the Poisson process."""
    gamma = first(Steady(rps=5), Spacing(kind="gamma", cv=1.0), 1000)
    assert (gamma == first(Steady(rps=5), Spacing(kind="poisson"), 1000)).all()


def test_a_ramp_counts_the_area_below_it() -> None:
    """From 0 to 10 per second in 10 s are 50 arrivals, the first half of them after 7.07 s."""
    times = times_within(Ramp(from_rps=0, to_rps=10, ramp_s=10), EVEN, 1, 10)
    assert len(times) == 50
    assert times[25] == pytest.approx(math.sqrt(25.5 / 50) * 10 * NS_PER_S, abs=2)


def test_a_ramp_downwards_ends_at_its_lower_rate() -> None:
    """From 10 to 2 per second in 5 s are 30 arrivals, and 2 more every second after."""
    profile = Ramp(from_rps=10, to_rps=2, ramp_s=5)
    assert len(times_within(profile, EVEN, 1, 5)) == 30
    assert len(times_within(profile, EVEN, 1, 15)) == 50


def test_a_random_ramp_is_an_inhomogeneous_poisson_process() -> None:
    """Rescaled by the integral of the rate, arrivals of a random ramp are a Poisson process of rate one."""
    times = first(Ramp(from_rps=0, to_rps=1000, ramp_s=1000), Spacing(kind="poisson"), 400_000) / NS_PER_S
    gaps = np.diff(times**2 / 2)
    assert stats.kstest(gaps, "expon").pvalue > 0.001


def test_bursts_switch_on_and_off() -> None:
    """Two per second for a second and none for a second: arrivals lie in the first halves only."""
    times = times_within(OnOff(on_rps=2, on_s=1, off_rps=0, off_s=1), EVEN, 1, 6)
    assert [round(time / NS_PER_S, 2) for time in times] == [0.25, 0.75, 2.25, 2.75, 4.25, 4.75]


def test_steps_take_their_rates_in_turn_and_keep_the_last() -> None:
    """Rates of 1, 3 and 2 for two seconds each give 2, 6 and 4 arrivals, then 2 every second."""
    times = np.array(times_within(Steps(rps=(1, 3, 2), step_s=2), EVEN, 1, 10)) / NS_PER_S
    assert np.histogram(times, bins=[0, 2, 4, 6, 8, 10])[0].tolist() == [2, 6, 4, 4, 4]


def test_a_profile_that_falls_to_nothing_ends() -> None:
    """Arrivals end where the rate is 0 for good; they do not hang."""
    assert len(list(arrival_times_ns(Steps(rps=(5, 0), step_s=1), EVEN, 1))) == 5


PROFILES = st.one_of(
    st.builds(Steady, rps=st.floats(0.1, 1000)),
    st.builds(Ramp, from_rps=st.floats(0, 100), to_rps=st.floats(0.1, 100), ramp_s=st.floats(0.1, 50)),
    st.builds(Steps, rps=st.tuples(st.floats(0.1, 50), st.floats(0.1, 50)), step_s=st.floats(0.1, 20)),
    st.builds(
        OnOff,
        on_rps=st.floats(0.1, 200),
        on_s=st.floats(0.05, 5),
        off_rps=st.floats(0, 20),
        off_s=st.floats(0.05, 5),
    ),
)
SPACINGS = st.one_of(
    st.just(EVEN),
    st.just(Spacing(kind="poisson")),
    st.builds(Spacing, kind=st.just("gamma"), cv=st.floats(0.2, 5)),
)


@settings(max_examples=60, deadline=None)
@given(profile=PROFILES, spacing=SPACINGS, seed=st.integers(0, 2**32))
def test_arrivals_are_ordered_and_a_function_of_their_arguments(
    profile: Profile, spacing: Spacing, seed: int
) -> None:
    """Times never run backwards, begin at 0 or later, and come again for the same arguments."""
    times = list(itertools.islice(arrival_times_ns(profile, spacing, seed), 300))
    assert times == sorted(times)
    assert times[0] >= 0
    assert times == list(itertools.islice(arrival_times_ns(profile, spacing, seed), 300))


@settings(max_examples=60, deadline=None)
@given(profile=PROFILES, duration_s=st.floats(0.5, 60))
def test_even_arrivals_keep_the_mean_rate(profile: Profile, duration_s: float) -> None:
    """Even arrivals before any moment are the integral of the rate up to it, to within one."""
    wanted = mean_rate_rps(profile, duration_s) * duration_s
    assert abs(len(times_within(profile, EVEN, 1, duration_s)) - wanted) <= 1


def test_seeds_draw_different_arrivals() -> None:
    """Two seeds give two sequences; an even process ignores its seed."""
    poisson = Spacing(kind="poisson")
    assert (first(Steady(rps=5), poisson, 50, seed=1) != first(Steady(rps=5), poisson, 50, seed=2)).any()
    assert (first(Steady(rps=5), EVEN, 50, seed=1) == first(Steady(rps=5), EVEN, 50, seed=2)).all()


@pytest.mark.parametrize(
    ("profile", "field"),
    [
        (Steady(rps=0), "rate above 0"),
        (Steady(rps=-1), "rps"),
        (Steady(rps=math.nan), "rps"),
        (Ramp(from_rps=1, to_rps=2, ramp_s=0), "ramp_s"),
        (OnOff(on_rps=1, on_s=0, off_rps=0, off_s=1), "on_s"),
        (Steps(rps=(1, math.inf), step_s=1), "rps"),
        (Steps(rps=(), step_s=1), "rate above 0"),
    ],
)
def test_an_unusable_profile_names_its_field(profile: Profile, field: str) -> None:
    """A rate or duration that cannot be used is refused by name before the first arrival."""
    with pytest.raises(ValueError, match=field):
        arrival_times_ns(profile, EVEN, 1)


def test_thoughts_are_exponential_and_belong_to_their_request() -> None:
    """Forty thousand thoughts of mean 3 s pass the KS test; each comes again, another turn has another."""
    drawn = [think_time_ns(3.0, "load", 0, f"item-{number}", 1) for number in range(40_000)]
    assert stats.kstest(np.array(drawn) / NS_PER_S / 3.0, "expon").pvalue > 0.001
    assert len(set(drawn)) == len(drawn)
    assert think_time_ns(3.0, "load", 0, "item-7", 1) == drawn[7]
    assert (
        think_time_ns(3.0, "load", 0, "item-7", 2) != drawn[7] != think_time_ns(3.0, "load", 1, "item-7", 1)
    )
    assert think_time_ns(0.0, "load", 0, "item-7", 1) == 0


def test_neighbouring_gaps_do_not_depend() -> None:
    """Gaps are independent: the rank correlation of neighbours is within five standard errors of 0."""
    for spacing in (Spacing(kind="poisson"), Spacing(kind="gamma", cv=2.0)):
        gaps = np.diff(first(Steady(rps=50), spacing, 200_000))
        assert abs(stats.spearmanr(gaps[:-1], gaps[1:]).statistic) < 5 / math.sqrt(len(gaps))
