"""The board of a run whose records are known."""

import threading
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.builders.records import (
    MS_NS,
    build_block_record,
    build_failure,
    build_item,
    build_record,
)

from draftproof.judge.observe.observed import Spans
from draftproof.measure.load.period import Period
from draftproof.measure.run.progress_model import Median, ProgressModel, WatchedSink
from draftproof.plan.loading import parse_plan
from draftproof.plan.schema import Objectives
from draftproof.workload.items import FollowUp

PLAN = """\
name = "p"
[[load]]
name = "low"
concurrency = 1
[arms.baseline]
[arms.candidate]
settings = {{ "speculation.method" = "ngram" }}
[comparison]
metric = "{metric}"
"""
ITEMS = {"a": build_item("a"), "b": build_item("b", follow_ups=(FollowUp(content="And then?"),))}


def period(arm="baseline", block=0, **fields):
    known: dict[str, Any] = {"load": "low", "concurrency": 1, "repeat": 0, "order": 0, "item_ids": ("a", "b")}
    return Period(arm=arm, block=block, **(known | fields))


def board(*periods, **options):
    now = [0]
    told = ProgressModel(periods or (period(), period("candidate")), ITEMS, clock=lambda: now[0], **options)
    return told, now


def arm_of(told, arm="baseline"):
    return next(one for one in told.view().arms if one.arm == arm)


def ended(told, **fields):
    return told.end_period(build_block_record(**({"load": "low", "ended_ns": 1_000 * MS_NS} | fields)))


def test_a_run_begins_with_everything_planned_and_nothing_known():
    """A conversation counts each of its turns; what is not known is None."""
    told, _ = board()
    one = arm_of(told)
    assert (one.state, one.done, one.planned) == ("waiting", 0, 3)
    assert (one.on_time_share, one.tpot_ns, one.ttft_ns) == (None,) * 3
    view = told.view()
    assert (view.period, view.periods, view.left_s, view.last, view.load) == (0, 2, None, None, None)


def test_counted_requests_are_counted_and_no_others():
    """Warm-up and fill leave no trace."""
    told, now = board(objectives=Objectives(ttft_ms=60))
    told.begin_period(period())
    told.see(build_record(ttft_ns=50 * MS_NS, gap_ns=20 * MS_NS))
    told.see(build_record(ttft_ns=70 * MS_NS, gap_ns=20 * MS_NS))
    told.see(build_record(phase="fill"))
    told.see(build_record(phase="warmup"))
    now[0] = 2 * 10**9
    one = arm_of(told)
    assert (one.state, one.done, one.on_time_share, one.failures) == ("measuring", 2, 0.5, {})
    assert one.tpot_ns == pytest.approx(20 * MS_NS, rel=0.01)
    assert one.ttft_ns == pytest.approx(50 * MS_NS, rel=0.01)
    assert (told.view().period, told.view().load) == (1, "low")


def test_failures_are_late_and_counted_by_outcome():
    """They give no time per token."""
    told, _ = board(objectives=Objectives(ttft_ms=60))
    told.begin_period(period())
    for outcome in ("timeout", "cut", "timeout"):
        told.see(build_failure(outcome))
    one = arm_of(told)
    assert (one.failures, one.on_time_share, one.tpot_ns) == ({"timeout": 2, "cut": 1}, 0.0, None)


def test_an_ended_period_is_told_and_prices_what_is_left():
    """Three requests in a second leave a second for the other arm, which has not been on."""
    told, _ = board(client_lag_ms=50.0)
    told.begin_period(period())
    for _ in range(3):
        told.see(build_record(gap_ns=20 * MS_NS))
    view = ended(told)
    assert (view.number, view.periods, view.requests, view.failures, view.completed) == (1, 2, 3, {}, True)
    assert view.left_s == pytest.approx(1.0)
    assert (view.client_cpu_share, view.lag_max_ns, view.client_faults) == (0.05, 1 * MS_NS, ())
    assert [one.state for one in told.view().arms] == ["ended", "waiting"]


def test_a_period_that_is_measured_twice_is_one_period():
    """Ended of the plan's, and how many of them twice: the log, the view and the last word count alike."""
    told, _ = board()
    told.add_periods([msgspec.structs.replace(period(), attempt=1)])
    told.begin_period(period())
    view = ended(told)
    assert (view.number, view.periods, view.twice) == (1, 2, 1)
    assert (told.view().period, told.view().periods, told.view().twice) == (1, 2, 1)
    told.begin_period(msgspec.structs.replace(period(), attempt=1))
    assert told.view().period == ended(told).number == 1
    assert told.count_periods() == (1, 2, 1)
    assert str(told.count_periods()) == "1 of 2 periods (1 measured twice)"


def test_a_client_that_was_late_is_said_to_be():
    """Beyond the plan's limit, and only then."""
    told, _ = board(client_lag_ms=50.0)
    told.begin_period(period())
    assert ended(told, event_loop_lag_max_ns=51 * MS_NS).client_faults == ("the client itself was late",)
    told.begin_period(period("candidate"))
    assert ended(told, event_loop_lag_max_ns=None).client_faults == ()


@pytest.mark.parametrize(
    ("fields", "metric", "is_late"),
    [
        ({"lag_p99_ns": 2 * MS_NS, "unstamped": 3}, "tpot_ns", True),
        ({"lag_p99_ns": MS_NS // 5, "unstamped": 3}, "tpot_ns", False),
        ({"lag_p99_ns": 2 * MS_NS, "unstamped": 0}, "tpot_ns", False),
        ({"send_lag_p99_ns": 2 * MS_NS, "unstamped": 0}, "e2e_from_schedule_ns", True),
    ],
    ids=["read late", "a little late", "stamped by the kernel", "sent late"],
)
def test_a_client_is_held_against_what_is_measured_as_in_the_verdict(fields, metric, is_late):
    """Two of 40 ms are more than a fifth of the smallest gain of 5 %; another period's do not matter."""
    plan = parse_plan(PLAN.format(metric=metric))
    told, _ = board(period("candidate"), period(), client_lag_ms=50.0, make_spans=partial(Spans, plan))
    told.begin_period(period("candidate"))
    told.see(build_record(arm="candidate", gap_ns=10_000 * MS_NS))
    assert ended(told, **fields).client_faults == ()
    told.begin_period(period())
    told.see(build_record(ttft_ns=MS_NS, gap_ns=20 * MS_NS))
    expected = ("the client's delay is a large part of times so short",) if is_late else ()
    assert ended(told, **fields).client_faults == expected


def test_a_resumed_run_begins_where_it_was():
    """Finished periods are done; of a broken one what was recorded is."""
    told, _ = board(finished={(0, "baseline", 0)}, recorded={(0, "baseline", 0): 3, (0, "candidate", 0): 1})
    assert [(one.done, one.planned) for one in told.view().arms] == [(3, 3), (1, 3)]
    told.begin_period(period("candidate"))
    told.see(build_record(arm="candidate"))
    assert arm_of(told, "candidate").done == 2
    assert told.view().period == 2


def test_requests_of_worker_processes_are_counted_when_their_period_ends():
    """They pass the board by: their number is known, their outcomes are not."""
    told, _ = board()
    told.begin_period(period())
    view = ended(told, workers=2)
    assert (view.requests, view.failures, view.left_s) == (3, None, pytest.approx(1.0))
    assert arm_of(told).done == 3


def test_a_period_that_was_broken_off_leaves_its_requests_open():
    """It is neither done nor ended."""
    told, _ = board()
    told.begin_period(period())
    told.see(build_record())
    assert not ended(told, completed=False).completed
    assert (arm_of(told).state, arm_of(told).done, told.view().period) == ("waiting", 1, 0)


def test_periods_can_be_added_on_the_way():
    """A search plans its points as it goes."""
    told, _ = board(period())
    told.add_periods([period(block=1, load="knee-2")])
    assert (arm_of(told).planned, told.view().periods) == (6, 2)


@pytest.mark.parametrize("values", [[5.0], [1.0, 100.0, 3.0], [10.0] * 9 + [1e9] * 8])
def test_the_median_is_right_within_one_per_cent(values):
    """The lower one of an even number; nothing has none."""
    median = Median()
    for value in values:
        median.add(value)
    assert median.read() == pytest.approx(sorted(values)[(len(values) - 1) // 2], rel=0.01)
    assert Median().read() is None


def test_only_what_was_kept_is_shown():
    """A full disk must not be shown as progress."""

    class Full:
        def append(self, _record):
            raise OSError(28, "no space")

    told, _ = board()
    told.begin_period(period())
    with pytest.raises(OSError, match="no space"):
        WatchedSink(Full(), told).append(build_record())
    assert arm_of(told).done == 0


def test_a_board_can_be_read_while_it_is_written():
    """A display in another thread never meets a half-made count."""
    told, _ = board(objectives=Objectives(ttft_ms=60))
    told.begin_period(period())
    over, errors = threading.Event(), []

    def read():
        while not over.is_set():
            try:
                told.view()
            except RuntimeError as error:  # a container that changed while it was read
                errors.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(3_000):
        told.see(build_record(gap_ns=(number % 500 + 1) * MS_NS))
        told.see(build_failure(f"outcome {number % 300}"))
    over.set()
    reader.join()
    assert errors == []
    assert arm_of(told).done == 6_000
