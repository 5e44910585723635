"""Error spent over interim analyses: published boundaries, closed forms, and the error of simulated walks."""

import math

import numpy as np
import pytest
import scipy.stats

from draftproof.judge.stats.spending import boundaries, repeated_level, spend

# gsDesign 3.6: gsDesign(k, test.type = 1, alpha = 0.025, sfu = sfLDOF or sfLDPocock), upper bounds.
PUBLISHED = {
    ("obrien_fleming", (0.25, 0.5, 0.75, 1.0)): (4.332634, 2.963132, 2.359044, 2.014090),
    ("obrien_fleming", (0.2, 0.4, 0.6, 0.8, 1.0)): (4.876885, 3.357012, 2.680280, 2.289817, 2.031032),
    ("pocock", (0.5, 0.75, 1.0)): (2.156999, 2.312423, 2.326932),
}


@pytest.mark.parametrize(("spending", "times"), PUBLISHED)
def test_boundaries_are_the_published_ones(spending, times):
    """To five digits, those of the established package."""
    assert boundaries(0.025, times, spending) == pytest.approx(PUBLISHED[spending, times], abs=2e-5)


@pytest.mark.parametrize("alpha", [0.05, 0.005, 1e-4])
def test_one_analysis_of_all_is_an_ordinary_interval(alpha):
    """With no interim analysis nothing changes; the first of several has the closed form of its own error."""
    assert repeated_level(alpha, (1.0,)) == pytest.approx(1 - alpha, abs=1e-9)
    z = scipy.stats.norm.isf(alpha / 4)
    assert spend(alpha / 2, 0.5) == pytest.approx(2 * scipy.stats.norm.sf(z / math.sqrt(0.5)))
    assert repeated_level(alpha, (0.5,)) == pytest.approx(1 - 2 * spend(alpha / 2, 0.5), abs=1e-9)


@pytest.mark.parametrize("spending", ["obrien_fleming", "pocock"])
def test_a_walk_without_drift_crosses_as_often_as_the_error_says(spending):
    """Of 400,000 simulated processes the error's share crosses anywhere, within four standard errors."""
    times, alpha, walks = (0.4, 0.7, 1.0), 0.025, 400_000
    rng = np.random.default_rng(7)
    steps = np.diff((0.0, *times))
    scores = np.cumsum(rng.standard_normal((walks, len(times))) * np.sqrt(steps), axis=1) / np.sqrt(times)
    crossed = (scores >= np.array(boundaries(alpha, times, spending))).any(axis=1).mean()
    assert crossed == pytest.approx(alpha, abs=4 * math.sqrt(alpha / walks))


def test_what_is_no_schedule_of_analyses_is_refused():
    """Times that do not rise, an error of a half, a time of nothing."""
    for alpha, times in ((0.025, (0.5, 0.5)), (0.5, (1.0,)), (0.025, (0.0, 1.0))):
        with pytest.raises(ValueError, match=r"rise|error between"):
            boundaries(alpha, times)
