"""When a warm-up is over: sequences of groups whose end is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import MS_NS, build_failure, build_record

from draftproof.core.records import WarmupGroup
from draftproof.judge.metrics.phases import WarmupRule, last_change, summarise_group

RULE = WarmupRule(requests=2, tolerance=0.1, max_s=60.0, most_groups=6)


def group(ttft_ms: float | None, tpot_ms: float | None = 20.0, *, requests: int = 2) -> WarmupGroup:
    return WarmupGroup(
        requests=requests,
        answered=requests,
        ttft_ns=None if ttft_ms is None else ttft_ms * MS_NS,
        tpot_ns=None if tpot_ms is None else tpot_ms * MS_NS,
    )


def walk(*ttfts_ms: float | None, rule: WarmupRule = RULE, each_s: float = 1.0) -> tuple[int, str]:
    """Return how many groups were asked of a service with these first tokens, and how it ended."""
    groups: list[WarmupGroup] = []
    while (step := rule.next_step(groups, len(groups) * each_s)) == "more":
        groups.append(group(ttfts_ms[len(groups)]))
    return len(groups), step


@pytest.mark.parametrize(
    ("ttfts_ms", "expected"),
    [
        ((100, 100), (2, "stable")),
        ((100, 109.9), (2, "stable")),
        ((100, 90.1), (2, "stable")),
        ((100, 110.1, 110.1), (3, "stable")),
        ((800, 400, 200, 190), (4, "stable")),  # halving until it is warm
        ((800, 400, 200, 100, 50, 25), (6, "given_up")),
        ((100, 200, 100, 200, 100, 200), (6, "given_up")),  # swings for ever
        ((100, None, 100, 100), (4, "stable")),  # a group of failures agrees with nothing
        ((None, None), (2, "stable")),  # the time per token alone is told, and agrees
    ],
)
def test_a_warm_up_ends_where_two_successive_groups_agree(ttfts_ms, expected):
    """At the first agreement, else at the largest number of groups."""
    assert walk(*ttfts_ms) == expected


def test_no_group_begins_after_the_time_is_up():
    """Three groups of 25 s begin within a minute, a fourth does not."""
    assert walk(100, 200, 100, 200, each_s=25.0) == (3, "given_up")


def test_one_group_that_takes_all_the_time_tells_nothing():
    """It is not called stable."""
    assert walk(100, 100, each_s=61.0) == (1, "given_up")


def test_the_first_group_is_asked_however_little_time_there_is():
    """A warm-up that is asked for is never none at all."""
    assert RULE.next_step([], 61.0) == "more"


def test_the_time_per_token_must_agree_as_well():
    """A steady first token does not hide a cadence that still falls."""
    assert RULE.next_step([group(100, 40.0), group(100, 20.0)], 1.0) == "more"
    assert last_change([group(100, 40.0), group(100, 20.0)]) == pytest.approx(0.5)


def test_a_difference_that_the_client_cannot_tell_is_none():
    """A first token of 3 ms that becomes 4.5 ms, a cadence of 0.2 ms that becomes 0.29 ms."""
    assert last_change([group(3.0, 0.2), group(4.5, 0.29)]) == 0.0


def test_groups_that_tell_different_quantities_cannot_be_compared():
    """None, which is never within a tolerance."""
    assert last_change([group(100, None), group(100, 20)]) is None
    assert last_change([group(None, None), group(None, None)]) is None
    assert last_change([group(100)]) is None
    assert RULE.next_step([group(None, None)] * 2, 1.0) == "more"


@given(st.lists(st.floats(1, 10_000), min_size=6, max_size=6), st.floats(0.01, 1.0))
def test_stable_always_means_that_the_last_two_agree(ttfts_ms, tolerance):
    """Whatever the sequence, and it never takes more than the largest number of groups."""
    rule = WarmupRule(requests=1, tolerance=tolerance, most_groups=6)
    groups, step = walk(*ttfts_ms, rule=rule)
    before_ms, now_ms = ttfts_ms[groups - 2 : groups]
    agrees = abs(now_ms - before_ms) <= max(tolerance * before_ms, 2.0) * (1 + 1e-9)
    assert agrees == (step == "stable") or abs(abs(now_ms - before_ms) - tolerance * before_ms) < 1e-6
    assert 2 <= groups <= 6


@pytest.mark.parametrize(
    ("requests", "concurrency", "size"), [(2, 1, 2), (2, 8, 8), (16, 8, 16), (2, None, 2)]
)
def test_a_group_is_as_large_as_the_load_or_as_asked_for(requests, concurrency, size):
    """An open loop has no number of its own."""
    assert WarmupRule(requests=requests).group_size(concurrency) == size


def test_a_group_is_summed_up_by_its_medians_over_answers():
    """Failures are counted and give no time; the outlier does not decide."""
    records = [
        build_record(ttft_ns=ttft * MS_NS, gap_ns=gap * MS_NS) for ttft, gap in ((10, 2), (20, 4), (900, 90))
    ]
    told = summarise_group([*records, build_failure()])
    assert told == WarmupGroup(requests=4, answered=3, ttft_ns=20 * MS_NS, tpot_ns=4 * MS_NS)
    assert summarise_group([build_failure()]) == WarmupGroup(requests=1, answered=0)
