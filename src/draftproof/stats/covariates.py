"""How much of a difference between two arms a circumstance can carry in which their periods differ.

Arms are compared period by period; where the periods of one arm more often follow a pause, or one particular
arm, than those of the other, the effect of that circumstance enters the difference. Where it varies within an
arm, its effect shows there: values are fitted as block + arm + circumstances (analysis of covariance, Cochran
1957), and the bias is the difference of shares times the fitted effect.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from draftproof.stats.resampling import Floats

TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Bias:
    """What circumstances add to the log ratio of two arms, with its interval.

    None where no arm's own periods tell the effect of a circumstance in which the arms differ: it may be any.
    """

    value: float | None
    low: float | None
    high: float | None


def estimate_bias(
    values: Floats, circumstances: Floats, arm: int, versus: int, *, level: float = 0.95
) -> Bias:
    """Return what circumstances add to the mean of one arm less that of another.

    Args:
        values: shape (blocks, arms), log value of each period.
        circumstances: shape (circumstances, blocks, arms), such as 1 after a pause and 0 else.
        arm: column of the one.
        versus: column of the other.
        level: coverage of the interval.
    """
    differences = circumstances[:, :, arm].mean(axis=1) - circumstances[:, :, versus].mean(axis=1)
    blocks, arms = values.shape
    design = np.array([_centre(one).reshape(-1) for one in circumstances]).T
    products = design.T @ design
    inverse = np.linalg.pinv(products, rcond=TOLERANCE, hermitian=True)
    # A combination of circumstances is told apart from arms and blocks if it lies in the range of the design.
    is_told = bool(np.allclose(products @ inverse @ differences, differences, atol=1e-6))
    spare = (blocks - 1) * (arms - 1) - int(np.linalg.matrix_rank(products, tol=TOLERANCE))
    if not is_told or spare < 1:
        return Bias(value=None, low=None, high=None)
    free = _centre(values).reshape(-1)
    effects = inverse @ design.T @ free
    rest = float(((free - design @ effects) ** 2).sum()) / spare
    value, error = float(differences @ effects), float(np.sqrt(differences @ inverse @ differences * rest))
    reach = float(stats.t.ppf(0.5 + level / 2.0, spare)) * error
    return Bias(value=value, low=value - reach, high=value + reach)


def _centre(values: Floats) -> Floats:
    free: Floats = (
        values - values.mean(axis=0, keepdims=True) - values.mean(axis=1, keepdims=True) + values.mean()
    )
    return free
