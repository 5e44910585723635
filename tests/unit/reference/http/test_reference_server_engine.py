"""The server around the real engine with a tiny random model, in this process and in one of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scripted_server import Client, byte_tokenizer, running_server, wait_ready, wait_until
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.core.errors import UsageError
from draftproof.reference.http.app import Service
from draftproof.reference.http.server import bind_socket, serve, start_engine
from draftproof.reference.types import EngineConfig, SpeculationParams

MODEL = "tiny"
MESSAGES = [{"role": "user", "content": "abcabcabcabc"}]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a tokenizer of bytes, as a folder."""
    folder = tmp_path_factory.mktemp("model") / MODEL
    tokenizer = byte_tokenizer()
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tiny_client(tiny_model: Path) -> Iterator[Client]:
    """A server of the tiny model: two slots, one place in the queue."""
    config = EngineConfig(
        model_path=str(tiny_model),
        max_model_len=1024,
        max_num_seqs=2,
        max_queue=1,
        num_threads=1,
        speculation=SpeculationParams(method="ngram", num_spec_tokens=4),
    )
    with running_server(Service(lambda: start_engine(config), config, MODEL)) as client:
        wait_ready(client)
        yield client


def is_idle(client: Client) -> bool:
    text = client.get("/metrics").raw.decode()
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_tokens")
    return all(f'draftproof:{name}{{model_name="tiny"}} 0.0' in text for name in gauges)


def test_speculation_changes_no_greedy_token(tiny_client: Client) -> None:
    """Greedy ids are the same with speculation off and on, and on really drafted."""
    asked = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 48,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    off = tiny_client.chat(**asked, speculation="off").json
    on = tiny_client.chat(**asked).json
    assert on["choices"][0]["token_ids"] == off["choices"][0]["token_ids"]
    assert len(on["choices"][0]["token_ids"]) == 48
    assert off["metrics"]["speculative_decoding"] is None
    assert on["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_stream_counts_agree_with_rounds(tiny_client: Client) -> None:
    """Chunks, usage, token ids and rounds of a real stream all count the same tokens."""
    events = tiny_client.chat(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=40,
        temperature=0,
        ignore_eos=True,
        stream=True,
        return_token_ids=True,
        return_round_metrics=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ).events
    contents, closing = events[1:-2], events[-2]
    rounds = closing["metrics"]["rounds"]
    assert [len(e["choices"][0]["token_ids"]) for e in contents] == [1, *rounds["committed"]]
    assert closing["usage"]["completion_tokens"] == 40 == contents[-1]["usage"]["completion_tokens"]
    assert contents[-1]["choices"][0]["finish_reason"] == "length"


def test_disconnect_frees_the_engine(tiny_client: Client) -> None:
    """After a client left in mid-stream no sequence runs, none waits and the cache is empty."""
    connection, sock = tiny_client.open_chat(
        model=MODEL, messages=MESSAGES, max_tokens=900, ignore_eos=True, stream=True
    )
    assert sock.recv(512)
    connection.close()
    wait_until(lambda: is_idle(tiny_client))


def test_full_queue_of_the_real_engine_is_429(tiny_client: Client) -> None:
    """Two run, one waits, the fourth is refused; when they leave, the next is served."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "ignore_eos": True, "stream": True}
    held = [tiny_client.open_chat(**asked) for _ in range(3)]
    for _, sock in held:
        sock.recv(64)
    refused = tiny_client.chat(model=MODEL, messages=MESSAGES)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    for connection, _ in held:
        connection.close()
    wait_until(lambda: is_idle(tiny_client))
    assert tiny_client.chat(model=MODEL, messages=MESSAGES, max_tokens=2).status == 200


def test_choices_share_the_real_engine(tiny_client: Client) -> None:
    """Greedy choices are the answer of one; more than fit beside another are refused, and none is left."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = tiny_client.chat(**asked).json["choices"][0]["message"]
    assert [one["message"] for one in tiny_client.chat(**asked, n=3).json["choices"]] == [alone] * 3
    assert tiny_client.chat(**asked, n=4).json["error"]["param"] == "n"
    endless = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "ignore_eos": True, "stream": True}
    connection, sock = tiny_client.open_chat(**endless)
    sock.recv(64)
    assert tiny_client.chat(**asked, n=3).status == 429
    assert tiny_client.chat(**asked, n=2).status == 200
    connection.close()
    wait_until(lambda: is_idle(tiny_client))


def test_disconnect_frees_the_engine_of_all_choices(tiny_client: Client) -> None:
    """After a client left its three choices in mid-stream no sequence runs, waits or is cached."""
    connection, sock = tiny_client.open_chat(
        model=MODEL, messages=MESSAGES, max_tokens=900, ignore_eos=True, stream=True, n=3
    )
    assert sock.recv(512)
    assert not is_idle(tiny_client)
    connection.close()
    wait_until(lambda: is_idle(tiny_client))


def test_a_seed_repeats_every_choice(tiny_client: Client) -> None:
    """Choices of one seed differ from each other, and come again with the seed."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "seed": 5, "n": 3, "temperature": 1}
    first, again = (
        [choice["token_ids"] for choice in tiny_client.chat(**asked, return_token_ids=True).json["choices"]]
        for _ in range(2)
    )
    assert first == again
    assert len({tuple(one) for one in first}) == 3


def test_logprobs_of_the_real_engine_match_its_tokens(tiny_client: Client) -> None:
    """There is one entry for each token, the likeliest first, and a greedy token is the likeliest."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    choice = tiny_client.chat(**asked, logprobs=True, top_logprobs=3, return_token_ids=True).json["choices"][
        0
    ]
    content = choice["logprobs"]["content"]
    assert len(content) == len(choice["token_ids"]) == 12
    for entry in content:
        top = [one["logprob"] for one in entry["top_logprobs"]]
        assert (len(top), top) == (3, sorted(top, reverse=True))
        assert entry["logprob"] == top[0] < 0


def test_a_forced_call_of_the_real_engine_is_valid(tiny_client: Client) -> None:
    """A model of random weights, forced to call, calls a tool of the request with arguments of its schema."""
    schema = {
        "type": "object",
        "properties": {"up": {"$ref": "#/$defs/choice"}},
        "required": ["up"],
        "additionalProperties": False,
        "$defs": {"choice": {"type": "boolean"}},
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("go", "see")]
    choice = tiny_client.chat(
        model=MODEL, messages=MESSAGES, max_tokens=200, seed=1, tools=tools, tool_choice="required"
    ).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in {"go", "see"}
    assert list(json.loads(call["function"]["arguments"])) == ["up"]


def test_a_schema_that_is_none_is_the_clients_error(tiny_client: Client) -> None:
    """A schema the engine cannot follow gets 400 with the field that brought it."""
    reply = tiny_client.chat(model=MODEL, messages=MESSAGES, guided_json={"type": "nonsense"})
    assert (reply.status, reply.json["error"]["param"]) == (400, "guided_json")


def test_version_states_the_running_settings(tiny_client: Client, tiny_model: Path) -> None:
    """/version carries what a manifest needs, hashes of weights and tokenizer included."""
    from draftproof.reference.weights.fetch import file_sha256

    version = tiny_client.get("/version").json
    assert version["engine"] == "draftproof-reference"
    settings = version["config"]
    assert settings["speculation.method"] == "ngram"
    assert (settings["max_num_seqs"], settings["dtype"], settings["num_threads"]) == (2, "float32", 1)
    assert settings["model.sha256"] == file_sha256(tiny_model / "model.safetensors")
    assert settings["torch.version"] == torch.__version__


def test_port_in_use_is_said_before_the_model_is_touched() -> None:
    """A taken port ends in a usage error that names it, although the model does not exist either."""
    with bind_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match="cannot listen there") as caught:
            serve(EngineConfig(model_path="no-such-folder"), port=port)
    assert caught.value.place == f"127.0.0.1:{port}"


def test_missing_model_ends_serve_with_a_usage_error() -> None:
    """A model that is not there ends `serve` with the error itself."""
    with pytest.raises(UsageError, match="no such model folder"):
        serve(EngineConfig(model_path="./no-such-folder"), port=0)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_stops_the_process_cleanly(tiny_model: Path, number: signal.Signals) -> None:
    """One ready line; a stop signal ends an open stream with an error and the process in silence."""
    program = (
        "import sys; from draftproof.reference.http.server import serve; "
        "from draftproof.reference.types import EngineConfig; "
        "serve(EngineConfig(model_path=sys.argv[1], max_model_len=1024, num_threads=1), port=0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tiny_model)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "tiny, float32, " in line
        assert " kernels, speculation off" in line
        port = int(line.split("http://127.0.0.1:")[1].split(":")[0])
        asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 900, "ignore_eos": True, "stream": True}
        connection, sock = Client(port).open_chat(**asked)
        assert sock.recv(64)
        process.send_signal(number)
        rest = b"".join(iter(lambda: sock.recv(65536), b""))
        stdout, stderr = process.communicate(timeout=30)
        connection.close()
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout, stderr) == (0, "", "")
    assert b'"error"' in rest
    assert b"[DONE]" not in rest


def test_address_of_another_host_is_a_usage_error() -> None:
    """An address that is not this machine's cannot be listened on."""
    with pytest.raises(UsageError, match="cannot listen there"):
        bind_socket("192.0.2.1", 0)
    with bind_socket("127.0.0.1", 0) as listener:
        assert listener.family == socket.AF_INET
