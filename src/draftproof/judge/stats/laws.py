"""Quantiles and tails of the laws behind the intervals: those of scipy.stats to the last bit.

`scipy.stats` takes a second to load and checks its arguments for longer than it computes, so what is asked
often or at a start comes from `scipy.special`; `import scipy` loads the rest at its first use.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy

from draftproof.judge.stats.resampling import Floats


def normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal law."""
    return float(scipy.special.ndtri(p))


def student_quantile(p: float, degrees: float) -> float:
    """Return the quantile of Student's t."""
    return float(scipy.special.stdtrit(degrees, p))


def chi_square_quantile(p: float, degrees: float) -> float:
    """Return the quantile of χ²."""
    return float(2.0 * scipy.special.gammaincinv(degrees / 2.0, p))


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return the quantile of Beta(a, b)."""
    return float(scipy.special.betaincinv(a, b, p))


def binomial_quantile(p: float, n: int, share: float) -> int:
    """Return the least k with P(Bin(n, share) ≤ k) ≥ p."""
    near = math.ceil(float(scipy.special.bdtrik(p, n, share)))
    below = max(near - 1, 0)
    return below if scipy.special.bdtr(below, n, share) >= p else near


def average_ranks(values: npt.ArrayLike) -> Floats:
    """Return ranks from 1, those of equal values their mean; shape (n,)."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2.0)[place]
    return ranks
