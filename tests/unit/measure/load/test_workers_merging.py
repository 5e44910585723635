"""Dealing a period to workers, its base time, and one record of it from those of the parts. Pure."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_block_record, build_item

from draftproof.core.errors import DraftproofError, StoreError
from draftproof.core.records import WorkerClock
from draftproof.measure.load.loops import RampUp, find_due_ns
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.schedule import Part, Schedule, Share, count_parts, deal_items
from draftproof.measure.load.workers.messages import (
    REPLIES,
    WORDS,
    Done,
    Failed,
    PeriodOrder,
    Setup,
    ShardProgress,
    Unframer,
    WorkerDiedError,
    encode_message,
)
from draftproof.measure.load.workers.pool import (
    choose_error,
    find_base_ns,
    index_by_period,
    make_error,
    merge_parts,
)
from draftproof.workload.arrivals import OpenLoop, Steady
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import FollowUp

MS = 1_000_000


def period(items=20, concurrency=6, **fields):
    return Period(
        block=3, load="peak", concurrency=concurrency, repeat=1, arm="candidate", order=2,
        item_ids=tuple(f"i{number}" for number in range(items)), **fields,
    )  # fmt: skip


def jobs_of(schedule, fills):
    """Counted jobs, leads and so many fills that a part hands out."""
    ramp_ups = [schedule.ramp_up_job(0.5) for _ in range(fills)]
    schedule.open_counting()
    found = []
    while schedule.has_waiting:
        found.append(schedule.next_job())
    return found, ramp_ups, [schedule.next_job() for _ in range(fills)]


@given(
    items=st.integers(1, 40),
    concurrency=st.one_of(st.none(), st.integers(2, 12)),
    workers=st.integers(1, 7),
    done=st.sets(st.integers(0, 39)),
)
def test_the_parts_are_the_whole_and_share_nothing(items, concurrency, workers, done):
    """Counted requests of all parts are those of one process, and no two requests have one id."""
    whole = period(items, concurrency, due_ns=tuple(range(items)) if concurrency is None else ())
    by_id = {name: build_item(name) for name in (*whole.item_ids, "x", "y")}
    recorded = {f"{whole.key}/i{number}" for number in done}

    def schedule(share):
        return Schedule(whole, by_id, done=recorded, seed_of=lambda item, _: len(item.id), share=share)

    alone, _, _ = jobs_of(schedule(Share()), 0)
    parts = count_parts(whole, workers)
    shared = [jobs_of(schedule(Share(index, parts)), 5) for index in range(parts)]
    counted = [job for part, _, _ in shared for job in part]
    assert sorted(job.request_id for job in counted) == sorted(job.request_id for job in alone)
    assert {job.request_id: job.seed for job in counted} == {job.request_id: job.seed for job in alone}
    for part, _, _ in shared:
        assert [job.order_in_block for job in part] == sorted(job.order_in_block for job in part)
    # A part without a counted request left still fills; one that is the whole and over does not.
    every = [job.request_id for part in shared for group in part for job in group if job is not None]
    assert len(every) == len(set(every))


@given(items=st.integers(1, 60), concurrency=st.integers(1, 20), workers=st.integers(1, 8))
def test_items_are_dealt_as_slots_are(items, concurrency, workers):
    """A part has as many items for each of its slots as any other, within one."""
    whole = period(items, concurrency)
    parts = count_parts(whole, workers)
    shares = [Share(index, parts) for index in range(parts)]
    dealt = [deal_items(whole, share) for share in shares]
    assert sorted(place for own in dealt for place in own) == list(range(items))
    slots = [share.own_limit(concurrency) for share in shares]
    assert sum(slots) == concurrency
    assert max(slots) - min(slots) <= 1
    for own, count in zip(dealt, slots, strict=True):
        assert abs(len(own) - items * count / concurrency) <= count


def test_the_deal_is_the_same_in_every_arm_and_differs_from_block_to_block():
    """An item meets the same worker in both arms of a block, and not always the same one."""
    share = Share(0, 2)
    baseline = msgspec.structs.replace(period(), arm="baseline", order=0)
    assert deal_items(period(), share) == deal_items(baseline, share)
    others = {deal_items(msgspec.structs.replace(period(), block=block), share) for block in range(6)}
    assert len(others) > 1


def test_a_conversation_stays_in_its_part_and_blocks_nothing_elsewhere():
    """Later turns come from the part that opened it; the others are over without them."""
    talk = {"i0": build_item("i0", follow_ups=(FollowUp(content="more"),)), "i1": build_item("i1")}
    whole = period(2, 2)
    parts = [Schedule(whole, talk, done=(), seed_of=lambda *_: 1, share=Share(k, 2)) for k in range(2)]
    for part in parts:
        part.open_counting()
    opened = {job.item.id: (part, job) for part in parts if (job := part.next_job()) is not None}
    part, job = opened["i0"]
    following = part.follow(job, AnswerView(text="a"))
    assert following is not None
    part.finish(job)
    assert not _is_over(part)
    assert (following.request_id, following.conversation_turn) == ("peak/3/1/candidate/i0+1", 1)
    part.finish(following)
    assert _is_over(part)
    assert part.next_job() is not None  # it keeps its part of the load up until it is told to end


def _is_over(schedule):
    return schedule.is_over


def test_due_times_of_a_period_that_goes_on_begin_with_its_first_missing_request():
    """All parts skip the same time, whichever of them has the first missing request."""
    whole = period(4, None, due_ns=(5, 10, 20, 40))
    assert find_due_ns(whole, (0, 1, 2, 3), 100) == {0: 105, 1: 110, 2: 120, 3: 140}
    assert find_due_ns(whole, (2, 3), 100) == {2: 100, 3: 120}
    assert find_due_ns(whole, (), 100) == {}


def test_the_base_of_all_workers_is_where_the_lead_ends():
    """Told as soon as that is known; without standing load at the limit, and never without a margin."""
    ramp_up, find = RampUp(500 * MS), {"started_ns": 1000 * MS, "margin_ns": 15 * MS}
    assert find_base_ns(ramp_up, now_ns=1100 * MS, **find) is None
    assert find_base_ns(ramp_up, now_ns=1486 * MS, **find) == 1501 * MS
    ramp_up.see(100 * MS, ended=4, in_flight=4, ended_ns=60 * MS)  # 16 mean times are 240 ms
    assert find_base_ns(ramp_up, now_ns=1100 * MS, **find) == 1240 * MS
    assert find_base_ns(ramp_up, now_ns=1239 * MS, **find) == 1254 * MS


def part(**fields):
    return build_block_record(block=3, load="peak", arm="candidate", order=2, **fields)


def test_a_period_is_as_late_as_its_worst_part_and_costs_the_sum():
    """Lags are maxima, work and pauses sums, counting began with the first part."""
    first = part(
        event_loop_lag_max_ns=2 * MS, client_cpu_s=0.5, counted_from_ns=70, lag_p99_ns=1, send_lag_p99_ns=9,
        send_lag_max_ns=10, end_lag_max_ns=12, gc_pause_max_ns=4, gc_pause_total_ns=6, connections=3,
        in_flight_max=3, unreached=1, broken=2, held_back=4, clocks=(WorkerClock("w0", 5, 1),),
    )  # fmt: skip
    second = part(
        event_loop_lag_max_ns=None, client_cpu_s=0.25, counted_from_ns=60, lag_p99_ns=None, send_lag_p99_ns=8,
        send_lag_max_ns=30, end_lag_max_ns=7, gc_pause_max_ns=1, gc_pause_total_ns=1, connections=2,
        in_flight_max=4, unreached=2, broken=3, held_back=5, clocks=(WorkerClock("w1", -7, 2),),
    )  # fmt: skip
    merged = merge_parts(
        period(), {"w0": first, "w1": second}, workers=2, started_ns=50, ended_ns=90, conductor_cpu_s=0.125
    )
    assert (merged.started_ns, merged.ended_ns, merged.completed, merged.note) == (50, 90, True, None)
    assert (merged.event_loop_lag_max_ns, merged.lag_p99_ns) == (2 * MS, 1)
    assert (merged.send_lag_p99_ns, merged.send_lag_max_ns, merged.end_lag_max_ns) == (9, 30, 12)
    assert (merged.client_cpu_s, merged.conductor_cpu_s, merged.workers) == (0.75, 0.125, 2)
    assert merged.client_cpu_max_s == 0.5
    assert (merged.gc_pause_max_ns, merged.gc_pause_total_ns) == (4, 7)
    assert (merged.connections, merged.in_flight_max, merged.counted_from_ns) == (5, 7, 60)
    assert (merged.unreached, merged.broken, merged.held_back) == (3, 5, 9)
    assert [clock.worker for clock in merged.clocks] == ["w0", "w1"]


def test_whatever_a_part_counted_is_in_the_period():
    """No fact that a part alone can tell is dropped: with one worker it is the period's."""
    alone = part(
        event_loop_lag_max_ns=1, client_cpu_s=2.0, note="n", counted_from_ns=3, lag_p99_ns=4,
        send_lag_p99_ns=5, send_lag_max_ns=6, gc_pause_max_ns=7, gc_pause_total_ns=8, connections=9,
        end_lag_max_ns=18, in_flight_max=10, unreached=11, broken=12, held_back=13,
        clocks=(WorkerClock("w0", 14, 15),),
        started_ns=16, ended_ns=17, completed=True, workers=1,
    )  # fmt: skip
    merged = merge_parts(period(), {"w0": alone}, workers=1, started_ns=16, ended_ns=17)
    said = {name: getattr(merged, name) for name in alone.__struct_fields__}
    of_the_conductor = {"note": "w0: n", "client_cpu_max_s": 2.0}
    assert said == msgspec.structs.asdict(alone) | of_the_conductor


@pytest.mark.parametrize(
    ("parts", "faults"),
    [
        ({"w0": part(completed=True)}, ()),
        ({"w0": part(completed=True), "w1": part(completed=False, note="stopped")}, ()),
        ({"w0": part(completed=True), "w1": part(completed=True)}, ("w1 was ended by SIGKILL",)),
    ],
)
def test_a_period_is_complete_only_with_all_its_parts(parts, faults):
    """A part that is missing, stopped or failed leaves it incomplete, and the note says which."""
    merged = merge_parts(period(), parts, workers=2, started_ns=0, ended_ns=1, faults=faults)
    assert not merged.completed
    assert merged.note in {None, "w1: stopped", "w1 was ended by SIGKILL"}


def test_nothing_known_is_none():
    """A period all of whose workers died says nothing of the client's lag."""
    merged = merge_parts(period(), {}, workers=2, started_ns=0, ended_ns=1, faults=("both died",))
    assert (merged.event_loop_lag_max_ns, merged.client_cpu_s, merged.connections) == (None, None, None)


@given(size=st.integers(1, 400))
def test_messages_survive_any_cut_of_the_pipe(size):
    """Words and replies come out as they went in, in order, wherever the bytes are cut."""
    words = [
        Setup(index=1, items=(build_item("a"),), journal="j", secrets=("s",)),
        PeriodOrder(
            period=period(2, None, due_ns=(1, 2), ramp_up=OpenLoop(profile=Steady(rps=2.0))),
            endpoint=Endpoint(engine="generic", url="u", served_model="m", request={"n": 1, "t": 0.5}),
            settings=LoadSettings(),
            share=Share(1, 2),
            answered={"a": AnswerView(text="x"), "b": None},
        ),
    ]
    replies = [ShardProgress(3, 2, True), Done(part()), Failed(kind="StoreError", message="full", place="p")]
    cases: list[tuple[Any, Any]] = [(words, WORDS), (replies, REPLIES)]
    for messages, decoder in cases:
        data, unframer = b"".join(encode_message(one) for one in messages), Unframer()
        cuts = [data[start : start + size] for start in range(0, len(data), size)]
        assert [decoder.decode(body) for cut in cuts for body in unframer.feed(cut)] == messages


def test_of_several_errors_the_one_that_says_most_is_told():
    """A full disk in one worker says more than the death of another that came of it, whichever is first."""
    died, full = WorkerDiedError("load worker 0 is gone"), StoreError("the disk is full")
    assert choose_error({0: died, 1: full}) is full
    assert choose_error({0: full, 1: died}) is full
    assert choose_error({}) is None


def test_an_error_of_a_worker_is_what_it_was():
    """Its class decides the exit code; an unknown one is an error all the same."""
    error = make_error(Failed(kind="StoreError", message="full", place="p", fix="f"))
    assert (type(error), error.message, error.place, error.fix) == (StoreError, "full", "p", "f")
    assert type(make_error(Failed(kind="KeyError", message="KeyError: 'a'"))) is DraftproofError


def test_answers_are_told_to_the_period_they_belong_to():
    """Item ids may hold slashes; the period is what stands before them."""
    found = index_by_period({"l/1/0/a/x/y": None, "l/1/0/a/z+1": None, "l/2/0/a/x": None})
    assert found == {"l/1/0/a": {"l/1/0/a/x/y": None, "l/1/0/a/z+1": None}, "l/2/0/a": {"l/2/0/a/x": None}}


def test_the_first_word_about_the_base_stands():
    """A second one changes no due time."""

    async def hear():
        one = Part(Share(0, 2))
        one.begin_counting(5)
        one.begin_counting(9)
        return await one.wait_for_base()

    assert asyncio.run(hear()) == 5


def test_how_a_lead_ended_is_the_conductors_word_and_one_part_that_asked_counted_prompts_is_enough():
    """A part decides nothing about its lead; parts without a lead tell nothing."""
    parts = {"w0": part(lead_asks_counted=None), "w1": part(lead_asks_counted=True)}
    merged = merge_parts(period(), parts, workers=2, started_ns=0, ended_ns=1, lead_end="cut")
    assert (merged.lead_end, merged.lead_asks_counted) == ("cut", True)
    merged = merge_parts(period(), {"w0": part()}, workers=1, started_ns=0, ended_ns=1)
    assert (merged.lead_end, merged.lead_asks_counted) == (None, None)
