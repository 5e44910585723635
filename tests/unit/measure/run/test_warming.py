"""Who is warmed up, how often, and under which numbers, against a transport of fixed times."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.builders.records import build_item
from tests.builders.transport import FakeTransport, Story

from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.warmup import Route, Warmer
from draftproof.plan.schema import Limits

ITEMS = {name: build_item(name) for name in "abcdef"}
ENDPOINT = Endpoint(url="http://h:1", served_model="m", engine="generic")
FRAME = {"choices": [{"delta": {"role": "assistant", "content": "so"}, "finish_reason": "stop"}]}
BODY = b"data: " + msgspec.json.encode(FRAME) + b"\n\ndata: [DONE]\n\n"


def period(arm="baseline", load="low", block=0, **fields):
    known: dict[str, Any] = {"concurrency": 1, "repeat": 0, "order": 0, "item_ids": ("a", "b")}
    return Period(arm=arm, load=load, block=block, **(known | fields))


class Bench:
    """A warmer with all that it writes to."""

    def __init__(self, limits=None, *, stop_at=None, **options):
        self.records: list[Any] = []
        self.warmups: list[Any] = []
        self.stop = asyncio.Event()
        self.stop_at = stop_at
        route = Route(
            items=ITEMS,
            transport=FakeTransport(Story(sent_ns=1, headers_ns=2, body=((3, BODY),), end_ns=4)),
            sink=self,
            settings=LoadSettings(stagger_s=0.0, failure_pause_s=0.0),
            stop=self.stop,
        )
        self.warmer = Warmer(limits or Limits(), route, self.warmups.append, **options)

    def append(self, record):
        """Keep a record as the run's journal would."""
        self.records.append(record)
        if len(self.records) == self.stop_at:
            self.stop.set()

    def warm(self, *periods):
        """Warm up before each period that needs it."""
        for one in periods:
            if self.warmer.needs(one):
                asyncio.run(self.warmer.warm(one, ENDPOINT))
        return [(one.arm, one.load, one.start, one.requests, one.stable) for one in self.warmups]


def test_each_arm_is_warmed_up_once_at_each_level():
    """Two groups of two that agree, and none before a later block."""
    bench = Bench()
    told = bench.warm(period(), period("candidate"), period(block=1), period(load="busy", block=2))
    assert told == [
        ("baseline", "low", 1, 4, True),
        ("candidate", "low", 1, 4, True),
        ("baseline", "busy", 1, 4, True),
    ]
    assert {one.phase for one in bench.records} == {"warmup"}


def test_after_a_start_an_arm_is_cold_at_every_level():
    """The start gets the next number; the other arm stays warm."""
    bench = Bench()
    bench.warm(period(), period(load="busy"), period("candidate"))
    bench.warmer.forget("baseline")
    told = bench.warm(period(block=1), period(load="busy", block=2), period("candidate", block=1))
    assert told[3:] == [("baseline", "low", 2, 4, True), ("baseline", "busy", 2, 4, True)]


def test_a_resumed_run_goes_on_with_the_numbers_of_its_starts():
    """Its arms have been started anew since then."""
    first = Bench()
    first.warm(period(), period("candidate"))
    told = Bench(before=first.warmups).warm(period())
    assert told == [("baseline", "low", 2, 4, True)]


def test_no_two_warm_up_requests_share_an_id():
    """Not between groups, not after a start before the same period, not with an earlier part of the run."""
    first = Bench()
    first.warm(period())
    first.warmer.forget("baseline")
    first.warm(period())
    again = Bench(known_ids={one.request_id for one in first.records})
    again.warm(period())
    ids = [one.request_id for bench in (first, again) for one in bench.records]
    assert len(ids) == len(set(ids)) == 12


def test_groups_are_as_large_as_the_load_and_leave_the_counted_items_alone():
    """Four in flight, four different ones of the others in every group."""
    bench = Bench()
    assert bench.warm(period(concurrency=4)) == [("baseline", "low", 1, 8, True)]
    asked = [one.item_id for one in bench.records]
    assert set(asked[:4]) == set(asked[4:]) == {"c", "d", "e", "f"}


def test_a_plan_without_warm_up_requests_sends_none():
    """Zero is none at all."""
    bench = Bench(Limits(warmup_requests=0))
    assert bench.warm(period(), period("candidate")) == []
    assert bench.records == []


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_a_warm_up_that_the_user_stops_leaves_no_record_of_itself(stop_at):
    """Its requests are kept; the arm is not warm, and nothing says that it is unstable."""
    bench = Bench(stop_at=stop_at)
    assert bench.warm(period()) == []
    assert len(bench.records) >= stop_at
    assert bench.warmer.needs(period())


def test_a_warm_up_fills_the_whole_level_however_many_workers_share_the_period():
    """A level of four with two workers is warmed up with four in flight, not with a worker's two."""
    bench = Bench(Limits(workers=2))
    bench.warm(period(concurrency=4))
    assert {one.concurrency for one in bench.records} == {4}
    assert bench.warmups[0].end_lag_max_ns is not None
    assert [group.requests for group in bench.warmups[0].groups] == [4, 4]
