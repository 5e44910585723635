"""Warming up against services that are scripted group by group."""

import asyncio

from tests.builders.records import MS_NS, build_item, build_record

from draftproof.core.records import Warmup
from draftproof.judge.metrics.phases import WarmupRule
from draftproof.measure.load.period import Period
from draftproof.measure.load.warmup import lay_out_group, warm_up

TURN = Period(block=3, load="busy", concurrency=2, repeat=0, arm="candidate", order=1, item_ids=("a", "b"))
RULE = WarmupRule(requests=2, most_groups=4)


def items(*names):
    return {name: build_item(name) for name in names}


class Ticks:
    """A clock that moves only when a group is asked."""

    def __init__(self):
        self.now_ns = 1_000

    def __call__(self):
        return self.now_ns


def run(*ttfts_ms, stop_after=99, each_s=1.0, start=1):
    clock, asked = Ticks(), []

    async def ask(number):
        asked.append(number)
        clock.now_ns += round(each_s * 1e9)
        return tuple(build_record(ttft_ns=ttfts_ms[number] * MS_NS) for _ in range(2))

    told = asyncio.run(
        warm_up(TURN, ask, RULE, start=start, is_stopped=lambda: len(asked) > stop_after, clock=clock)
    )
    return told, asked


def test_what_came_of_it_is_told_in_full():
    """Where, when, how many groups with their medians, and the last change."""
    told, asked = run(400, 100, 104, start=7)
    assert isinstance(told, Warmup)
    assert (told.arm, told.load, told.block, told.start) == ("candidate", "busy", 3, 7)
    assert (told.started_ns, told.ended_ns) == (1_000, 3_000_001_000)
    assert [group.ttft_ns for group in told.groups] == [400 * MS_NS, 100 * MS_NS, 104 * MS_NS]
    assert (told.stable, told.change, told.tolerance, told.requests) == (True, 0.04, 0.1, 6)
    assert asked == [0, 1, 2]


def test_a_service_that_never_settles_is_said_not_to_be_stable():
    """After the largest number of groups, with the change that is left."""
    told, asked = run(100, 200, 100, 200)
    assert told is not None
    assert (told.stable, told.change) == (False, 1.0)
    assert len(asked) == 4


def test_a_user_who_leaves_meanwhile_gets_no_record():
    """Requests that were broken off tell nothing about the service."""
    assert run(100, 100, stop_after=1) == (None, [0, 1])


def test_groups_ask_items_that_the_period_does_not_count():
    """The same ones in every group and for every arm, each once."""
    group = lay_out_group(TURN, items("a", "b", "c", "d", "e"), 2)
    assert len(set(group.item_ids)) == 2
    assert not set(group.item_ids) & {"a", "b"}
    assert group == lay_out_group(TURN, items("e", "d", "c", "b", "a"), 2)
    other = Period(**{name: getattr(TURN, name) for name in TURN.__struct_fields__} | {"arm": "baseline"})
    assert lay_out_group(other, items("a", "b", "c", "d", "e"), 2).item_ids == group.item_ids


def test_where_there_are_no_others_the_counted_items_are_asked():
    """A workload of one block has nothing else."""
    assert set(lay_out_group(TURN, items("a", "b"), 5).item_ids) == {"a", "b"}
