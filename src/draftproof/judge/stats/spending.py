"""Error spent over interim analyses: which level an interval needs at each so that all of them hold.

Lan & DeMets (1983): by the share t of the information a stated part of the error has been spent, whatever the
times of the analyses, as long as no result moves them. The boundary of each analysis follows by recursive
integration over the score process (Armitage, McPherson & Rowe 1969), a Brownian motion at the times t. An
interval at the boundary's level holds at every analysis at once (repeated confidence intervals, Jennison &
Turnbull 1989), so it holds whatever ends the measurement.
"""

import math
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
import scipy

from draftproof.judge.stats.quantiles import normal_quantile
from draftproof.judge.stats.resampling import Floats
from draftproof.judge.stats.roots import find_root

Spending = Literal["obrien_fleming", "pocock"]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_REACH = 9.0  # standard deviations: what lies beyond has no mass that a double would show
_SPENT: dict[Spending, Callable[[float, float], float]] = {
    "obrien_fleming": lambda t, alpha: 2.0 * _upper(normal_quantile(1.0 - alpha / 2.0) / math.sqrt(t)),
    "pocock": lambda t, alpha: alpha * math.log1p((math.e - 1.0) * t),
}


def spend(alpha: float, time: float, spending: Spending = "obrien_fleming") -> float:
    """Return the one-sided error spent by a share `time` of the information; all of `alpha` at 1 and beyond.

    O'Brien-Fleming type: 2 − 2Φ(z(1 − alpha/2) / √t); Pocock type: alpha ln(1 + (e − 1) t).

    Raises:
        ValueError: alpha is outside (0, 0.5), or the time is not positive.
    """
    if not 0.0 < alpha < 0.5 or not time > 0.0:
        raise ValueError(f"an error between 0 and 0.5 and a positive time are needed, got {alpha}, {time}")
    return alpha if time >= 1.0 else min(alpha, _SPENT[spending](time, alpha))


@cache
def boundaries(
    alpha: float, times: tuple[float, ...], spending: Spending = "obrien_fleming"
) -> tuple[float, ...]:
    """Return the z score of each analysis that a statistic crosses with the error spent since the last one.

    `times`: shares of the information, rising. One-sided.

    Raises:
        ValueError: the times do not rise, or as `spend`.
    """
    if any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"times of analyses rise, got {times}")
    found, before, scores, mass = [], 0.0, np.zeros(1), np.ones(1)
    for number, time in enumerate(times):
        step = time - (times[number - 1] if number else 0.0)
        spent = spend(alpha, time, spending)
        bound = _find_bound(scores, mass, step, spent - before, time)
        found.append(bound / math.sqrt(time))
        scores, mass = _carry_on(scores, mass, step, bound, time)
        before = spent
    return tuple(found)


def repeated_level(alpha: float, times: tuple[float, ...], spending: Spending = "obrien_fleming") -> float:
    """Return the level that a two-sided interval needs at the last of some analyses; 1 − alpha at one of all.

    `alpha`: the error of all analyses together, both sides.
    """
    return 1.0 - 2.0 * _upper(boundaries(alpha / 2.0, times, spending)[-1])


def _find_bound(scores: Floats, mass: Floats, step: float, error: float, time: float) -> float:
    """Return the score that the process passes with a chance of `error` a step after its `scores`."""

    def excess(bound: float) -> float:
        crossed = float(mass @ scipy.special.ndtr((scores - bound) / math.sqrt(step)))
        # On the log scale, for an early analysis spends an error that is tiny beside the others'.
        return math.log(max(crossed, 1e-300)) - math.log(max(error, 1e-290))

    return find_root(excess, -_REACH * math.sqrt(time), 5.0 * _REACH * math.sqrt(time), within=1e-11)


def _carry_on(scores: Floats, mass: Floats, step: float, bound: float, time: float) -> tuple[Floats, Floats]:
    """Return scores below the bound a step later, and the mass at each: nodes and weights of a quadrature."""
    lowest, highest = -_REACH * math.sqrt(time), min(bound, _REACH * math.sqrt(time))
    half = (highest - lowest) / 2.0
    later = lowest + half * (_NODES + 1.0)
    density = np.exp(-((later[:, None] - scores[None, :]) ** 2) / (2.0 * step)) / math.sqrt(
        2.0 * math.pi * step
    )
    return later, half * _WEIGHTS * (density @ mass)


def _upper(score: float) -> float:
    return float(scipy.special.ndtr(-score))
