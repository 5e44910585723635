"""The paired ratio of quantiles: its value, the test it inverts, its floor, and failed requests."""

import math

import numpy as np
import pytest
from scipy import stats

from draftproof.judge.stats.bootstrap import RatioEstimate
from draftproof.judge.stats.quantile_ratio import paired_quantile_ratio, tail_floor
from draftproof.judge.stats.quantiles import quantile_interval


def draw_pairs(seed, prompts=200, ratio=0.8, spread=0.1):
    rng = np.random.default_rng(seed)
    prompt = rng.normal(0, 0.5, prompts)
    above = ratio * np.exp(prompt + rng.normal(0, spread, prompts))
    return above, np.exp(prompt + rng.normal(0, spread, prompts)), np.arange(prompts)


def limits(estimate: RatioEstimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def test_the_value_is_the_ratio_of_the_nearest_ranks():
    """Each arm's quantile is one of its observed values."""
    above, below, prompts = draw_pairs(1)
    wanted = np.quantile(above, 0.95, method="inverted_cdf") / np.quantile(below, 0.95, method="inverted_cdf")
    assert paired_quantile_ratio(above, below, prompts, q=0.95).value == pytest.approx(wanted)


def test_pairs_that_agree_leave_little_doubt():
    """If one arm is the other times 0.8 the interval shrinks with the number of pairs, not with its root."""
    widths = {}
    for prompts in (400, 4000):
        _, below, labels = draw_pairs(2, prompts)
        estimate = paired_quantile_ratio(0.8 * below, below, labels, q=0.95)
        low, high = limits(estimate)
        assert low <= 0.8 <= high
        widths[prompts] = math.log(high / low)
    assert widths[4000] < 0.2 * widths[400]


def test_the_limits_are_where_the_sign_test_rejects():
    """At the upper limit the exceedances of the top differ just as much as the mid-p test allows at 2.5 %."""
    above, below, prompts = draw_pairs(3, prompts=100)
    _, high = limits(paired_quantile_ratio(above, below, prompts, q=0.9))

    def mid_p(ratio):
        edge = np.sort(np.concatenate([above, ratio * below]))[-20]
        mine, theirs = above >= edge, ratio * below >= edge
        fewer, more = int((mine & ~theirs).sum()), int((theirs & ~mine).sum())
        return stats.binom.cdf(fewer, fewer + more, 0.5) - stats.binom.pmf(fewer, fewer + more, 0.5) / 2

    # The weights of the arms differ from 1 by chance, so the plain test stands at the limit only nearly.
    assert mid_p(high * 1.03) < 0.025 < mid_p(high * 0.97) + 0.02


@pytest.mark.parametrize("seed", range(5))
def test_against_a_fixed_value_it_is_the_interval_of_the_quantile(seed):
    """If the other arm hardly varies, only the arm's own quantile is in doubt: its order statistics tell."""
    rng = np.random.default_rng(seed)
    above, below = np.exp(rng.normal(0, 1, 400)), np.exp(rng.normal(0, 1e-3, 400))
    low, high = limits(paired_quantile_ratio(above, below, np.arange(400), q=0.9))
    alone = quantile_interval(above, 0.9)
    assert alone.low is not None
    assert alone.high is not None
    width = math.log(high / low) / math.log(alone.high / alone.low)
    assert width == pytest.approx(1.0, abs=0.25)


def test_the_order_of_rows_is_of_no_account():
    """Ties and rows in any order give the same numbers."""
    above, below, prompts = draw_pairs(4)
    above, below = np.round(above, 1) + 0.1, np.round(below, 1) + 0.1
    order = np.random.default_rng(0).permutation(len(above))
    first = paired_quantile_ratio(above, below, prompts, q=0.95)
    assert paired_quantile_ratio(above[order], below[order], prompts[order], q=0.95) == first


def test_the_arms_mirror_each_other():
    """Swapping them periods the interval into its reciprocal."""
    above, below, prompts = draw_pairs(5)
    forward = paired_quantile_ratio(above, below, prompts, q=0.95)
    back = paired_quantile_ratio(below, above, prompts, q=0.95)
    low, high = limits(forward)
    assert forward.value is not None
    assert (back.low, back.value, back.high) == pytest.approx(
        (1 / high, 1 / forward.value, 1 / low), rel=1e-9
    )


def test_repeats_of_a_prompt_are_no_new_prompts():
    """Ten identical repeats of each prompt give the interval of the prompts themselves, not a tenth of it."""
    above, below, prompts = draw_pairs(6)
    once = paired_quantile_ratio(above, below, prompts, q=0.95)
    tenfold = paired_quantile_ratio(
        np.repeat(above, 10), np.repeat(below, 10), np.repeat(prompts, 10), q=0.95
    )
    assert tenfold.n_clusters == 200
    (once_low, once_high), (low, high) = limits(once), limits(tenfold)
    assert math.log(high / low) > 0.8 * math.log(once_high / once_low)


@pytest.mark.parametrize(("q", "floor"), [(0.9, 25), (0.95, 50), (0.99, 250)])
def test_the_interval_begins_at_its_floor(q, floor):
    """Five exceedances of one arm have a mid-p of 1/64; with four, 1/32, nothing can be rejected at 2.5 %."""
    assert tail_floor(q) == floor
    rng = np.random.default_rng(1)
    above, below = np.exp(rng.normal(0, 1, floor)), np.exp(rng.normal(0, 1, floor))
    assert paired_quantile_ratio(above, below, np.arange(floor), q=q, level=0.95).n_pairs == floor
    short = floor - math.ceil(0.5 / (1 - q))
    refused = paired_quantile_ratio(above[:short], below[:short], np.arange(short), q=q)
    assert (refused.value, refused.low) == (None, None)
    assert "independent prompts in the tail, where this quantile needs 5" in (refused.reason or "")
    assert refused.needed


def test_too_few_prompts_are_counted():
    """Below the floor of prompts the reason says how many there are, and `needed` how many more it takes."""
    above, below, prompts = draw_pairs(7)
    refused = paired_quantile_ratio(above, below, prompts % 4, q=0.95, minimum_clusters=6)
    assert (refused.value, refused.reason, refused.needed) == (None, "4 of at least 6 prompts", 2)


def test_failed_requests_lie_in_the_tail():
    """An arm that fails its slowest requests gets no better tail for it: its interval moves up."""
    above, below, prompts = draw_pairs(8)
    plain = paired_quantile_ratio(above, below, prompts, q=0.9)
    failing = np.where(np.arange(200) % 33 == 0, np.inf, above)
    failed = paired_quantile_ratio(failing, below, prompts, q=0.9)
    assert plain.value is not None
    assert failed.value is not None
    assert limits(failed)[0] >= limits(plain)[0]
    assert failed.value >= plain.value


def test_a_quantile_on_a_failed_request_has_no_ratio():
    """With 6 % failures p95 is infinite, and more pairs would not help."""
    above, below, prompts = draw_pairs(9)
    above[:12] = np.inf
    refused = paired_quantile_ratio(above, below, prompts, q=0.95)
    assert (refused.value, refused.needed) == (None, None)
    assert refused.reason == "at least 5 % of the requests failed, so the quantile is infinite"


def test_failures_just_below_the_quantile_leave_the_upper_end_open():
    """With 4.5 % failures p95 is finite, but how far up it may lie is not known."""
    above, below, prompts = draw_pairs(10)
    above[:9] = np.inf
    estimate = paired_quantile_ratio(above, below, prompts, q=0.95)
    assert estimate.value is not None
    assert (estimate.high, estimate.reason) == (None, "failed requests leave the interval open above")


@pytest.mark.parametrize(
    ("above", "below", "q", "message"),
    [
        ([1.0, 2.0], [1.0], 0.9, "one length"),
        ([1.0, 0.0], [1.0, 1.0], 0.9, "not a positive number"),
        ([1.0, math.nan], [1.0, 1.0], 0.9, "not a positive number"),
        ([1.0, 2.0], [1.0, 1.0], 95.0, "between 0 and 1"),
    ],
)
def test_impossible_arguments_are_refused(above, below, q, message):
    """Shapes that differ, values that are no times and percent numbers are mistakes of the caller."""
    with pytest.raises(ValueError, match=message):
        paired_quantile_ratio(above, below, np.arange(len(above)), q=q)
    with pytest.raises(ValueError, match="between 0 and 1"):
        tail_floor(1.5)


def stall(seed, blocks=6, prompts=240, factor=1.6):
    """Return pairs of equal arms but for one block, in which the first arm takes `factor` times as long."""
    above, below, clusters = draw_pairs(seed, prompts, ratio=1.0, spread=0.03)
    labels = np.arange(prompts) % blocks
    return np.where(labels == 0, factor * above, above), below, clusters, labels


def test_one_stalled_block_shows_no_longer_tail():
    """Of six blocks one is slow: prompts alone show a p95 beyond 1.25 times, blocks that they cannot tell."""
    above, below, clusters, labels = stall(1)
    plain, _ = limits(paired_quantile_ratio(above, below, clusters, q=0.95))
    low, _ = limits(paired_quantile_ratio(above, below, clusters, labels, q=0.95))
    assert plain > 1.1
    assert low < 1.0


def test_two_stalled_blocks_of_eight_show_no_longer_tail():
    """Either fills the tail alone, so no block left out moves p95; without both nothing is left."""
    rng = np.random.default_rng(4)
    clusters, blocks = np.arange(240), np.arange(240) % 8
    above, below = np.exp(rng.normal(0.0, 0.1, (2, 240)))
    above = np.where(blocks < 2, 1.8 * above, above)
    plain, _ = limits(paired_quantile_ratio(above, below, clusters, q=0.95))
    low, _ = limits(paired_quantile_ratio(above, below, clusters, blocks, q=0.95))
    assert plain > 1.25
    assert low < 1.05


def test_a_tail_that_every_block_has_is_shown():
    """An arm 1.6 times as slow in every block has a tail 1.6 times as long, blocks or not."""
    above, below, clusters, labels = stall(2, factor=1.0)
    low, high = limits(paired_quantile_ratio(1.6 * above, below, clusters, labels, q=0.95))
    assert 1.3 < low < 1.6 < high


def test_two_blocks_leave_the_interval_as_it_is():
    """Below three blocks, or three groups of them, nothing is known of what blocks share."""
    above, below, clusters, labels = stall(3, blocks=2)
    plain = paired_quantile_ratio(above, below, clusters, q=0.95)
    assert paired_quantile_ratio(above, below, clusters, labels, q=0.95) == plain


def test_a_tail_that_failures_reach_without_some_blocks_is_not_told():
    """Six failures of 120 in one half leave p95 finite; without the other blocks they would not: no ratio."""
    above, below, clusters = draw_pairs(4, 120)
    above[:6] = math.inf
    found = paired_quantile_ratio(above, below, clusters, np.arange(120) // 20, q=0.95)
    assert found.low is None
    assert "without the requests of some blocks" in (found.reason or "")
