"""Reading an effect against the off-off null: two equal arms measured as if they were different.

Whatever the null shows is not speculation: it is order, drift, noise of the host and of the client.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class HasLimits(Protocol):
    """An interval: `RatioEstimate` fits, and any row that keeps one."""

    @property
    def low(self) -> float | None:
        """Lower limit, None where there is none."""
        ...

    @property
    def high(self) -> float | None:
        """Upper limit, None where there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class NullComparison:
    """What the null says about the run and about one effect; None where either has no estimate.

    `null_covers_one`: the null's interval holds 1, as it must if nothing but noise is between equal arms.
    `noise_floor`: the farthest the null's interval lies from 1, as a factor ≥ 1; an effect inside
    [1/noise_floor, noise_floor] is no larger than what equal arms may show. `beyond_noise`: the effect's
    whole interval is outside that band.
    """

    null_covers_one: bool | None
    noise_floor: float | None
    beyond_noise: bool | None


def null_difference(ratio: float | None, standard_error: float | None) -> float:
    """Return by which factor, 1 or more, two equal arms differ beyond what chance explains.

    exp(√max(0, log² ratio − se²)), with the standard error of the log of the ratio: chance alone makes log²
    as large as se² on average. 1 where there is no ratio; a ratio whose error is not known counts in full.
    """
    if not ratio:
        return 1.0
    excess = math.log(ratio) ** 2 - (standard_error or 0.0) ** 2
    return math.exp(math.sqrt(max(0.0, excess)))


def compare_with_null(effect: HasLimits, null: HasLimits) -> NullComparison:
    """Return whether the null is clean and whether the effect stands out of it."""
    if null.low is None or null.high is None:
        return NullComparison(null_covers_one=None, noise_floor=None, beyond_noise=None)
    floor = float(np.exp(max(abs(np.log(null.low)), abs(np.log(null.high)))))
    covers = null.low <= 1.0 <= null.high
    if effect.low is None or effect.high is None:
        return NullComparison(null_covers_one=covers, noise_floor=floor, beyond_noise=None)
    return NullComparison(
        null_covers_one=covers,
        noise_floor=floor,
        beyond_noise=effect.high < 1.0 / floor or effect.low > floor,
    )
