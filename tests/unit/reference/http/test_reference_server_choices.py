"""Several choices of one request: admitted together, delivered interleaved, ended together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from scripted_server import STORY, Client, ScriptedBackend, output, round_stats, wait_until

from draftproof.reference.http.delivery import interleave

SHORT = (output((20,), "No"), output((21,), ".", end="length", stats=round_stats()))


def told(events: list[Any], index: int) -> list[dict[str, Any]]:
    every = [choice for event in events[:-1] for choice in event["choices"]]
    return [choice for choice in every if choice["index"] == index]


def test_choices_of_a_body_are_in_order(client: Client, backend: ScriptedBackend) -> None:
    """Each choice has its own text and end; usage counts the prompt once and the tokens of all."""
    backend.scripts = {1: SHORT}
    body = client.chat(n=3, return_token_ids=True).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in body["choices"]]
    assert texts == ["Once upon a time, end", "No.", "Once upon a time, end"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length", "stop"]
    assert body["choices"][1]["token_ids"] == [20, 21]
    prompt = len(body["prompt_token_ids"])
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": 16, "total_tokens": prompt + 16}
    assert backend.running == 0


def test_choices_stream_with_their_index(client: Client, backend: ScriptedBackend) -> None:
    """A stream opens every choice, tags each round with its choice and ends once, with the usage of all."""
    backend.scripts = {1: SHORT}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.chat(n=3, stream=True, stream_options=options).events
    assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
    for index, script in ((0, STORY), (1, SHORT), (2, STORY)):
        opening, *rounds = told(events, index)
        assert opening["delta"] == {"role": "assistant", "content": ""}
        assert [choice["delta"]["content"] for choice in rounds] == [step.text for step in script]
        assert [choice["finish_reason"] for choice in rounds[:-1]] == [None] * (len(script) - 1)
        assert rounds[-1]["finish_reason"] == script[-1].finish_reason
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == sorted(counts)
    assert (counts[-1], events[-1], events.count("[DONE]")) == (16, "[DONE]", 1)


def test_each_choice_draws_from_its_own_stream(client: Client, backend: ScriptedBackend) -> None:
    """Same prompt, ids of their own; seeds follow one another, and without a seed there is none."""
    client.chat(n=3, seed=40)
    asked = backend.requests[-3:]
    assert [request.sampling.seed for request in asked] == [40, 41, 42]
    assert len({request.request_id for request in asked}) == 3
    assert len({request.prompt_token_ids for request in asked}) == 1
    client.chat(n=2)
    assert [request.sampling.seed for request in backend.requests[-2:]] == [None, None]


def test_metrics_of_choices_are_pooled_and_single(client: Client, backend: ScriptedBackend) -> None:
    """The block of several choices has the fields of one, summed, and lists that of each."""
    single = client.chat(return_round_metrics=True).json["metrics"]
    backend.scripts = {1: SHORT}
    pooled = client.chat(n=3, return_round_metrics=True).json["metrics"]
    assert "choices" not in single
    assert set(pooled) - set(single) == {"choices"}
    assert [set(block) for block in pooled["choices"]] == [set(single)] * 3
    drafted = [block["speculative_decoding"]["num_draft_tokens"] for block in pooled["choices"]]
    assert (drafted, pooled["speculative_decoding"]["num_draft_tokens"]) == ([8, 0, 8], 16)
    assert pooled["rounds"]["committed"] == [3, 1, 2, 1, 3, 1, 2]
    assert pooled["queue_time_ms"] == 2.0


def test_counters_count_the_prompt_of_choices_once(client: Client) -> None:
    """Every choice is one finished sequence, the prompt they share is counted once."""
    prompt = client.chat(n=3).json["usage"]["prompt_tokens"]
    text = client.get("/metrics").raw.decode()
    assert f'draftproof:prompt_tokens_total{{model_name="scripted"}} {float(prompt)}' in text
    assert 'finished_reason="stop",model_name="scripted"} 3.0' in text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("held", [16, 2], ids=["all", "some"])
def test_disconnect_frees_the_slots_of_all_choices(
    client: Client, backend: ScriptedBackend, *, stream: bool, held: int
) -> None:
    """A client that leaves ends every choice of its request, those that have ended among them."""
    backend.hold_after, backend.held_choices = 2, held
    connection, _ = client.open_chat(stream=stream, n=3)
    wait_until(lambda: backend.running == min(held, 3))
    connection.close()
    wait_until(lambda: backend.running == 0)
    wanted = 'finished_reason="cancelled",model_name="scripted"} 3.0'
    wait_until(lambda: wanted in client.get("/metrics").raw.decode())
    assert backend.running == 0
    assert 'finished_reason="stop",model_name="scripted"} 0.0' in client.get("/metrics").raw.decode()


@pytest.mark.parametrize("stream", [False, True])
def test_too_little_room_refuses_all_choices(
    client: Client, backend: ScriptedBackend, *, stream: bool
) -> None:
    """Where not all choices fit the whole request gets 429, is counted once and leaves none behind."""
    backend.slots = 2
    assert client.chat(n=3, stream=stream).status == 429
    assert backend.running == 0
    counted = 'draftproof:requests_rejected_total{model_name="scripted"} 1.0'
    assert counted in client.get("/metrics").raw.decode()
    assert client.chat(n=2).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_the_failure_of_one_choice_ends_the_request(
    client: Client, backend: ScriptedBackend, *, stream: bool
) -> None:
    """One failed choice fails the request: siblings that would run for ever stop, and the client is told."""
    failing = (output((1,), "a"), output((), "", end="error", error="the weights are gone"))
    backend.scripts, backend.hold_after, backend.held_choices = {2: failing}, 1, 2
    reply = client.chat(n=3, stream=stream)
    error = reply.events[-1] if stream else reply.json
    assert error["error"]["message"].startswith("the weights are gone")
    assert reply.status == (200 if stream else 500)
    assert backend.running == 0


def test_interleave_yields_as_items_come_and_stops_when_closed() -> None:
    """A stream that waits holds no other up; closing ends the reading, and what a stream raises comes out."""

    async def endless() -> AsyncIterator[str]:
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            closed.append(True)

    async def letters(text: str) -> AsyncIterator[str]:
        for letter in text:
            await asyncio.sleep(0)
            yield letter
            if letter == "!":
                raise ValueError(text)

    async def read() -> None:
        async with aclosing(interleave([endless(), letters("ab")])) as items:
            assert [await anext(items) for _ in range(2)] == [(1, "a"), (1, "b")]
        assert closed == [True]
        assert [item async for item in interleave([letters("ab"), letters(""), letters("c")])] == [
            (0, "a"),
            (2, "c"),
            (0, "b"),
        ]
        with pytest.raises(ValueError, match="x!"):
            _ = [item async for item in interleave([endless(), letters("x!")])]
        assert closed == [True, True]

    closed: list[bool] = []
    asyncio.run(read())
