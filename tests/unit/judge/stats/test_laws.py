"""The laws behind the intervals against scipy.stats."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.quantiles import (
    average_ranks,
    beta_quantile,
    binomial_quantile,
    chi_square_quantile,
    normal_quantile,
    student_quantile,
)

SHARES = (1e-9, 0.0125, 0.025, 0.31, 0.5, 0.95, 0.975, 1 - 0.05 / 368)


@pytest.mark.parametrize("p", SHARES)
def test_quantiles_are_those_of_scipy_stats(p):
    """Intervals of old runs do not change by a bit."""
    assert normal_quantile(p) == stats.norm.ppf(p)
    for degrees in (0.7, 1, 2.5, 11, 399, np.inf):
        assert student_quantile(p, degrees) == stats.t.ppf(p, degrees)
    for degrees in (1, 3, 11.5, 399):
        assert chi_square_quantile(p, degrees) == stats.chi2.ppf(p, degrees)
        assert beta_quantile(p, degrees, 2.5) == stats.beta.ppf(p, degrees, 2.5)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
def test_ranks_of_an_interval_are_those_of_scipy_stats(q):
    """The least count that reaches a share, at every size from one request to a thousand."""
    for tail in (0.0025, 0.025, 0.975):
        sizes = np.arange(1, 1001)
        found = [binomial_quantile(tail, int(n), q) for n in sizes]
        assert found == stats.binom.ppf(tail, sizes, q).tolist()


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 1.0, 2.0, 5.0, 2.0], [7.0] * 4])
def test_equal_values_share_their_mean_rank(values):
    """Ties count as in every test by ranks."""
    assert average_ranks(values).tolist() == stats.rankdata(values).tolist()


def test_no_start_waits_for_scipy_stats():
    """What a run, a worker and a test server load leaves the second out that scipy.stats takes."""
    started = "draftproof.measure.run, draftproof.measure.selfcheck.paced_server"
    loads = f"import sys, {started}; print('scipy.stats' in sys.modules)"
    call = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True)
    assert call.stdout == "False\n"
