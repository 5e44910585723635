"""What a client receives: shape of the stream, counts, metrics block, per-request switches."""

from typing import Any

import pytest
from scripted_server import STORY, Client, ScriptedBackend, output, round_stats

ROUNDS = len(STORY)


def choices(events: list[Any]) -> list[dict[str, Any]]:
    return [choice for event in events if event != "[DONE]" for choice in event["choices"]]


def test_stream_is_role_chunk_then_one_event_per_round(client: Client) -> None:
    """A stream is the role chunk, one event per round, and the end marker; nothing else."""
    reply = client.chat(stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = reply.events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"]["content"] for choice in choices(events)[1:]] == [step.text for step in STORY]
    assert events[-1] == "[DONE]"
    assert len(events) == 1 + ROUNDS + 1


def test_only_the_last_round_has_a_finish_reason(client: Client) -> None:
    """The finish reason comes with the last round's event."""
    reasons = [choice["finish_reason"] for choice in choices(client.chat(stream=True).events)]
    assert reasons == [None] * ROUNDS + ["stop"]


def test_continuous_usage_is_cumulative(client: Client) -> None:
    """Each chunk states the tokens delivered so far, the role chunk none."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.chat(stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events if event != "[DONE]"]
    assert counts == [0, 1, 4, 5, 7, 7]


def test_token_ids_sum_to_usage(client: Client) -> None:
    """The token ids of all chunks, in order, are the usage's completion tokens."""
    events = client.chat(stream=True, return_token_ids=True, stream_options={"include_usage": True}).events
    ids = [token for choice in choices(events) for token in choice.get("token_ids", [])]
    assert ids == [10, 11, 12, 13, 14, 15, 2]
    assert events[-2]["usage"]["completion_tokens"] == len(ids)
    assert len(events[0]["prompt_token_ids"]) == events[-2]["usage"]["prompt_tokens"]


def test_usage_chunk_comes_only_when_asked_for(client: Client) -> None:
    """Without stream_options no chunk has usage, and none has empty choices."""
    events = client.chat(stream=True).events[:-1]
    assert not any("usage" in event for event in events)
    assert all(event["choices"] for event in events)


def test_body_has_the_same_text_and_counts_as_the_stream(client: Client) -> None:
    """One JSON body carries the joined text, ids, usage and finish reason."""
    body = client.chat(return_token_ids=True).json
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Once upon a time, end"}
    assert choice["finish_reason"] == "stop"
    assert choice["token_ids"] == [10, 11, 12, 13, 14, 15, 2]
    assert body["usage"]["completion_tokens"] == 7
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 7


def test_plain_completion_streams_text(client: Client) -> None:
    """A plain completion has no role chunk and puts the text into choices[].text."""
    events = client.post("/v1/completions", {"prompt": "once", "stream": True}).events
    assert [choice["text"] for choice in choices(events)] == [step.text for step in STORY]


def test_acceptance_counts_only_steps_that_drafted(client: Client) -> None:
    """Acceptance is conditional on drafting steps and its own identities hold."""
    block = client.chat().json["metrics"]
    acceptance = block["speculative_decoding"]
    assert acceptance["num_spec_steps"] == 2
    assert acceptance["num_draft_tokens"] == 8
    assert acceptance["num_accepted_draft_tokens"] == 3
    assert acceptance["mean_acceptance_length"] == pytest.approx(1 + 3 / 2)
    assert acceptance["draft_acceptance_rate"] == pytest.approx(3 / 8)
    assert acceptance["acceptance_histogram"] == [0, 1, 1, 0, 0]
    assert acceptance["per_step_accepted"] == [2, 1]
    assert acceptance["per_step_verify_ms"] == [20.0, 20.0]
    assert block["queue_time_ms"] == 2.0
    assert block["prefill_time_ms"] == 5.0


def test_round_metrics_come_when_asked_for(client: Client) -> None:
    """Rounds are listed field by field, the prefill's output not among them."""
    assert "rounds" not in client.chat().json["metrics"]
    rounds = client.chat(return_round_metrics=True).json["metrics"]["rounds"]
    assert rounds["proposed"] == [4, 0, 4]
    assert rounds["committed"] == [3, 1, 2]
    assert rounds["draft_ns"] == [1_000_000] * 3


def test_metrics_block_ends_a_stream_with_usage(client: Client) -> None:
    """The closing usage chunk has no choices and holds the metrics block."""
    closing = client.chat(stream=True, stream_options={"include_usage": True}).events[-2]
    assert closing["choices"] == []
    stated = {"method": "ngram", "num_spec_tokens": 4, "policy": "fixed"}
    assert closing["metrics"]["speculation"].items() >= stated.items()


def test_switch_off_reaches_the_engine_and_the_answer(client: Client, backend: ScriptedBackend) -> None:
    """`"speculation": "off"` turns drafting off for this request alone, and acceptance is null, not zero."""
    block = client.chat(speculation="off").json["metrics"]
    assert block["speculative_decoding"] is None
    client.chat()
    assert [request.speculation.method for request in backend.requests[-2:]] == ["off", "ngram"]


def test_switch_sets_the_draft_length(client: Client, backend: ScriptedBackend) -> None:
    """An object sets method and draft length of this request."""
    client.chat(speculation={"method": "ngram", "num_spec_tokens": 7})
    assert backend.requests[-1].speculation.num_spec_tokens == 7


def test_no_draft_gives_none_not_zero(client: Client, backend: ScriptedBackend) -> None:
    """A request that never drafted has no acceptance length; its counts are zero."""
    backend.script = (output((1,), "a"), output((2,), "b", end="length", stats=round_stats()))
    acceptance = client.chat().json["metrics"]["speculative_decoding"]
    assert acceptance["mean_acceptance_length"] is None
    assert acceptance["draft_acceptance_rate"] is None
    assert acceptance["num_spec_steps"] == 0


def test_fallback_is_visible(client: Client, backend: ScriptedBackend) -> None:
    """A drafter that failed shows in the answer's metrics and in the counter."""
    backend.script = (output((1,), "a"), output((2,), "b", end="stop", stats=round_stats(), fallbacks=1))
    assert client.chat().json["metrics"]["fallbacks"] == 1
    assert (
        'draftproof:spec_decode_fallbacks_total{model_name="scripted"} 1.0'
        in client.get("/metrics").raw.decode()
    )


def test_sampling_reaches_the_engine(client: Client, backend: ScriptedBackend) -> None:
    """Every sampling field of the request arrives as it was sent."""
    client.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=7,
        stop=["END", "\n"],
        ignore_eos=True,
        max_completion_tokens=9,
    )
    sampling = backend.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 40, 7)
    assert (sampling.stop, sampling.ignore_eos, sampling.max_tokens) == (("END", "\n"), True, 9)


def test_max_tokens_defaults_to_the_rest_of_the_context(client: Client, backend: ScriptedBackend) -> None:
    """Without max_tokens the answer may fill what the prompt leaves of the context."""
    client.chat(max_tokens=None)
    request = backend.requests[-1]
    assert request.sampling.max_tokens == 512 - len(request.prompt_token_ids)


def test_tools_are_rendered_where_the_template_knows_none(client: Client, backend: ScriptedBackend) -> None:
    """A template without tools gets them, whole, in the system prompt."""
    from scripted_server import byte_tokenizer

    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    assert client.chat(tools=[tool]).status == 200
    prompt = byte_tokenizer().decode(backend.requests[-1].prompt_token_ids)
    assert prompt.startswith("<|im_start|>system\n")
    assert '{"name":"add","parameters":{"type":"object"}}' in prompt


def test_text_parts_are_joined(client: Client, backend: ScriptedBackend) -> None:
    """Content given as text parts is the same prompt as their concatenation."""
    client.chat(messages=[{"role": "user", "content": "ab"}])
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    client.chat(messages=[{"role": "user", "content": parts}])
    assert backend.requests[-1].prompt_token_ids == backend.requests[-2].prompt_token_ids
