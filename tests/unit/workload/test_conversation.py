"""Claims about what is asked at a later turn of a conversation."""

import msgspec
import pytest
from tests.builders.records import build_item

from draftproof.core.records import ToolCall
from draftproof.services.engines import GENERIC
from draftproof.workload.conversation import NO_RESULT, AnswerView, item_at_turn
from draftproof.workload.formats import parse_line
from draftproof.workload.items import FinishReasonCheck, FollowUp
from draftproof.workload.reader import compute_sha256

HELLO = AnswerView(text="Hello!", reasoning_text="be kind")
CALLS = AnswerView(tool_calls=(ToolCall("f", "{}"), ToolCall("g", '{"a": 1}')))


def talk(*later, **fields):
    return build_item("talk", follow_ups=later, **fields)


def roles(item):
    return [(one.role, one.content) for one in item.messages[1:]]


def test_a_later_turn_carries_the_real_answers_before_it():
    """Answer and question alternate; thoughts are left out; the item of a turn has no follow-ups."""
    item = talk(FollowUp(content="And then?"), FollowUp(content="Why?", max_tokens=7))
    second = item_at_turn(item, (HELLO,))
    third = item_at_turn(item, (HELLO, AnswerView(text="Nothing.")))
    assert roles(second) == [("assistant", "Hello!"), ("user", "And then?")]
    assert roles(third)[2:] == [("assistant", "Nothing."), ("user", "Why?")]
    assert (second.max_tokens, third.max_tokens) == (item.max_tokens, 7)
    assert second.follow_ups == third.follow_ups == ()


def test_the_first_turn_is_the_item_itself():
    """Nothing was answered yet."""
    item = talk(FollowUp(content="And then?"))
    assert item_at_turn(item, ()).messages == item.messages


def test_every_tool_call_gets_a_result_under_its_own_id():
    """Results follow in the order of the calls; a call without one is answered all the same."""
    item = talk(FollowUp(tool_results=("sunny",), content="So?"))
    asked = item_at_turn(item, (CALLS,))
    assert roles(asked) == [("assistant", ""), ("tool", "sunny"), ("tool", NO_RESULT), ("user", "So?")]
    payload = GENERIC.build_payload(asked, seed=None, served_model="m")
    ids = [call["id"] for call in payload["messages"][1]["tool_calls"]]
    assert (
        ids == [message["tool_call_id"] for message in payload["messages"][2:4]] == ["call_0_0", "call_0_1"]
    )
    assert payload["messages"][1]["tool_calls"][1]["function"] == {"name": "g", "arguments": '{"a": 1}'}


def test_results_that_no_call_wanted_go_in_the_persons_words():
    """A request that ended with the model's own words would have nothing to answer."""
    item = talk(FollowUp(tool_results=("sunny", "warm")))
    assert roles(item_at_turn(item, (HELLO,)))[-1] == ("user", "sunny\nwarm")


def test_a_conversation_has_no_turn_beyond_its_follow_ups():
    """Asking for one is a fault of the caller."""
    with pytest.raises(IndexError):
        item_at_turn(talk(FollowUp(content="x")), (HELLO, HELLO))


def test_follow_ups_are_read_from_a_line_and_belong_to_the_workloads_hash():
    """A line states them as messages with checks; an item without any keeps the hash it had."""
    line = {
        "id": "a",
        "messages": [{"role": "user", "content": "hi"}],
        "segments": {"task": "chat"},
        "follow_ups": [
            {"role": "user", "content": "and?", "checks": [{"type": "finish_reason", "any_of": ["stop"]}]}
        ],
    }
    item = parse_line(line, 1).item
    bare = msgspec.structs.replace(item, follow_ups=())
    assert item.turns == 2
    assert item.follow_ups[0].checks == (FinishReasonCheck(any_of=("stop",)),)
    assert compute_sha256((item,)) != compute_sha256((bare,))
    assert b"follow_ups" not in msgspec.json.encode(bare)
    assert b"tool_calls" not in msgspec.json.encode(bare)
