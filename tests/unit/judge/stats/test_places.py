"""Places of one arm: Kruskal and Wallis with its factors."""

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.order import compare_positions


def test_factors_are_geometric_means_over_that_of_all():
    """Values 1 in place 0 and 4 in place 1, as many of each: factors 1/2 and 2."""
    found = compare_positions([1.0, 1.0, 1.0, 4.0, 4.0, 4.0], [0, 0, 0, 1, 1, 1])
    assert found.ratios == pytest.approx((0.5, 2.0))


def test_p_is_that_of_a_textbook_example():
    """Conover (1999), section 5.2, corn yields by four methods: 25.62884 with ties counted (R, agricolae)."""
    yields = {
        1: [83, 91, 94, 89, 89, 96, 91, 92, 90],
        2: [91, 90, 81, 83, 84, 83, 88, 91, 89, 84],
        3: [101, 100, 91, 93, 96, 95, 94],
        4: [78, 82, 81, 77, 79, 81, 80, 81],
    }
    values = [float(value) for group in yields.values() for value in group]
    places = [place for place, group in yields.items() for _ in group]
    found = compare_positions(values, places)
    assert found.p == pytest.approx(float(stats.chi2.sf(25.62884, 3)), rel=1e-4)


def test_equal_places_reject_at_their_rate():
    """Of 400 worlds without an effect about one in twenty has p below 0.05."""
    rng = np.random.default_rng(5)
    places = np.arange(24) % 3
    hits = sum((compare_positions(np.exp(rng.normal(size=24)), places).p or 0) < 0.05 for _ in range(400))
    assert 6 <= hits <= 32


def test_below_the_floor_it_says_how_many_periods_are_missing():
    """Two periods in a position where three are asked for; one place alone compares nothing."""
    few = compare_positions([1.0, 2.0, 1.0, 2.0, 1.0], [0, 1, 0, 1, 0])
    assert (few.ratios, few.p, few.needed) == (None, None, 1)
    alone = compare_positions([1.0, 2.0], [0, 0])
    assert (alone.p, alone.needed) == (None, None)
    assert compare_positions([], []).p is None


def test_constant_values_differ_nowhere():
    """No variation: factors of 1 and p = 1, no error from the test."""
    found = compare_positions([3.0] * 6, [0, 0, 0, 1, 1, 1])
    assert found.ratios == pytest.approx((1.0, 1.0))
    assert found.p == 1.0


def test_shapes_that_differ_are_refused():
    """A position for every value."""
    with pytest.raises(ValueError, match="one position per value"):
        compare_positions([1.0, 2.0], [0])
