"""Order effects: places in a block and drift over a run."""

import numpy as np
import pytest

from draftproof.judge.stats.order import drift, position_effect

HOUR_NS = 3.6e12


def find_places(*arrays):
    return position_effect(*arrays)


def find_drift(*arrays):
    return drift(*arrays)


def lay_out(blocks, places):
    return np.tile(np.arange(places), blocks), np.repeat(np.arange(blocks), places)


@pytest.mark.parametrize("places", [2, 3])
def test_a_slow_first_place_is_found(places):
    """If the first arm of every block is 20 % slower, its factor says so and p is small."""
    positions, blocks = lay_out(12, places)
    rng = np.random.default_rng(1)
    values = np.where(positions == 0, 1.2, 1.0) * np.exp(blocks / 5) * rng.lognormal(0, 0.01, len(blocks))
    effect = find_places(values, positions, blocks)
    assert effect.ratios[0] / effect.ratios[-1] == pytest.approx(1.2, rel=0.02)
    assert effect.p < 0.01
    assert np.prod(effect.ratios) == pytest.approx(1.0)


@pytest.mark.parametrize("places", [2, 3])
def test_places_that_never_differ_have_p_one(places):
    """Equal values in every place show no effect."""
    positions, blocks = lay_out(5, places)
    effect = find_places(np.exp(blocks / 5.0), positions, blocks)
    assert effect.ratios == pytest.approx((1.0,) * places)
    assert effect.p == 1.0


def test_incomplete_blocks_are_left_out():
    """A block that lacks a place does not enter; too few complete ones say how many are missing."""
    effect = find_places([1.0, 2.0, 1.0, 2.0, 1.0], [0, 1, 0, 1, 0], ["a", "a", "b", "b", "c"])
    assert (effect.ratios, effect.p, effect.n, effect.needed) == (None, None, 2, 1)
    assert "2 of at least 3" in str(effect.reason)


@pytest.mark.parametrize("values", [[], [1.0, 1.0]])
def test_one_place_is_no_comparison(values):
    """Fewer than two places have nothing to compare."""
    effect = find_places(values, [0] * len(values), range(len(values)))
    assert (effect.ratios, effect.reason) == (None, "there is one position only")


def test_a_warming_machine_shows_its_factor_per_hour():
    """Latencies that grow by half an hour by hour are reported as 1.5, despite an outlier."""
    times = np.arange(20) * HOUR_NS / 10
    values = 1.5 ** (times / HOUR_NS)
    values[7] = 50.0
    found = find_drift(values, times)
    assert found.factor_per_hour == pytest.approx(1.5)
    assert found.p < 0.001


def test_a_steady_machine_has_no_drift():
    """Constant latencies have factor 1 and p = 1."""
    found = find_drift(np.full(10, 3.0), np.arange(10))
    assert (found.factor_per_hour, found.p) == (1.0, 1.0)


def test_drift_needs_enough_values_and_times():
    """Too few values give the number missing; values at one time give a reason."""
    assert (find_drift([1.0, 2.0], [0, 1]).factor_per_hour, find_drift([1.0, 2.0], [0, 1]).needed) == (
        None,
        6,
    )
    assert find_drift(np.arange(1.0, 9.0), np.zeros(8)).reason == "all values have the same time"
