"""Brent's method against that of SciPy, whose every bit it has."""

import math

import pytest
from scipy import optimize

from draftproof.judge.stats.roots import RELATIVE, find_root
from draftproof.judge.stats.shares import tango_score

FUNCTIONS = {
    "line": lambda x: 3.0 * x - 1.0,
    "cubic": lambda x: x**3 - 0.2,
    "exponential": lambda x: math.exp(5.0 * x) - 2.0,
    "jump": lambda x: -1e9 if x < 0.3 else 1e9,
    "steep": lambda x: math.atan(40.0 * (x - 0.1)),
    "at the end": lambda x: x - 1.0,
    "at the start": lambda x: x + 1.0,
}


@pytest.mark.parametrize("within", [1e-12, 1e-3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_root_is_that_of_scipy(name, within):
    """Smooth, steep and broken functions, coarse and fine."""
    function = FUNCTIONS[name]
    wanted = optimize.brentq(function, -1.0, 1.0, xtol=within, rtol=RELATIVE)
    assert find_root(function, -1.0, 1.0, within=within) == wanted


@pytest.mark.parametrize("pairs", [6, 20, 333])
def test_the_limits_of_a_share_are_those_of_scipy(pairs):
    """Tango's score at every count of one arm's wins against a few of the other's."""
    for first in range(0, pairs // 2 + 1, 1 + pairs // 40):
        for second in {0, 1, pairs // 3}:
            for target in (-1.959963984540054, 1.2815515655446004):

                def off(at, first=first, second=second, target=target):
                    return max(-1e9, min(1e9, tango_score(first, second, pairs, at))) - target

                ends = (-1.0 + 1e-12, 1.0 - 1e-12)
                assert find_root(off, *ends, within=1e-12) == optimize.brentq(off, *ends, xtol=1e-12)


def test_one_sign_is_refused():
    """Without a change of sign nothing says that there is a root."""
    with pytest.raises(ValueError, match="one sign"):
        find_root(lambda x: x * x + 1.0, -1.0, 1.0, within=1e-9)
