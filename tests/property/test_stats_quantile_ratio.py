"""The ratio of quantiles over random worlds: invariances, and how often its interval holds the truth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from draftproof.judge.stats.quantile_ratio import paired_quantile_ratio

WORLDS = 300


def draw(rng, prompts, *, stalls=0.0, heavy=False):
    prompt = rng.normal(0, 0.3, prompts)
    noise = rng.standard_t(3, (2, prompts)) * 0.1 if heavy else rng.normal(0, 0.1, (2, prompts))
    stalled = (rng.random(prompts) < stalls) * rng.exponential(1.2, prompts)
    return np.exp(prompt + rng.normal(0, 0.2, prompts) + noise[0] + stalled), np.exp(prompt + noise[1])


@given(
    seed=st.integers(0, 2**32 - 1),
    prompts=st.integers(60, 120),
    factor=st.floats(0.01, 100),
    level=st.floats(0.8, 0.95),
)
def test_a_change_of_unit_changes_the_ratio_alone(seed, prompts, factor, level):
    """Times in seconds or nanoseconds: value and limits scale with the numerator, the value between them."""
    above, below = draw(np.random.default_rng(seed), prompts)
    plain = paired_quantile_ratio(above, below, np.arange(prompts), q=0.9, level=level)
    scaled = paired_quantile_ratio(factor * above, below, np.arange(prompts), q=0.9, level=level)
    if plain.value is None:
        assert scaled.value is None
        return
    assert plain.low is not None
    assert plain.high is not None
    assert plain.low <= plain.value <= plain.high
    assert [scaled.low, scaled.value, scaled.high] == pytest.approx(
        [factor * plain.low, factor * plain.value, factor * plain.high], rel=1e-6
    )


@given(seed=st.integers(0, 2**32 - 1), slow=st.integers(1, 3))
def test_failing_a_request_never_makes_a_tail_look_better(seed, slow):
    """Replacing the slowest times of an arm by failures moves neither value nor lower limit down.

    The upper limit may come down a little: how dense each arm is around the quantile is estimated anew.
    """
    above, below = draw(np.random.default_rng(seed), 100)
    failing = above.copy()
    failing[np.argsort(above)[-slow:]] = np.inf
    before = paired_quantile_ratio(above, below, np.arange(100), q=0.9)
    after = paired_quantile_ratio(failing, below, np.arange(100), q=0.9)
    if before.value is not None and after.value is not None:
        assert before.low is not None
        assert before.high is not None
        assert after.low is not None
        assert after.value >= before.value
        assert after.low >= before.low - 1e-9
        assert after.high is None or after.high >= 0.97 * before.high


@pytest.mark.parametrize(
    ("q", "prompts", "world"),
    [
        (0.9, 80, {}),
        (0.95, 120, {"heavy": True}),
        (0.95, 200, {"stalls": 0.04}),
        pytest.param(0.99, 600, {"stalls": 0.04}, marks=pytest.mark.slow),
    ],
)
def test_the_interval_holds_the_truth(q, prompts, world):
    """At 95 % over smooth, heavy-tailed and stalling worlds: no fewer hits than 95 % leaves to chance."""
    rng = np.random.default_rng(17)
    truth = np.divide(*(np.quantile(arm, q) for arm in draw(np.random.default_rng(0), 400_000, **world)))
    hits = 0
    for _ in range(WORLDS):
        above, below = draw(rng, prompts, **world)
        estimate = paired_quantile_ratio(above, below, np.arange(prompts), q=q)
        hits += estimate.low is None or (estimate.high is not None and estimate.low <= truth <= estimate.high)
    assert hits >= stats.binom.ppf(0.001, WORLDS, 0.95)
