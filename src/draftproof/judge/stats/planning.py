"""How many prompts it takes: sample sizes for ratios of means, ratios of quantiles and shares.

With how many prompts is the whole interval at `level` beyond its bound with the chance `power`, if the
truth is what is stated? For one of m simultaneous intervals the level is 1 − alpha/m.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from draftproof.judge.stats.bootstrap import RatioEstimate, error_of_interval
from draftproof.judge.stats.quantile_ratio import tail_floor
from draftproof.judge.stats.quantiles import normal_density, normal_quantile, student_quantile
from draftproof.judge.stats.shares import restricted_share

FEWEST = 3  # an interval over prompts needs three of them
MOST = 1_000_000


def prompts_needed(*, log_spread: float, ratio: float, margin: float, level: float, power: float) -> int:
    """Return how many prompts, 3 to `MOST`, show a ratio of means below 1 − margin or beyond 1 + margin.

    One-sample t-test on log ratios with the exact power of the noncentral t (Cohen 1988, chapter 2).
    `log_spread`: standard deviation between prompts of the log ratio. A true ratio between 1 and 1 + margin
    is shown to be below the upper bound.

    Raises:
        ValueError: the ratio is on its bound or short of a gain, or an argument is out of range.
    """
    distance = _distance(ratio, margin)
    _check_rates(level, power)
    if log_spread < 0.0:
        raise ValueError(f"a spread is not negative, got {log_spread}")
    if log_spread == 0.0:
        return FEWEST
    return _smallest(lambda count: _t_power(count, distance / log_spread, level) >= power)


def tail_prompts_needed(
    *,
    q: float,
    ratio: float,
    margin: float,
    level: float,
    power: float,
    log_spread: float,
) -> int:
    """Return how many prompts show a ratio of q-quantiles beyond its bound; bounds as in `prompts_needed`.

    The quantile of n values has the standard error √(q(1 − q)/n) / density (David & Nagaraja 2003, section
    10.2), of a normal density of the logs with `log_spread` between requests of one arm; a heavier tail takes
    more. Never below the floor of the interval itself (`tail_floor`).

    Raises:
        ValueError: as `prompts_needed`.
    """
    _check_rates(level, power)
    if log_spread < 0.0:
        raise ValueError(f"a spread is not negative, got {log_spread}")
    one_arm = log_spread * math.sqrt(q * (1.0 - q)) / normal_density(normal_quantile(q))
    spread = one_arm * math.sqrt(2.0)
    reach = normal_quantile(0.5 + level / 2.0) + normal_quantile(power)
    wanted = math.ceil((reach * spread / _distance(ratio, margin)) ** 2)
    return min(MOST, max(wanted, tail_floor(q, level)))


def share_pairs_needed(*, margin: float, level: float, power: float, discordant: float = 0.0) -> int:
    """Return how many pairs show that a share grew by less than `margin`, by Tango's interval.

    Nam (1997), Biometrics 53, 1422-1430: the variance at the margin is that of Tango's score. `discordant`:
    share of pairs in which one arm only shows the event; without any it takes z²(1 − margin)/margin.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_rates(level, power)
    if not (0.0 < margin < 1.0 and 0.0 <= discordant <= 1.0):
        raise ValueError(f"with {discordant} discordant a growth cannot be shown to be below {margin}")
    at_margin = 2.0 * restricted_share(discordant / 2.0, discordant / 2.0, 1.0, margin)
    reach = normal_quantile(0.5 + level / 2.0) * math.sqrt(at_margin + margin * (1.0 - margin))
    reach += normal_quantile(power) * math.sqrt(discordant)
    return math.ceil(round(float(reach / margin) ** 2, 9))


def spread_of(estimate: RatioEstimate) -> float | None:
    """Return the spread between prompts that an estimate shows: its standard error times √prompts.

    For a ratio of means this is the standard deviation of the log ratio, each prompt weighted by its share of
    the total. Where an estimate has an interval and no standard error, half its width stands for it.
    """
    error = error_of_interval(estimate) if estimate.standard_error is None else estimate.standard_error
    return None if error is None else error * math.sqrt(estimate.n_clusters)


def _distance(ratio: float, margin: float) -> float:
    if ratio <= 0.0 or not margin >= 0.0 or (ratio < 1.0 and margin >= 1.0):
        raise ValueError(f"a positive ratio and a margin of 0 or more are needed, got {ratio} and {margin}")
    bound = 1.0 - margin if ratio < 1.0 else 1.0 + margin
    if ratio == bound or bound < ratio < 1.0:
        raise ValueError(f"a true ratio of {ratio} cannot be shown to lie beyond {bound:g}")
    return abs(math.log(ratio / bound))


def _t_power(count: int, effect: float, level: float) -> float:
    degrees = count - 1
    critical = student_quantile(0.5 + level / 2.0, degrees)
    with np.errstate(over="ignore"):
        power = 1.0 - float(scipy.special.nctdtr(degrees, effect * math.sqrt(count), critical))
    # SciPy's noncentral t overflows to nan where the power is 1 for any purpose.
    return 1.0 if np.isnan(power) else power


def _smallest(is_enough: Callable[[int], bool]) -> int:
    high = FEWEST
    while high < MOST and not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return min(MOST, max(FEWEST, high))


def _check_rates(level: float, power: float) -> None:
    if not (0.0 < level < 1.0 and 0.0 < power < 1.0):
        raise ValueError(f"level and power are shares between 0 and 1, got {level} and {power}")
