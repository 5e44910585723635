"""How log-probabilities and forced tool calls look in answers and streams."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Client, ScriptedBackend, byte_tokenizer, output, round_stats

from draftproof.reference.http.token_text import LOWEST_LOGPROB, LogprobsWriter, TokenTexts
from draftproof.reference.http.tools import CallText
from draftproof.reference.types import FinishReason, RoundOutput, TokenLogprobs

TOKENIZER = byte_tokenizer()
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALL = '{"name": "add", "arguments": {"s": "}\\"{", "xs": [1, {"y": 2}]}}'
ARGUMENTS = '{"s": "}\\"{", "xs": [1, {"y": 2}]}'


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False))


def described(text: str, logprob: float = -0.5) -> tuple[TokenLogprobs, ...]:
    (other,) = ids("z")
    return tuple(
        TokenLogprobs(token_id=one, logprob=logprob, top=((other, -0.1), (one, logprob))) for one in ids(text)
    )


def said(*pieces: str, end: FinishReason = "stop") -> tuple[RoundOutput, ...]:
    """Return one round a piece, with the log-probabilities of its tokens."""
    last = len(pieces) - 1
    return tuple(
        output(
            ids(piece),
            piece,
            end=end if index == last else None,
            stats=round_stats(committed=len(ids(piece))) if index else None,
            logprobs=described(piece),
        )
        for index, piece in enumerate(pieces)
    )


def deltas(events: list[Any]) -> list[dict[str, Any]]:
    return [choice["delta"] for event in events[1:-1] for choice in event["choices"]]


def test_chat_logprobs_have_one_entry_a_token(client: Client, backend: ScriptedBackend) -> None:
    """Each token is listed with its bytes and its likeliest others, the same in a body and in the chunks."""
    backend.script = said("h", "i!")
    fields = {"logprobs": True, "top_logprobs": 2}
    content = client.chat(**fields).json["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["h", "i", "!"]
    assert content[0] == {
        "token": "h",
        "logprob": -0.5,
        "bytes": [104],
        "top_logprobs": [
            {"token": "z", "logprob": -0.1, "bytes": [122]},
            {"token": "h", "logprob": -0.5, "bytes": [104]},
        ],
    }
    events = client.chat(stream=True, **fields).events
    assert events[0]["choices"][0]["logprobs"] is None
    chunks = [event["choices"][0]["logprobs"]["content"] for event in events[1:-1]]
    assert [len(chunk) for chunk in chunks] == [1, 2]
    assert [entry for chunk in chunks for entry in chunk] == content


def test_plain_logprobs_are_parallel_lists(client: Client, backend: ScriptedBackend) -> None:
    """Offsets count characters, a token's own log-probability is among the top ones, chunks continue."""
    backend.script = said("hé", "i")
    body = {"prompt": "x", "logprobs": 2}
    logprobs = client.post("/v1/completions", body).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", r"bytes:\xc3", r"bytes:\xa9", "i"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["top_logprobs"][0] == {"z": -0.1, "h": -0.5}
    events = client.post("/v1/completions", body | {"stream": True}).events
    chunks = [event["choices"][0]["logprobs"] for event in events[:-1]]
    assert {key: [one for chunk in chunks for one in chunk[key]] for key in logprobs} == logprobs


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_null_unless_asked_for(
    client: Client, backend: ScriptedBackend, *, stream: bool
) -> None:
    """Without the field no choice has log-probabilities, whatever the engine says."""
    backend.script = said("h", "i")
    reply = client.chat(stream=stream)
    every = (
        [choice for event in reply.events[:-1] for choice in event["choices"]]
        if stream
        else reply.json["choices"]
    )
    assert [choice["logprobs"] for choice in every] == [None] * len(every)


def test_minus_infinity_is_a_number() -> None:
    """A token of probability zero gets a log-probability JSON can hold."""
    writer = LogprobsWriter(TokenTexts(TOKENIZER), chat=True)
    (entry,) = writer.write(described("h", -math.inf))["content"]
    assert entry["logprob"] == LOWEST_LOGPROB


@given(st.text(max_size=20))
def test_bytes_of_tokens_add_up_to_the_text(text: str) -> None:
    """The bytes of a text's tokens, each looked up alone, are the text's own."""
    texts = TokenTexts(TOKENIZER)
    assert b"".join(texts.raw(one) for one in ids(text)) == text.encode()


def test_special_tokens_show_their_name() -> None:
    """The end of a turn is named, not left blank."""
    assert TokenTexts(TOKENIZER).text(TOKENIZER.eos_token_id) == "<|im_end|>"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_forced_call_is_a_tool_call(client: Client, backend: ScriptedBackend, choice: Any) -> None:
    """The answer is one call with its arguments as text, no content, and its own finish reason."""
    backend.script = said(CALL)
    body = client.chat(tools=TOOLS, tool_choice=choice, return_token_ids=True).json
    (answer,) = body["choices"]
    (call,) = answer["message"].pop("tool_calls")
    assert answer["message"] == {"role": "assistant", "content": None}
    assert call["function"] == {"name": "add", "arguments": ARGUMENTS}
    assert (call["type"], answer["finish_reason"]) == ("function", "tool_calls")
    assert call["id"]
    assert set(call) == {"id", "type", "function"}
    assert answer["token_ids"] == list(ids(CALL))


def test_a_forced_call_streams_its_arguments(client: Client, backend: ScriptedBackend) -> None:
    """Id and name come once, arguments as they are written; every round still is one event."""
    backend.script = said(CALL[:10], CALL[10:40], CALL[40:60], CALL[60:])
    events = client.chat(tools=TOOLS, tool_choice="required", stream=True).events
    parts = deltas(events)
    assert len(parts) == 4
    assert parts[0] == {}
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    assert [call["function"].get("name") for call in calls] == ["add"] + [None] * (len(calls) - 1)
    assert ["id" in call for call in calls] == [True] + [False] * (len(calls) - 1)
    assert {call["index"] for call in calls} == {0}
    assert "".join(call["function"]["arguments"] for call in calls) == ARGUMENTS
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any("content" in part for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_says_so(client: Client, backend: ScriptedBackend, *, stream: bool) -> None:
    """Half a call ends with `length` and what there is of its arguments; half a head is shown as text."""
    asked = {"tools": TOOLS, "tool_choice": "required", "stream": stream}
    shown = []
    for text in (CALL[:40], CALL[:8]):
        backend.script = said(text, end="length")
        reply = client.chat(**asked)
        choice = reply.events[-2]["choices"][0] if stream else reply.json["choices"][0]
        assert choice["finish_reason"] == "length"
        shown.append(choice["delta" if stream else "message"])
    assert shown[0]["tool_calls"][0]["function"]["arguments"] == CALL[:40].partition('"arguments": ')[2]
    assert shown[1]["content"] == CALL[:8]


def test_choices_of_a_forced_call_have_ids_of_their_own(client: Client, backend: ScriptedBackend) -> None:
    """No two calls of a request share an id."""
    backend.script = said(CALL)
    body = client.chat(tools=TOOLS, tool_choice="required", n=3).json
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]}) == 3


def test_a_free_call_stays_text(client: Client, backend: ScriptedBackend) -> None:
    """Where the model may choose, its text is the answer, whatever it looks like."""
    backend.script = said(CALL)
    (choice,) = client.chat(tools=TOOLS).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    name=st.text(max_size=8),
    arguments=st.dictionaries(st.text(max_size=4), JSON, max_size=3),
    ascii_only=st.booleans(),
    data=st.data(),
)
def test_a_call_reads_the_same_in_any_pieces(
    name: str, arguments: Any, *, ascii_only: bool, data: st.DataObject
) -> None:
    """However the text of a call is cut, its name and arguments come out whole and complete."""
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=data.draw(st.sampled_from([None, 1])))
    text = f'{{"name": {json.dumps(name, ensure_ascii=ascii_only)},\n "arguments" : {written} }} '
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    call = CallText()
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert "".join(call.push(piece) for piece in pieces) == written
    assert (call.name, call.complete, call.flush()) == (name, True, "")
