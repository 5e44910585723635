"""What intervals resample by: prompts, or what the plan says groups them; and the periods they share."""

import hashlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.builders.records import build_item
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.core.errors import WorkloadError
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.guardrails import index_differences
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.measure.run.check import choose_items
from draftproof.plan.loading import LATER_KEYS, load_plan, thresholds_sha256
from draftproof.workload.clusters import name_clusters
from draftproof.workload.items import Message


def draw(layout, *, topic=0.0, period=0.0, seed=1):
    rng = np.random.default_rng(seed)
    orders, count = order_periods(layout, rng), layout.prompts
    drawn = {}
    for segment in layout.segments:
        groups = np.arange(count) // (layout.prompts_per_topic or 1)
        effect = rng.normal(0, topic, count)[groups]
        for load, _ in layout.loads:
            shift = rng.normal(0, period, layout.blocks)[np.arange(count) % layout.blocks]
            for arm in layout.arms:
                moved = effect + shift if arm == "candidate" else 0.0
                drawn[arm, segment, load] = Requests(
                    tpot_ms=20 * np.exp(moved + rng.normal(0, 0.02, count)),
                    ttft_ms=np.full(count, 100.0),
                    tokens=np.full(count, 40),
                    is_ok=np.ones(count, dtype=bool),
                )
    return build_run(layout, drawn, orders)


def width(run):
    effects = decide_run(run).evidence.effects
    one = next(one for one in effects if one.metric == "tpot_ns" and one.segment == "task=chat")
    assert one.ratio.low is not None
    assert one.ratio.high is not None
    return one.ratio.high / one.ratio.low - 1, one.prompts


def small(**changes):
    return Layout(segments=("chat",), loads=(("low", 1),), prompts=24, prompts_per_topic=4, **changes)


def test_prompts_of_one_topic_are_resampled_together():
    """Naming the dimension that groups prompts widens the interval, and the topics are what is counted."""
    alone, prompts = width(draw(small(), topic=0.1))
    grouped, topics = width(draw(small(comparison={"cluster_by": "topic"}), topic=0.1))
    assert (prompts, topics) == (24, 6)
    assert grouped > 1.5 * alone


def test_the_sample_floor_counts_groups():
    """Five topics are below a floor of six, however many prompts they hold."""
    layout = Layout(
        segments=("chat",), loads=(("low", 1),), prompts=20, prompts_per_topic=4,
        comparison={"cluster_by": "topic"},
    )  # fmt: skip
    effects = decide_run(draw(layout)).evidence.effects
    one = next(one for one in effects if one.metric == "tpot_ns" and one.segment == "task=chat")
    assert (one.ratio.value, one.ratio.needed) == (None, 1)


def cut_short(topics_failing, *, by=None):
    """Draw 48 prompts in 12 topics of which the candidate fails those in the named topics."""
    layout = Layout(
        segments=("chat",), loads=(("low", 1),), prompts=48, prompts_per_topic=4,
        comparison={} if by is None else {"cluster_by": by},
    )  # fmt: skip
    orders, ok = order_periods(layout, np.random.default_rng(1)), np.ones(48, dtype=bool)
    drawn = {}
    for arm in layout.arms:
        answered = ~np.isin(np.arange(48) // 4, topics_failing) if arm == "candidate" else ok
        drawn[arm, "chat", "low"] = Requests(
            tpot_ms=np.full(48, 20.0), ttft_ms=np.full(48, 100.0), tokens=np.full(48, 40), is_ok=answered
        )
    differences = index_differences(decide_run(build_run(layout, drawn, orders)).evidence.differences)
    return differences["failed_share", "candidate", "baseline", ALL_SEGMENTS, "low"].difference


def test_prompts_of_one_label_that_never_differ_keep_their_votes():
    """Without a failure no correlation shows: 48 prompts of 12 topics say as much as 48 without topics."""
    assert cut_short([], by="topic") == cut_short([])


def test_failures_that_come_by_label_widen_a_share():
    """A topic that fails as a whole is one event: the interval is that of fewer votes, the value the same."""
    alone, together = cut_short([3]), cut_short([3], by="topic")
    assert together.value == alone.value == pytest.approx(4 / 48)
    assert together.n == alone.n == 48
    assert together.high > alone.high + 0.05


def named(*items, by=None):
    """Name clusters of items given as (id, text, segments)."""
    made = [build_item(name, messages=(Message(role="user", content=text),), segments=labels)
            for name, text, labels in items]  # fmt: skip
    return name_clusters(made, by)


def test_a_prompt_without_a_label_stays_by_itself():
    """A dimension that an item lacks leaves it its own cluster."""
    items: tuple[tuple[str, str, dict[str, str]], ...]
    items = ("a", "one", {"topic": "x"}), ("b", "two", {"topic": "x"}), ("c", "three", {})
    assert named(*items) == {"a": "a", "b": "b", "c": "c"}
    assert named(*items, by="topic") == {"a": "topic=x", "b": "topic=x", "c": "c"}
    assert named(*items, by="customer") == {"a": "a", "b": "b", "c": "c"}


def test_items_with_the_same_messages_are_one_cluster():
    """A copy of a prompt under another id joins it, and so do all that its label joins."""
    items: tuple[tuple[str, str, dict[str, str]], ...]
    items = ("a", "one", {"topic": "x"}), ("b", "two", {"topic": "y"}), ("c", "two", {}), ("d", "one", {})
    assert named(*items) == {"a": "a", "b": "b", "c": "b", "d": "a"}
    assert named(*items, ("e", "two", {"topic": "x"}), by="topic") == dict.fromkeys("abcde", "c") | {
        "a": "c", "d": "c"
    }  # fmt: skip


@pytest.mark.parametrize("size", [8, 12])
def test_copies_of_a_prompt_count_once(size):
    """Twelve prompts asked as four items each are twelve prompts: in effects, shares and percentiles."""
    run = draw(Layout(segments=("chat",), loads=(("low", 1),), prompts=48, copies=4, block_size=size))
    evidence = decide_run(run).evidence
    assert {one.prompts for one in evidence.effects} == {12}
    assert {one.difference.n for one in evidence.differences} == {12}
    results = compute_results(run)
    assert results.counts["prompts"] == 12
    assert {one.prompts for one in results.arm_cells} == {12}


def test_copies_of_a_prompt_widen_the_interval():
    """What prompts differ by is seen twelve times and not 48 times."""
    layout = Layout(segments=("chat",), loads=(("low", 1),), prompts=48, copies=4, prompts_per_topic=4)
    apart = msgspec.structs.replace(
        draw(layout, topic=0.1), items=tuple(draw(replace(layout, copies=1), topic=0.1).items)
    )
    assert width(draw(layout, topic=0.1))[0] > 1.5 * width(apart)[0]


def test_periods_that_move_all_requests_widen_the_interval():
    """Three blocks of eight prompts whose periods differ by 10 % make a claim that prompts alone do not."""
    still, _ = width(draw(small(), topic=0.0))
    shaken, _ = width(draw(small(), period=0.1))
    assert shaken > 5 * still


def test_a_dimension_that_no_item_has_is_refused():
    """A misspelt dimension would silently leave every prompt by itself, so it is named in an error."""
    plan, _ = load_plan("builtin:demo")
    wrong = plan.model_copy(update={"comparison": plan.comparison.model_copy(update={"cluster_by": "topik"})})
    with pytest.raises(WorkloadError, match="no item has the segment dimension 'topik'"):
        choose_items(wrong)


def test_the_key_leaves_earlier_hashes_as_they_were():
    """Only a plan that names a dimension has another hash of what decides."""
    plan, _ = load_plan("builtin:demo")
    named = plan.model_copy(update={"comparison": plan.comparison.model_copy(update={"cluster_by": "task"})})
    deciding = plan.model_dump(mode="json", include={"thresholds", "comparison", "objectives"})
    for table, key in LATER_KEYS:
        del deciding[table][key]
    before = hashlib.sha256(msgspec.json.encode(deciding, order="sorted")).hexdigest()
    assert thresholds_sha256(plan) == before != thresholds_sha256(named)
