"""Conversations of several turns: one slot, real answers in the history, every turn on record."""

import asyncio

import msgspec
import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.transport import FakeTransport, Story

from draftproof.measure.load.period import EARLIER_FAILED, Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.measure.load.schedule import Schedule
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import FollowUp

ITEMS = {
    "talk": build_item("talk", follow_ups=(FollowUp(content="and then?"), FollowUp(content="and last?"))),
    "solo": build_item("solo"),
}
KEY = "low/0/0/baseline"
ENDPOINT = Endpoint(url="http://h:1", served_model="m", engine="generic")
QUICK = LoadSettings(stagger_s=0.0, failure_pause_s=0.0)


def turn(*ids, concurrency=1):
    return Period(
        block=0, load="low", concurrency=concurrency, repeat=0, arm="baseline", order=0, item_ids=ids
    )


def schedule(*ids, done=(), answered=None, concurrency=1):
    plan = Schedule(
        turn(*ids, concurrency=concurrency),
        ITEMS,
        done=done,
        seed_of=lambda _item, _repeat: 1,
        answered=answered,
    )
    plan.open_counting()
    return plan


def answer(text):
    frame = {"choices": [{"delta": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
    body = b"data: " + msgspec.json.encode(frame) + b"\n\ndata: [DONE]\n\n"
    return Story(sent_ns=1, headers_ns=2, body=((3, body),), end_ns=4)


class Sink:
    """Keeps records in memory."""

    def __init__(self):
        self.records = []

    def append(self, record):
        self.records.append(record)


def converse(story, *ids, **options):
    sink, transport = Sink(), FakeTransport(story)
    block = asyncio.run(
        run_period(turn(*ids), ENDPOINT, ITEMS, transport=transport, sink=sink, settings=QUICK, **options)
    )
    asked = [msgspec.json.decode(one.body)["messages"] for one in transport.requests]
    return sink.records, block, asked


def test_a_conversation_is_asked_turn_by_turn_with_the_answers_that_came():
    """Each turn is a counted request under its own id, and carries what the service really said."""
    stories = iter([answer("one"), answer("two"), answer("three"), answer("alone")])
    records, block, asked = converse(lambda _request: next(stories), "talk", "solo")
    assert [one.request_id for one in records] == [
        f"{KEY}/talk",
        f"{KEY}/talk+1",
        f"{KEY}/talk+2",
        f"{KEY}/solo",
    ]
    assert [one.conversation_turn for one in records] == [0, 1, 2, 0]
    assert [one.text for one in records] == ["one", "two", "three", "alone"]
    assert [message["content"] for message in asked[2][1:]] == ["one", "and then?", "two", "and last?"]
    assert {one.phase for one in records} == {"measure"}
    assert block.completed


def test_after_a_failed_turn_the_later_ones_count_as_failures_and_are_not_sent():
    """A conversation that breaks off loses no request from the count."""
    stories = iter([answer("one"), Story(status=500, end_ns=4)])
    records, block, asked = converse(lambda _request: next(stories), "talk")
    assert [(one.conversation_turn, one.outcome) for one in records] == [
        (0, "ok"),
        (1, "http_error"),
        (2, "cancelled"),
    ]
    assert (records[2].error, records[2].sent_ns) == (EARLIER_FAILED, None)
    assert len(asked) == 2
    assert block.completed


def test_a_resumed_conversation_goes_on_from_the_answers_on_record():
    """Turns that are in the journal are not asked again, and their answers are the history."""
    kept = {f"{KEY}/talk": AnswerView(text="stored")}
    records, _, asked = converse(answer("new"), "talk", done=kept, answered=kept)
    assert [one.request_id for one in records] == [f"{KEY}/talk+1", f"{KEY}/talk+2"]
    assert [message["content"] for message in asked[0][1:]] == ["stored", "and then?"]


def test_a_resumed_conversation_that_had_failed_is_recorded_to_its_end():
    """The client died between the failure and the record of the turns after it."""
    kept = {f"{KEY}/talk": AnswerView(text="stored"), f"{KEY}/talk+1": None}
    records, block, asked = converse(answer("new"), "talk", done=kept, answered=kept)
    assert [(one.request_id, one.outcome) for one in records] == [(f"{KEY}/talk+2", "cancelled")]
    assert asked == []
    assert block.completed


def test_a_conversation_that_is_wholly_on_record_is_left_alone():
    """Nothing is outstanding."""
    kept = {f"{KEY}/talk": None, f"{KEY}/talk+1": None, f"{KEY}/talk+2": None}
    plan = schedule("talk", done=kept, answered=kept)
    assert plan.is_over
    assert plan.next_job() is None


def test_the_turn_is_over_only_when_every_conversation_is():
    """Each turn of a conversation counts."""
    plan = schedule("talk", "solo", concurrency=2)
    talk, solo = plan.next_job(), plan.next_job()
    plan.finish(solo)
    for _ in range(2):
        assert not plan.is_over
        plan.finish(talk)
        talk = plan.follow(talk, AnswerView(text="x"))
    assert not plan.is_over
    plan.finish(talk)
    assert plan.is_over
    assert plan.follow(talk, AnswerView(text="x")) is None


def test_fill_requests_go_on_with_their_conversation_only_while_others_are_counted():
    """They stand for the same load, and stop with it."""
    plan = schedule("talk", concurrency=2)
    counted, fill = plan.next_job(), plan.next_job()
    following = plan.follow(fill, AnswerView(text="x"))
    assert (following.phase, following.request_id) == ("fill", f"{KEY}/talk+1#fill1")
    for _ in range(3):
        plan.finish(counted)
        counted = plan.follow(counted, AnswerView(text="x"))
    assert plan.is_over
    assert plan.follow(fill, AnswerView(text="x")) is None


def test_later_turns_of_leads_and_fills_have_ids_of_their_own():
    """Both may ask the same conversation, and each is numbered apart to its end."""
    plan = Schedule(
        turn("talk", concurrency=2), {"talk": ITEMS["talk"]}, done=(), seed_of=lambda _item, _repeat: 1
    )
    ramp_up = plan.ramp_up_job(1.0)
    plan.open_counting()
    fills = [job for _ in range(3) if (job := plan.next_job()) is not None and job.phase == "fill"]
    later = [plan.follow(job, AnswerView(text="x")) for job in (ramp_up, *fills)]
    assert [job.request_id for job in later if job is not None] == [
        f"{KEY}/talk+1#lead1", f"{KEY}/talk+1#fill1", f"{KEY}/talk+1#fill2",
    ]  # fmt: skip


def test_an_interrupted_turn_does_not_claim_to_be_done():
    """A later turn that was stopped keeps its place in the conversation under an id of its own."""
    plan = schedule("talk")
    job = plan.follow(plan.next_job(), AnswerView(text="x"))
    stopped = plan.interrupt(job)
    assert (stopped.request_id, stopped.conversation_turn) == (f"{KEY}/talk+1#interrupted0", 1)


@pytest.mark.parametrize("phase", ["warmup"])
def test_a_warm_up_asks_the_opening_alone(phase):
    """The number of warm-up requests is the plan's."""
    plan = Schedule(turn("talk"), ITEMS, done=(), seed_of=lambda _item, _repeat: 1, phase=phase)
    job = plan.next_job()
    assert job is not None
    assert plan.follow(job, AnswerView(text="x")) is None
    plan.finish(job)
    assert plan.is_over
