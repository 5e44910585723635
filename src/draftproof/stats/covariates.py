"""How much of a difference between two arms a circumstance can carry in which their periods differ.

Arms are compared period by period; where the periods of one arm more often follow a pause, or one particular
arm, than those of the other, the effect of that circumstance enters the difference. Where it varies within an
arm, or between equal arms, its effect shows there: values are fitted as block + arm + circumstances (analysis
of covariance, Cochran 1957), and the bias is the difference of shares times the fitted effect. What no
period tells is bounded by an assumption, `MOST`.
"""

import math
from dataclasses import dataclass

import numpy as np

from draftproof.stats.laws import student_quantile
from draftproof.stats.processes import centre_periods
from draftproof.stats.resampling import Floats, Ints

TOLERANCE = 1e-9
# What precedes a period leaves heat, clocks, caches and queues behind. Between the clock that a server's
# processor or accelerator holds under load and its boost lies a factor of 1.2 to 1.5.
MOST = 1.5


@dataclass(frozen=True, kw_only=True)
class Bias:
    """What circumstances add to the log ratio of two arms, with its interval.

    `assumed`: how far the interval reaches to either side for what no period tells; 0 where periods tell all.
    """

    value: float
    low: float
    high: float
    assumed: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """What periods tell of a bias, its standard error and degrees of freedom, and the shares of the rest."""

    value: float
    error: float
    degrees: int
    untold: float


def estimate_bias(
    values: Floats, circumstances: Floats, kinds: Ints, arm: int, versus: int, *, level: float = 0.95
) -> Bias:
    """Return what circumstances add to the mean of one arm less that of another.

    Equal arms tell of a circumstance by their difference, where no arm does by its own periods.

    Args:
        values: shape (blocks, arms), log value of each period.
        circumstances: shape (circumstances, blocks, arms), such as 1 after a pause and 0 else.
        kinds: shape (arms,), number of what the arm is, the same for equal arms.
        arm: column of the one.
        versus: column of the other.
        level: coverage of the interval.
    """
    differences = circumstances[:, :, arm].mean(axis=1) - circumstances[:, :, versus].mean(axis=1)
    fit = _fit(values, circumstances, np.arange(len(kinds)), differences)
    if fit.untold:
        fit = _fit(values, circumstances, kinds, differences)
    reach = student_quantile(0.5 + level / 2.0, max(1, fit.degrees)) * fit.error
    # All that precedes a period together makes it no more than MOST times as slow or as fast.
    assumed, most = (math.log(MOST) * min(1.0, share) for share in (fit.untold, _add_up(differences)))
    if abs(fit.value) > most:  # this run shows otherwise
        most = math.inf
    return Bias(
        value=fit.value,
        low=max(fit.value - reach - assumed, -most),
        high=min(fit.value + reach + assumed, most),
        assumed=assumed,
    )


def _fit(values: Floats, circumstances: Floats, kinds: Ints, differences: Floats) -> _Fit:
    blocks, arms = values.shape
    design = centre_periods(np.moveaxis(circumstances, 0, -1), kinds).reshape(blocks * arms, -1)
    roots, vectors = np.linalg.eigh(design.T @ design)
    vectors, roots = vectors[:, roots > TOLERANCE], roots[roots > TOLERANCE]
    degrees = blocks * (arms - 1) - int(kinds.max()) - len(roots)
    if degrees < 1:
        return _Fit(value=0.0, error=0.0, degrees=0, untold=_add_up(differences))
    # What lies in the range of the design is told apart from arms and blocks, and the rest is not.
    told = vectors.T @ differences
    free = centre_periods(values[:, :, None], kinds).reshape(-1)
    effects = vectors.T @ design.T @ free / roots
    rest = float(((free - design @ vectors @ effects) ** 2).sum()) / degrees
    return _Fit(
        value=float(told @ effects),
        error=math.sqrt(float((told**2 / roots).sum()) * rest),
        degrees=degrees,
        untold=_add_up(differences - vectors @ told),
    )


def _add_up(shares: Floats) -> float:
    total = float(np.abs(shares).sum())
    return total if total > math.sqrt(TOLERANCE) else 0.0
