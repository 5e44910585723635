"""Hard times for the server: crowds, clients that do not read or leave, a model and drafters that break."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import (
    Client,
    ScriptedBackend,
    byte_tokenizer,
    chat_body,
    output,
    scripted_service,
    wait_ready,
    wait_until,
)
from transformers import LlamaConfig, LlamaForCausalLM
from uvicorn.protocols.http.flow_control import FlowControl

from draftproof.reference.async_engine import AsyncEngine
from draftproof.reference.counters import StepTrace, TraceFile
from draftproof.reference.engine import Engine, default_proposers
from draftproof.reference.http.app import LoadedEngine, Service, build_app, config_settings
from draftproof.reference.http.server import bind_socket, protocol_with_write_timeout
from draftproof.reference.models.model import TargetModel
from draftproof.reference.types import EngineConfig, SpeculationParams

MODEL = "tiny"
MESSAGES = [{"role": "user", "content": "abcabcabcabc"}]
CONFIG = EngineConfig(
    model_path=MODEL,
    max_model_len=1024,
    max_num_seqs=4,
    max_queue=40,
    speculation=SpeculationParams(method="ngram", num_spec_tokens=4),
)


@contextlib.contextmanager
def impatient_server(service: Service, timeout_s: float) -> Iterator[Client]:
    """Serve as `draftproof serve` does, with a write timeout."""
    with bind_socket("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        timeouts = {"timeout_graceful_shutdown": 2, "timeout_keep_alive": 1}
        http = protocol_with_write_timeout(timeout_s)
        config = uvicorn.Config(build_app(service), lifespan="on", log_level="warning", http=http, **timeouts)  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        try:
            wait_until(lambda: server.started)
            client = Client(listener.getsockname()[1])
            client.connections = server.server_state.connections
            yield client
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(11)
    torch.set_num_threads(1)
    tokenizer = byte_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "vocab_size": len(tokenizer)}
    ends = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends))


class Served:
    """A server of the tiny model whose parts a test may break."""

    def __init__(self, client: Client, engine: Engine, trace: Path) -> None:
        self.client, self.engine, self.trace = client, engine, trace

    def is_idle(self) -> bool:
        text = self.client.get("/metrics").raw.decode()
        gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_tokens", "kv_cache_bytes")
        return all(f'draftproof:{name}{{model_name="tiny"}} 0.0' in text for name in gauges)

    def answer(self, **fields: Any) -> list[int]:
        asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        reply = self.client.chat(**(asked | {"return_token_ids": True} | fields))
        assert reply.status == 200, reply.raw
        return list(reply.json["choices"][0]["token_ids"])


@pytest.fixture
def served(model: LlamaForCausalLM, tmp_path: Path) -> Iterator[Served]:
    target = TargetModel(model, byte_tokenizer())
    trace = tmp_path / "trace.jsonl"
    tracer = TraceFile(trace)
    engine = Engine(target, CONFIG, proposers=default_proposers(CONFIG), tracer=tracer)
    backend = AsyncEngine(engine)

    async def load() -> LoadedEngine:
        backend.start()
        return LoadedEngine(backend, target.tokenizer, config_settings(CONFIG))

    with impatient_server(Service(load, CONFIG, MODEL), 1.0) as client:
        wait_ready(client)
        yield Served(client, engine, trace)
    tracer.close()


def test_metrics_responses_and_trace_agree(served: Served) -> None:
    """Totals of /metrics and the rounds of every response are those of the trace's lines, exactly."""
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    bodies = [
        served.client.chat(**asked, speculation=how, return_round_metrics=True).json
        for how in ({"method": "ngram", "num_spec_tokens": 3}, "off")
    ]
    wait_until(served.is_idle)
    steps = [msgspec.json.decode(line, type=StepTrace) for line in served.trace.read_bytes().splitlines()]
    lines = [one for step in steps for one in step.sequences]
    for body in bodies:
        own = [one for one in lines if one.request_id == body["id"] and not one.prefill_tokens]
        rounds = body["metrics"]["rounds"]
        assert rounds["committed"] == [one.committed for one in own]
        assert rounds["proposed"] == [one.proposed for one in own]
        assert rounds["accepted"] == [one.accepted for one in own]
    clients = [one for one in lines if one.request_id != "warm-up"]
    value = metric_values(served.client)
    assert value["draftproof:engine_steps_total"] == len(steps)
    assert value["draftproof:generation_tokens_total"] == sum(one.committed for one in clients)
    assert value["draftproof:spec_decode_num_draft_tokens_total"] == sum(one.proposed for one in clients)
    assert value["draftproof:spec_decode_num_accepted_tokens_total"] == sum(one.accepted for one in clients)
    for part in ("draft", "verify", "sample", "schedule"):
        total_ns = sum(getattr(step, f"{part}_ns") for step in steps)
        assert value[f"draftproof:{part}_seconds_total"] == total_ns / 1e9


def metric_values(client: Client) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics").raw.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


class BreakingProposer:
    """Drafts nonsense and raises in one request's third round."""

    def __init__(self) -> None:
        self.rounds = 0

    def propose(self, contexts: Any) -> Any:
        from draftproof.reference.proposer import Drafts

        self.rounds += 1
        if self.rounds >= 3:
            raise MemoryError("no room for a draft")
        return Drafts(token_ids=[[1] * context.max_draft_tokens for context in contexts])

    def release(self, request_id: str) -> None:
        """Keep nothing."""


def test_a_drafter_that_breaks_in_mid_request_costs_no_token(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is that of ordinary decoding, and the response says that the drafter was lost."""
    plain = served.answer(speculation="off")
    monkeypatch.setitem(served.engine._drafters.proposers, "ngram", BreakingProposer())
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
    body = served.client.chat(**asked, return_token_ids=True).json
    assert body["choices"][0]["token_ids"] == plain
    assert metric_values(served.client)["draftproof:spec_decode_fallbacks_total"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault", [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryError()]
)
def test_memory_that_runs_out_ends_one_step_s_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch, *, fault: Exception, stream: bool
) -> None:
    """The client is told what happened; the next request is answered, and nothing is left in the engine."""
    before = served.answer()
    forward, calls = served.engine.target.forward, []

    def run_out(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise fault
        return forward(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(served.engine.target, "forward", run_out)
        reply = served.client.chat(
            model=MODEL, messages=MESSAGES, max_tokens=24, ignore_eos=True, stream=stream
        )
    error = (reply.events[-1] if stream else reply.json)["error"]
    assert type(fault).__name__ in error["message"]
    assert reply.status == (200 if stream else 500)
    assert served.answer() == before
    wait_until(served.is_idle)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.9}])
def test_logits_that_are_no_numbers_end_one_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, *, value: float, sampling: dict[str, Any]
) -> None:
    """The request whose logits broke gets an error; its neighbour in the same batch gets its whole answer."""
    other = [{"role": "user", "content": "zyx"}]
    plain = served.answer(messages=other, max_tokens=80)
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 30, "ignore_eos": True}
    prompt = len(served.client.chat(**asked, return_token_ids=True).json["prompt_token_ids"])
    forward, marked = served.engine.target.forward, []

    def break_one(token_ids: Any, spans: Any, rows: Any, taps: Any) -> Any:
        result = forward(token_ids, spans, rows, taps)
        start = 0
        for cache, number in spans:
            if number == prompt:
                marked.append(cache)
            elif any(cache is one for one in marked) and cache.length > prompt + 3:
                result.logits[[at for at, row in enumerate(rows) if start <= row < start + number]] = value
            start += number
        return result

    with monkeypatch.context() as patched:
        patched.setattr(served.engine.target, "forward", break_one)
        neighbour: list[list[int]] = []
        thread = threading.Thread(
            target=lambda: neighbour.append(served.answer(messages=other, max_tokens=80))
        )
        thread.start()
        reply = served.client.chat(**asked, **sampling)
        thread.join()
    assert (reply.status, reply.json["error"]["message"]) == (500, "the model's logits are not finite.")
    assert neighbour == [plain]
    wait_until(served.is_idle)


def test_a_crowd_is_answered_or_refused(served: Served) -> None:
    """Of 300 requests at once those that fit are answered in full, the others get 429 and Retry-After."""
    expected = served.answer(max_tokens=8)
    body = json.dumps(
        chat_body(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=8,
            temperature=0,
            ignore_eos=True,
            return_token_ids=True,
        )
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"

    async def ask(gate: asyncio.Barrier) -> tuple[int, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.client.port)
        await gate.wait()
        writer.write(head.encode() + body)
        content = await reader.read()
        writer.close()
        headers, _, rest = content.partition(b"\r\n\r\n")
        assert b"retry-after" in headers.lower() or b" 200 " in headers.splitlines()[0]
        return int(headers.split()[1]), rest

    async def crowd() -> list[tuple[int, bytes]]:
        gate = asyncio.Barrier(300)
        return await asyncio.gather(*(ask(gate) for _ in range(300)))

    replies = asyncio.run(crowd())
    answered = [json.loads(rest) for status, rest in replies if status == 200]
    assert {status for status, _ in replies} == {200, 429}
    assert len(answered) >= CONFIG.max_num_seqs + CONFIG.max_queue
    assert all(one["choices"][0]["token_ids"] == expected for one in answered)
    wait_until(served.is_idle)


def test_a_prompt_over_the_context_is_refused(served: Served) -> None:
    """400, by name, before it takes a place."""
    reply = served.client.post("/v1/completions", {"model": MODEL, "prompt": [65] * 1024, "max_tokens": 1})
    assert (reply.status, reply.json["error"]["param"]) == (400, "prompt")


def test_a_schema_is_compiled_beside_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that serves or steps compiles; a schema that is none is 400 before any byte of a stream."""
    compiling: list[str] = []
    compile_anew = served.engine._grammars._compile

    def watched(schema: str) -> Any:
        if schema not in seen:
            seen.add(schema)
            compiling.append(threading.current_thread().name)
        return compile_anew(schema)

    seen: set[str] = set()
    monkeypatch.setattr(served.engine._grammars, "_compile", watched)
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 40, "stream": True}
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    assert served.client.chat(**asked, guided_json=schema).status == 200
    refused = served.client.chat(**asked, guided_json={"type": "nonsense"})
    assert (refused.status, refused.json["error"]["param"]) == (400, "guided_json")
    assert len(compiling) == 2
    assert not {"draftproof-engine", "server"} & set(compiling)


class Timer:
    """What a loop hands out for a call to come."""

    def __init__(self, seconds: float, call: Any) -> None:
        self.seconds, self.call, self.cancelled = seconds, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Wire:
    """A transport and a loop that do nothing but remember."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, call: Any) -> Timer:
        self.timers.append(Timer(seconds, call))
        return self.timers[-1]

    def abort(self) -> None: ...


def test_a_client_that_catches_up_in_time_is_not_cut_off() -> None:
    """The time starts when the transport holds too much, ends when it was read, and then starts anew."""
    kind, wire = protocol_with_write_timeout(7.0), Wire()
    protocol: Any = kind.__new__(kind)
    protocol.transport = protocol.loop = wire
    protocol.flow = FlowControl(wire)  # type: ignore[arg-type]
    for _ in range(2):
        protocol.pause_writing()
        protocol.pause_writing()
        assert not wire.timers[-1].cancelled
        protocol.resume_writing()
    found = [(timer.seconds, timer.call, timer.cancelled) for timer in wire.timers]
    assert found == [(7.0, wire.abort, True)] * 2


def held_open(client: Client, **fields: Any) -> socket.socket:
    """Send a request over a connection that takes next to nothing, and read nothing of the answer."""
    body = json.dumps(chat_body(**fields)).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    sock.connect(("127.0.0.1", client.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def long_story(rounds: int) -> tuple[Any, ...]:
    return tuple(
        output((index % 200,), "x" * 500, end="length" if index == rounds - 1 else None)
        for index in range(rounds)
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_never_reads_is_cut_off(*, stream: bool) -> None:
    """Its connection ends after the timeout, and with it the request; others are served all the while."""
    backend = ScriptedBackend(long_story(2000))
    with impatient_server(scripted_service(backend), 0.5) as client:
        wait_ready(client)
        connections = client.connections
        with held_open(client, stream=stream) as sock:
            wait_until(lambda: len(backend.requests) == 2)
            backend.script = long_story(3)
            assert client.chat().status == 200
            wait_until(lambda: not connections and backend.running == 0)
            with contextlib.suppress(ConnectionError):
                while sock.recv(65536):
                    pass
        assert client.chat().status == 200


def test_a_client_that_reads_slowly_is_waited_for() -> None:
    """One that takes a little now and then gets all of it."""
    backend = ScriptedBackend(long_story(500))
    with impatient_server(scripted_service(backend), 30) as client:
        wait_ready(client)
        with held_open(client, stream=True) as sock:
            got = b""
            pause = threading.Event()
            while b"[DONE]" not in got:
                pause.wait(0.001)
                part = sock.recv(2048)
                assert part, "the server lost patience"
                got += part
        assert got.count(b"data: ") == 500 + 2
