"""Permutation tests of paired draws: the two arms' answers to one request are swapped, or not, at random.

If both arms draw from the same distribution every pattern of swaps is equally likely, so the share of
patterns whose statistic is at least the observed one is a p-value whatever the distribution (Fisher 1935;
Pitman 1937). With few units every pattern is taken; else patterns are drawn and the observed one is counted
among them, (b + 1) / (m + 1) (Phipson & Smyth 2010, Stat. Appl. Genet. Mol. Biol. 9(1), 39).

Many comparisons at once: intervals that hold together, and Holm's step-down decisions.

`simultaneous_intervals` cover all true ratios at once with at least the family's level (Bonferroni, each at 1
− alpha/m). `holm_adjusted` (Holm 1979, Scand. J. Statist. 6, 65-70) rejects any true hypothesis with at most
alpha; it decides against one stated boundary and makes no intervals, since those at the step-down levels
would not cover jointly.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from draftproof.judge.stats.bootstrap import RatioEstimate, interval_at

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Signs = npt.NDArray[np.int8]

_EXACT_UNITS = 12
# Two statistics that differ by less are equal: sums may be formed in another order elsewhere.
_TIE = 1e-9
# Signs that are turned into floats at once: 16 MB.
_CHUNK = 2_000_000


class Swaps(NamedTuple):
    """Patterns of swaps: `signs`, shape (patterns, units), −1 where a unit is swapped.

    `is_exact`: the patterns are all there are, the observed one first; else they are draws without it.
    """

    signs: Signs
    is_exact: bool


class DistanceBlock(NamedTuple):
    """Distances among the draws of one prompt, R of each arm.

    `units`: shape (R,), the unit of each pair of draws. `within_first`, `within_second`, `across`: shape
    (R, R), the distances inside each arm and from the first arm's draws (rows) to the second's.
    """

    units: Ints
    within_first: Floats
    within_second: Floats
    across: Floats


def draw_swaps(units: int, draws: int, seed: int) -> Swaps:
    """Return every pattern of up to 12 units, else `draws` patterns drawn with the seed.

    Raises:
        ValueError: there is no unit or no draw.
    """
    if units < 1 or draws < 1:
        raise ValueError(f"at least one unit and one draw are needed, got {units} and {draws}")
    if units <= _EXACT_UNITS:
        patterns = np.arange(2**units)[:, None] >> np.arange(units)[None, :]
        return Swaps((1 - 2 * (patterns & 1)).astype(np.int8), is_exact=True)
    bits = np.random.default_rng(seed).integers(0, 2, size=(draws, units), dtype=np.int8)
    return Swaps(1 - 2 * bits, is_exact=False)


def difference_p_value(differences: Floats, swaps: Swaps) -> float:
    """Return the two-sided p-value of a sum of differences, shape (units,), first − second of each unit."""
    if not differences.any():
        return 1.0
    return _p_value(
        abs(float(differences.sum())), _permute(swaps, lambda signs: np.abs(signs @ differences)), swaps
    )


def category_p_value(differences: Floats, swaps: Swaps) -> float:
    """Return the p-value of a shift between categories: the sum of |first − second| over their counts.

    `differences`, shape (units, categories): count in the first arm − count in the second.
    """
    if not differences.any():
        return 1.0
    return _p_value(
        float(np.abs(differences.sum(axis=0)).sum()),
        _permute(swaps, lambda signs: np.abs(signs @ differences).sum(axis=1)),
        swaps,
    )


def energy_p_value(blocks: Sequence[DistanceBlock], swaps: Swaps) -> float:
    """Return the p-value of the energy distance between the arms, summed over prompts (Székely & Rizzo 2004).

    With s = ±1 for each unit the distance of one prompt is −sᵀKs / R² with K = D(first) + D(second) −
    D(across) − D(across)ᵀ. Prompts are weighted by R, the more draws the more they say.
    """
    units = swaps.signs.shape[1]

    def total(signs: Floats) -> Floats:
        distance = np.zeros(len(signs))
        for block in blocks:
            distance += _energy(block, signs[:, block.units])
        return distance

    return _p_value(float(total(np.ones((1, units)))[0]), _permute(swaps, total), swaps)


def _energy(block: DistanceBlock, signs: Floats) -> Floats:
    kernel = block.within_first + block.within_second - block.across - block.across.T
    energy: Floats = -((signs @ kernel) * signs).sum(axis=1) / len(block.units)
    return energy


def _permute(swaps: Swaps, statistic: Callable[[Floats], Floats]) -> Floats:
    """Return the statistic of every pattern, shape (patterns,), a part of them at a time."""
    patterns, units = swaps.signs.shape
    step = max(1, _CHUNK // units)
    return np.concatenate(
        [statistic(swaps.signs[at : at + step].astype(np.float64)) for at in range(0, patterns, step)]
    )


def _p_value(observed: float, permuted: Floats, swaps: Swaps) -> float:
    reached = int(np.count_nonzero(permuted >= observed - _TIE * max(1.0, abs(observed))))
    if swaps.is_exact:
        return reached / len(permuted)
    return (reached + 1) / (len(permuted) + 1)


class SimultaneousInterval(NamedTuple):
    """Limits that hold jointly over a family, each at `level` by itself; None without an estimate."""

    low: float | None
    high: float | None
    level: float | None


NOT_ESTIMATED = SimultaneousInterval(None, None, None)


def simultaneous_intervals(
    estimates: Sequence[RatioEstimate], alpha: float
) -> tuple[SimultaneousInterval, ...]:
    """Widen the intervals of a family so that all of them hold at once; in the order given.

    Comparisons without an estimate make no claim and do not count in the family's size.
    """
    known = [one.value is not None and one.standard_error is not None for one in estimates]
    level = bonferroni_level(sum(known), alpha)
    return tuple(
        SimultaneousInterval(*interval_at(one, level), level) if is_known else NOT_ESTIMATED
        for one, is_known in zip(estimates, known, strict=True)
    )


def bonferroni_level(family: int, alpha: float) -> float:
    """Return the level each of `family` intervals needs so that all hold with 1 − alpha.

    Raises:
        ValueError: alpha is outside (0, 1).
    """
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is a share between 0 and 1, got {alpha}")
    return 1.0 - alpha / max(1, family)


def holm_adjusted(p_values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return Holm's adjusted p-values in the order given; None stays None and is outside the family.

    The k-th smallest is multiplied by m − k + 1 and never falls below the one before it.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    running = 0.0
    for rank, (p, index) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - rank)))
        adjusted[index] = running
    return tuple(adjusted)
