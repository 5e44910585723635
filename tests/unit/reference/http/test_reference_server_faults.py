"""What goes wrong: refused requests, a full queue, a client that leaves, an engine that fails."""

import socket
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import (
    Client,
    ScriptedBackend,
    chat_body,
    output,
    running_server,
    scripted_service,
    wait_ready,
    wait_until,
)

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 100_000}, "max_tokens"),
    ({"seed": "x"}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"speculation": "on"}, "speculation"),
    ({"speculation": {"method": "eagle"}}, "speculation.method"),
    ({"speculation": {"num_spec_tokens": 0}}, "speculation.num_spec_tokens"),
    ({"speculation": {"k": 3}}, "speculation"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{p}-{i}" for i, (_, p) in enumerate(REFUSED)])
def test_invalid_value_is_refused_by_name(
    shared_client: tuple[Client, ScriptedBackend], fields: dict[str, Any], param: str
) -> None:
    """An invalid value gets 400 with an OpenAI error body that names the field, and reaches no engine."""
    client, backend = shared_client
    before = len(backend.requests)
    reply = client.chat(**fields)
    assert reply.status == 400
    assert reply.json["error"]["param"] == param
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"].endswith(".")
    assert len(backend.requests) == before


def test_unknown_fields_are_ignored(shared_client: tuple[Client, ScriptedBackend]) -> None:
    """Fields this engine does not know, and neutral values of those it refuses, do no harm."""
    neutral = {"echo": False, "suffix": "", "skip_special_tokens": True, "prompt_logprobs": None}
    assert shared_client[0].chat(user="me", wishes={"a": 1}, **neutral).status == 200


@pytest.mark.parametrize("prompt", [None, "", [], ["a", "b"], [1, "a"], [9999]])
def test_plain_prompt_must_be_one_prompt(shared_client: tuple[Client, ScriptedBackend], prompt: Any) -> None:
    """A missing, empty, multiple or out-of-vocabulary prompt is refused."""
    reply = shared_client[0].post("/v1/completions", {"prompt": prompt})
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff", b""])
def test_body_that_is_no_json_object_is_refused(
    shared_client: tuple[Client, ScriptedBackend], body: bytes
) -> None:
    """Bytes that are no JSON object get 400 with an error body."""
    reply = shared_client[0].post("/v1/chat/completions", body)
    assert reply.status == 400
    assert "JSON" in reply.json["error"]["message"]


def test_unknown_model_and_route_are_404(shared_client: tuple[Client, ScriptedBackend]) -> None:
    """Another model's name and an unknown path both get 404 with an error body."""
    assert shared_client[0].chat(model="gpt-9").json["error"]["code"] == "model_not_found"
    reply = shared_client[0].get("/v2/nothing")
    assert (reply.status, reply.json["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("stream", [False, True])
def test_full_queue_answers_429(client: Client, backend: ScriptedBackend, *, stream: bool) -> None:
    """A full queue answers 429 with Retry-After and an error body, streaming or not, and counts it."""
    backend.slots = 0
    reply = client.chat(stream=stream)
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.json["error"]["type"] == "rate_limit_error"
    assert (
        'draftproof:requests_rejected_total{model_name="scripted"} 1.0' in client.get("/metrics").raw.decode()
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold_after", [0, 2])
def test_disconnect_frees_the_slot(
    client: Client, backend: ScriptedBackend, *, stream: bool, hold_after: int
) -> None:
    """A client that leaves, before the first round or in the midst of the answer, ends its generation."""
    backend.hold_after = hold_after
    connection, sock = client.open_chat(stream=stream)
    wait_until(lambda: backend.running == 1)
    if stream and hold_after:
        assert sock.recv(64)
    connection.close()
    wait_until(lambda: backend.running == 0)
    wait_until(
        lambda: (
            'finished_reason="cancelled",model_name="scripted"} 1.0' in client.get("/metrics").raw.decode()
        )
    )


def test_failure_in_mid_stream_is_an_error_event(client: Client, backend: ScriptedBackend) -> None:
    """An engine failure after the first round ends the stream with an error event and no end marker."""
    backend.script = (output((1,), "a"), output((), "", end="error", error="the weights are gone"))
    events = client.chat(stream=True).events
    assert events[-1]["error"]["message"].startswith("the weights are gone")
    assert "[DONE]" not in events


def test_failure_without_a_stream_is_500(client: Client, backend: ScriptedBackend) -> None:
    """An engine failure of a request that does not stream is a plain 500 with an error body."""
    backend.script = (output((), "", end="error", error="no"),)
    reply = client.chat()
    assert (reply.status, reply.json["error"]["type"]) == (500, "server_error")


def test_health_is_503_until_loaded() -> None:
    """While the model loads, /health and generation answer 503, and /version already answers."""
    gate = threading.Event()
    backend = ScriptedBackend()
    with running_server(scripted_service(backend, gate=gate)) as client:
        assert client.get("/health").status == 503
        refused = client.chat()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert client.get("/version").json["config"]["speculation.method"] == "ngram"
        gate.set()
        wait_ready(client)
        assert client.chat().status == 200
    assert backend.stopped


def test_metrics_parse_and_add_up(client: Client) -> None:
    """The exposition parses, and its counters equal what two known answers contain."""
    for _ in range(2):
        client.chat()
    families = {f.name: f for f in text_string_to_metric_families(client.get("/metrics").raw.decode())}

    def value(family: str, sample: str, **labels: str) -> float:
        wanted = {"model_name": "scripted"} | labels
        found = [s.value for s in families[family].samples if s.name == sample and s.labels == wanted]
        assert len(found) == 1
        return found[0]

    spec = "draftproof:spec_decode_num"
    assert value("draftproof:generation_tokens", "draftproof:generation_tokens_total") == 14
    assert value(f"{spec}_drafts", f"{spec}_drafts_total") == 4
    assert value(f"{spec}_draft_tokens", f"{spec}_draft_tokens_total") == 16
    assert value(f"{spec}_accepted_tokens", f"{spec}_accepted_tokens_total") == 6
    positions = [
        value(f"{spec}_accepted_tokens_per_pos", f"{spec}_accepted_tokens_per_pos_total", position=str(p))
        for p in range(4)
    ]
    assert positions == [4, 2, 0, 0]
    finished = "draftproof:request_success"
    assert value(finished, f"{finished}_total", finished_reason="stop") == 2
    ttft = "draftproof:time_to_first_token_seconds"
    assert value(ttft, f"{ttft}_count") == 2
    assert value("draftproof:kv_cache_bytes", "draftproof:kv_cache_bytes") == 700
    assert value("draftproof:draft_seconds", "draftproof:draft_seconds_total") == 1.5
    assert value("draftproof:process_resident_memory_bytes", "draftproof:process_resident_memory_bytes") > 1e6


def test_models_lists_the_served_model(shared_client: tuple[Client, ScriptedBackend]) -> None:
    """GET /v1/models names the one served model and its context."""
    (card,) = shared_client[0].get("/v1/models").json["data"]
    assert (card["id"], card["max_model_len"]) == (chat_body()["model"], 512)


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"unknown": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    ],
    ids=["known", "unknown"],
)
def test_a_body_nested_too_deeply_is_refused(client: Client, content: bytes) -> None:
    """Nesting beyond what can be read gets 400 with one sentence, not a server error."""
    reply = client.post("/v1/chat/completions", content)
    assert (reply.status, reply.json["error"]["message"]) == (400, "The body is nested too deeply.")


def test_a_body_beyond_the_limit_is_refused_unread(client: Client) -> None:
    """More bytes than any prompt of the context needs get 413."""
    reply = client.post("/v1/chat/completions", b" " * 1_500_000)
    assert (reply.status, reply.json["error"]["type"]) == (413, "invalid_request_error")


def test_a_text_far_beyond_the_context_is_refused_before_it_is_encoded(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of more than 64 characters a token of the context never reaches the tokenizer."""
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.encode", None)
    reply = client.post("/v1/completions", {"prompt": "x" * (64 * 512 + 1), "max_tokens": 1})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")


def test_a_client_that_leaves_inside_its_body_leaves_no_fault_in_the_log(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Half a request and then silence is the client's affair: nothing is logged and the server goes on."""
    with socket.create_connection(("127.0.0.1", client.port)) as half:
        half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert client.chat().status == 200
    assert caplog.records == []


def test_a_wrong_method_is_the_clients_error(client: Client) -> None:
    """GET on a POST route gets 405 and a body that does not blame the server."""
    reply = client.get("/v1/chat/completions")
    assert (reply.status, reply.json["error"]["type"]) == (405, "invalid_request_error")
