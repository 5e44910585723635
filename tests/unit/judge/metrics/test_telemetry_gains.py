"""Counters become gains over periods, and what cannot be told stays unknown."""

import pytest

from draftproof.core.records import TelemetrySample
from draftproof.judge.metrics.telemetry import collect_periods, find_resets, read_gains
from draftproof.services.engines.facts import Series

SERIES = Series(
    spec_steps=('steps_total{position="0"}',),
    draft_tokens=("new_drafts_total", "old_drafts_total"),
    accepted_by_position=("accepted_total", "position"),
    generation_tokens=("tokens_total",),
    engine_steps=("steps_seconds_count",),
    verify_seconds=('pass_seconds{kind="verify"}', 'pass_seconds{kind="sample"}'),
)


def sample(at_s, mark, *, replica=0, period="low/3", **values):
    return TelemetrySample(
        arm="candidate", at_ns=round(at_s * 1e9), values=values.pop("values", values),
        replica=replica, period=period, mark=mark,
    )  # fmt: skip


def gains(*samples, replicas=(0,), series=SERIES):
    (period,) = collect_periods(samples).values()
    return read_gains(period, series, replicas)


def test_a_gain_is_the_end_less_the_start():
    """What happened before the first sample of a period is not counted in it."""
    found = gains(sample(0, "start", tokens_total=100), sample(9, "end", tokens_total=340))
    assert found.gains == {"generation_tokens": 240.0}
    assert found.unused is None


def test_the_gains_of_replicas_are_added_up():
    """Two replicas that made 10 and 25 tokens made 35 together."""
    found = gains(
        *(sample(0, "start", replica=one, tokens_total=5) for one in (0, 1)),
        sample(9, "end", tokens_total=15),
        sample(9, "end", replica=1, tokens_total=30),
        replicas=(0, 1),
    )
    assert found.gains["generation_tokens"] == 35.0


def test_a_replica_without_samples_makes_the_period_unusable():
    """Half of the replicas is not the service: nothing is summed over those that happened to answer."""
    found = gains(sample(0, "start", tokens_total=5), sample(9, "end", tokens_total=15), replicas=(0, 1))
    assert found.gains == {}
    assert found.unused == "its service's metrics were not read (replica 1)"


@pytest.mark.parametrize("marks", [("start", "during"), ("during", "end"), ("end",), ("start",)])
def test_a_period_without_both_ends_is_not_used(marks):
    """A gain needs the sample before the first request and the one after the last."""
    found = gains(*(sample(place, mark, tokens_total=place) for place, mark in enumerate(marks)))
    assert (found.gains, found.unused) == ({}, "its service's metrics were not read at both ends")


def test_a_resumed_period_adds_its_parts_and_not_the_pause():
    """Tokens made between two passes over a period belong to nobody, and a new process may begin at 0."""
    found = gains(
        sample(0, "start", tokens_total=100),
        sample(5, "end", tokens_total=110),
        sample(90, "start", tokens_total=4),
        sample(99, "end", tokens_total=24),
    )
    assert (found.gains["generation_tokens"], found.resets) == (30.0, ())


def test_a_counter_that_fell_is_named_and_the_period_is_not_used():
    """A restart inside a period shows as a counter that falls between two samples, even if it ends higher."""
    found = gains(
        sample(0, "start", tokens_total=100, running=3),
        sample(4, "during", tokens_total=20, running=0),
        sample(9, "end", tokens_total=500, running=1),
    )
    assert (found.resets, found.gains) == (("tokens_total",), {})
    assert found.unused == "tokens_total fell during it"


def test_a_gauge_may_fall():
    """Only counters tell of a restart."""
    (period,) = collect_periods(
        [sample(0, "start", running=3, tokens_total=1), sample(9, "end", running=0, tokens_total=1)]
    ).values()
    assert list(find_resets(period.engine[0][0], SERIES)) == []


def test_a_counter_that_vanished_or_a_new_start_time_is_a_restart():
    """A restarted service may not show a counter yet, or may have passed its old value already."""
    vanished = gains(sample(0, "start", tokens_total=9), sample(9, "end", steps_seconds_count=1))
    younger = gains(
        sample(0, "start", tokens_total=9, process_start_time_seconds=1000),
        sample(9, "end", tokens_total=90, process_start_time_seconds=1060),
    )
    assert vanished.resets == ("tokens_total",)
    assert younger.resets == ("process_start_time_seconds",)


def test_an_unknown_engine_counts_in_what_ends_in_total():
    """Without named series a fall of requests_total is a restart, and no quantity is read."""
    found = gains(
        sample(0, "start", requests_total=7, queue=9), sample(9, "end", requests_total=1, queue=0),
        series=Series(),
    )  # fmt: skip
    assert (found.resets, found.gains) == (("requests_total",), {})


def test_a_counter_that_appears_began_at_zero():
    """An engine that registers a counter with its first draft has gained all that it shows."""
    found = gains(sample(0, "start", tokens_total=1), sample(9, "end", tokens_total=2, old_drafts_total=12))
    assert found.gains == {"generation_tokens": 1.0, "draft_tokens": 12.0}


def test_of_several_names_the_first_present_counts():
    """A release that has the new name is read by it, and the old one beside it is not added."""
    found = gains(
        sample(0, "start", new_drafts_total=1, old_drafts_total=50),
        sample(9, "end", new_drafts_total=5, old_drafts_total=99),
    )
    assert found.gains["draft_tokens"] == 4.0


def test_labels_choose_and_further_labels_are_summed():
    """A name with a label takes that label's series, over all others of its labels."""
    end = {
        'steps_total{engine="0",position="0"}': 4.0,
        'steps_total{engine="1",position="0"}': 3.0,
        'steps_total{engine="0",position="1"}': 2.0,
    }
    found = gains(sample(0, "start", values=dict.fromkeys(end, 1.0)), sample(9, "end", values=end))
    assert found.gains["spec_steps"] == 5.0


def test_parts_of_a_time_are_summed():
    """Verification spread over two categories is their sum, and absent ones are not made up."""
    end = {
        'pass_seconds{kind="verify"}': 3.0,
        'pass_seconds{kind="sample"}': 0.5,
        'pass_seconds{kind="x"}': 9,
    }
    found = gains(sample(0, "start", values=dict.fromkeys(end, 0.25)), sample(9, "end", values=end))
    assert found.gains == {"verify_seconds": 3.0}


def test_positions_are_counted_one_by_one():
    """Accepted drafts by position keep their places; drafted by position is absent where nobody counts it."""
    start = {'accepted_total{position="0"}': 10.0}
    end = {'accepted_total{position="0"}': 30.0, 'accepted_total{position="1"}': 7.0}
    found = gains(sample(0, "start", values=start), sample(9, "end", values=end))
    assert found.positions == {"accepted_by_position": {0: 20.0, 1: 7.0}}


def test_samples_of_no_period_are_left_out():
    """A sample of an older release, which names no period, says nothing of any."""
    assert collect_periods([sample(0, None, period=None), sample(1, "start", period="odd")]) == {}
