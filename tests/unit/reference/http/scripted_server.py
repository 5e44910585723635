"""A scripted engine behind the real server, over real HTTP, and a client that sees every byte."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import uvicorn
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.reference.counters import EngineStats
from draftproof.reference.http.app import LoadedEngine, Service, build_app, config_settings
from draftproof.reference.http.server import bind_socket
from draftproof.reference.scheduler import QueueFullError
from draftproof.reference.types import (
    EngineConfig,
    FinishReason,
    GenerationRequest,
    RoundOutput,
    RoundStats,
    SpeculationParams,
    TokenLogprobs,
)

MODEL = "scripted"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token per byte and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def round_stats(*, proposed: int = 0, accepted: int = 0, committed: int = 1) -> RoundStats:
    return RoundStats(
        proposed=proposed,
        accepted=accepted,
        committed=committed,
        draft_ns=1_000_000,
        verify_ns=20_000_000,
        sample_ns=2_000,
        schedule_ns=3_000,
        batch_size=1,
        prefill_tokens=0,
    )


def output(
    token_ids: tuple[int, ...],
    text: str,
    *,
    end: FinishReason | None = None,
    stats: RoundStats | None = None,
    fallbacks: int = 0,
    error: str | None = None,
    logprobs: tuple[TokenLogprobs, ...] | None = None,
) -> RoundOutput:
    return RoundOutput(
        token_ids=token_ids,
        text=text,
        finish_reason=end,
        round=stats,
        queue_ns=2_000_000,
        prefill_ns=5_000_000,
        fallbacks=fallbacks,
        error=error,
        logprobs=logprobs,
    )


# Prefill token, then rounds that commit 3, 1 and 2 tokens; the last text is held back for one round.
STORY = (
    output((10,), "Once"),
    output((11, 12, 13), " upon a time", stats=round_stats(proposed=4, accepted=2, committed=3)),
    output((14,), "", stats=round_stats()),
    output((15, 2), ", end", end="stop", stats=round_stats(proposed=4, accepted=1, committed=2)),
)


class ScriptedBackend:
    """Yields a fixed list of outputs; may wait before each, be full, and remembers what it was asked.

    The script of choice i of a request is `scripts[i]` where there is one, else `script`. A choice holds a
    slot from its admission until it has ended or is closed; the first `held_choices` of a request wait for
    ever before output `hold_after`.
    """

    def __init__(self, script: tuple[RoundOutput, ...] = STORY, *, slots: int = 8) -> None:
        self.script, self.slots = script, slots
        self.scripts: dict[int, tuple[RoundOutput, ...]] = {}
        self.requests: list[GenerationRequest] = []
        self.admitted: set[str] = set()
        self.stopped = False
        self.hold_after: int | None = None
        self.held_choices = 16
        self.refusal: Exception | None = None

    @property
    def running(self) -> int:
        return len(self.admitted)

    async def prepare(self, request: GenerationRequest) -> None:
        """Nothing is slow here."""

    def generate(self, request: GenerationRequest) -> "ScriptedStream":
        if self.refusal is not None and request.request_id != "warm-up":
            raise self.refusal
        if self.running >= self.slots:
            raise QueueFullError("the queue is full.")
        self.requests.append(request)
        self.admitted.add(request.request_id)
        return ScriptedStream(self, request.request_id)

    def stats(self) -> EngineStats:
        return EngineStats(running=self.running, kv_tokens=7, kv_bytes=700, draft_ns=1_500_000_000)

    def stop(self) -> None:
        self.stopped = True


class ScriptedStream:
    """The outputs of one admitted sequence."""

    def __init__(self, backend: ScriptedBackend, request_id: str) -> None:
        self._backend, self._request_id = backend, request_id
        self._choice = int(request_id.split("-")[2]) if request_id.count("-") == 2 else 0
        self._steps = iter(backend.scripts.get(self._choice, backend.script))
        self._given = 0

    def __aiter__(self) -> "ScriptedStream":
        return self

    async def __anext__(self) -> RoundOutput:
        held = self._choice < self._backend.held_choices and self._request_id != "warm-up"
        if held and self._given == self._backend.hold_after:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        self._given += 1
        step = next(self._steps, None)
        if step is None or self._request_id not in self._backend.admitted:
            await self.aclose()
            raise StopAsyncIteration
        return step

    async def aclose(self) -> None:
        self._backend.admitted.discard(self._request_id)


class Reply:
    """A whole HTTP response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers = response.status, response.headers
        self.raw = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[Any]:
        """The JSON of every event; the end marker is the string "[DONE]"."""
        lines = [line for line in self.raw.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        values = [line.removeprefix("data: ") for line in lines]
        return [value if value == "[DONE]" else json.loads(value) for value in values]


class Client:
    """Talks to the server under test."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> Reply:
        return self._send("GET", path, None)

    def post(self, path: str, body: Any) -> Reply:
        return self._send("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def chat(self, **fields: Any) -> Reply:
        return self.post("/v1/chat/completions", chat_body(**fields))

    def open_chat(self, **fields: Any) -> tuple[http.client.HTTPConnection, socket.socket]:
        """Send a chat request and return the connection without reading the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat_body(**fields)).encode())
        return connection, connection.sock

    def _send(self, method: str, path: str, body: bytes | None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return Reply(connection.getresponse())
        finally:
            connection.close()


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16} | fields


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "the expected state never came"
        time.sleep(0.01)


@contextmanager
def running_server(service: Service) -> Iterator[Client]:
    """Serve on a free port in a thread until the block ends."""
    with bind_socket("127.0.0.1", 0) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                build_app(service), lifespan="on", log_level="warning", timeout_graceful_shutdown=2
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Client(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def scripted_service(
    backend: ScriptedBackend, *, config: EngineConfig | None = None, gate: threading.Event | None = None
) -> Service:
    """Return a service of a scripted engine; `gate` holds its loading back."""
    config = config or EngineConfig(
        model_path=MODEL, max_model_len=512, speculation=SpeculationParams(method="ngram", num_spec_tokens=4)
    )

    async def load() -> LoadedEngine:
        if gate is not None:
            await asyncio.to_thread(gate.wait)
        return LoadedEngine(cast("Any", backend), byte_tokenizer(), config_settings(config))

    return Service(load, config, MODEL)


def wait_ready(client: Client) -> None:
    wait_until(lambda: client.get("/health").status == 200)
