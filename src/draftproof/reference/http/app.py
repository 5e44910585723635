"""The reference engine behind HTTP, in the OpenAI form: a plain ASGI application.

Owns the routes and the life of the loaded engine. Reading requests is wire.py and chat.py, answering them
is answer.py and delivery.py, starting a process is server.py.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from draftproof import __version__
from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.reference.http.answer import Answers
from draftproof.reference.http.chat import chat_token_ids, completion_token_ids
from draftproof.reference.http.delivery import RETRY_AFTER_S, Responder
from draftproof.reference.http.exposition import RequestCounters, ServerCollector, render_metrics
from draftproof.reference.http.token_text import ChatTokenizer, TokenTexts
from draftproof.reference.http.wire import MAX_CHOICES, Wanted, limit_tokens, parse_wanted
from draftproof.reference.http.wire_fields import BadRequestError, error_body
from draftproof.reference.types import (
    EngineConfig,
    GenerationRequest,
    SamplingParams,
)

if TYPE_CHECKING:
    from draftproof.reference.async_engine import AsyncEngine  # torch takes seconds to import

_WARM_UP_TOKENS = 8
_BODY_BYTES = 1 << 20  # tools and fields
_BODY_BYTES_PER_TOKEN = 512  # of the context: a long token with every character escaped
_logger = logging.getLogger(__name__)


class LoadedEngine(msgspec.Struct, frozen=True):
    """A started engine, its tokenizer, and the flat settings that /version discloses."""

    backend: "AsyncEngine"
    tokenizer: ChatTokenizer
    settings: dict[str, str | int | float | bool | None]


class Service:
    """One served model: its engine once loaded, and what it has seen.

    `load`: starts the engine; runs while the server already answers /health with 503. `clock`: monotonic
    nanoseconds. `on_ready`: called once with the engine's settings, when it is loaded and warm. `on_fault`:
    called once, when loading failed, with what it raised.
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[LoadedEngine]],
        config: EngineConfig,
        served_model_name: str,
        *,
        clock: Clock = monotonic_ns,
        on_ready: Callable[[Mapping[str, Any]], None] = lambda _settings: None,
        on_fault: Callable[[BaseException], None] = lambda fault: _logger.error("loading failed: %s", fault),
    ) -> None:
        self._load, self._config, self._name, self._clock = load, config, served_model_name, clock
        self._on_ready, self._on_fault = on_ready, on_fault
        self._created_s = int(time.time())
        self._engine: LoadedEngine | None = None
        self._texts: TokenTexts | None = None
        self._warm = False
        self._max_choices = min(MAX_CHOICES, config.max_num_seqs + config.max_queue)
        self._counters = RequestCounters()
        positions = 0 if config.speculation.method == "off" else config.speculation.num_spec_tokens
        self._collector = ServerCollector(
            self._counters,
            lambda: self._engine.backend.stats() if self._engine else None,
            served_model_name,
            positions,
        )

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Load beside the running server; stop the engine at the end."""
        loading = asyncio.create_task(self._start())
        loading.add_done_callback(self._started)
        try:
            yield
        finally:
            loading.cancel()
            await asyncio.wait({loading})
            await self.stop()

    async def stop(self) -> None:
        """Refuse new requests and end the running ones; calling it again does nothing."""
        self._warm = False
        if self._engine is not None:
            await asyncio.to_thread(self._engine.backend.stop)

    async def chat(self, request: Request) -> Responder:
        """Answer POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def complete(self, request: Request) -> Responder:
        """Answer POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def models(self, _request: Request) -> Response:
        """Answer GET /v1/models with the one served model."""
        card = {"id": self._name, "object": "model", "created": self._created_s, "owned_by": "draftproof"}
        card["max_model_len"] = self._config.max_model_len
        return json_response({"object": "list", "data": [card]})

    async def health(self, _request: Request) -> Response:
        """Answer GET /health: 200 only when the model is loaded and has answered once."""
        return json_response({"status": "ready" if self._warm else "loading"}, 200 if self._warm else 503)

    async def metrics(self, _request: Request) -> Response:
        """Answer GET /metrics in the Prometheus text format."""
        return Response(
            render_metrics(self._collector), media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    async def version(self, _request: Request) -> Response:
        """Answer GET /version with the settings this process really runs with."""
        settings = self._engine.settings if self._engine else config_settings(self._config)
        return json_response(
            {
                "version": __version__,
                "engine": "draftproof-reference",
                "config": settings,
                "platform": {"torch": metadata.version("torch")},
            }
        )

    async def _start(self) -> None:
        self._engine = await self._load()
        self._texts = TokenTexts(self._engine.tokenizer)
        await self._warm_up(self._engine)
        self._warm = True

    def _started(self, loading: "asyncio.Task[None]") -> None:
        if loading.cancelled():
            return
        fault = loading.exception()
        if fault is not None:
            self._on_fault(fault)
        elif self._engine is not None:
            self._on_ready(self._engine.settings)

    async def _warm_up(self, engine: LoadedEngine) -> None:
        """Run one short request so that the first client does not pay for first-time work."""
        request = GenerationRequest(
            request_id="warm-up",
            prompt_token_ids=tuple(index % len(engine.tokenizer) for index in range(_WARM_UP_TOKENS)),
            sampling=SamplingParams(max_tokens=_WARM_UP_TOKENS, ignore_eos=True),
            speculation=self._config.speculation,
        )
        async for output in engine.backend.generate(request):
            if output.finish_reason == "error":
                raise EngineError(f"the engine failed its first request ({output.error}).")

    async def _generate(self, request: Request, *, chat: bool) -> Responder:
        received_ns = self._clock()
        max_model_len = self._config.max_model_len
        content = await _read_body(request, _BODY_BYTES + _BODY_BYTES_PER_TOKEN * max_model_len)
        if self._engine is None or self._texts is None or not self._warm:
            raise BadRequestError(
                "The model is still loading; /health answers 200 once it is ready.", None, status=503
            )
        read_prompt = chat_token_ids if chat else completion_token_ids
        try:
            body = msgspec.json.decode(content, type=dict[str, Any])
            wanted = parse_wanted(
                body, self._config.speculation, self._name, chat=chat, max_choices=self._max_choices
            )
            prompt = read_prompt(body, self._engine.tokenizer, max_model_len)
        except RecursionError as fault:
            raise BadRequestError("The body is nested too deeply.", None) from fault
        except (msgspec.DecodeError, UnicodeDecodeError) as fault:
            raise BadRequestError(f"The body is not a JSON object: {fault}.", None) from fault
        sampling = limit_tokens(wanted, len(prompt), max_model_len)
        answers = Answers(
            request_id=f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}",
            model=self._name,
            created_s=int(time.time()),
            prompt_token_ids=prompt,
            wanted=wanted,
            received_ns=received_ns,
            chat=chat,
            texts=self._texts,
        )
        generations = choice_requests(answers.request_id, prompt, sampling, wanted)
        admits = [partial(self._engine.backend.generate, generation) for generation in generations]
        # Choices differ in their seeds alone.
        prepare = partial(self._engine.backend.prepare, generations[0])
        return Responder(answers, admits, self._counters, self._clock, prepare)


def build_app(service: Service) -> Starlette:
    """Return the ASGI application of a service."""
    return Starlette(
        routes=[
            Route("/v1/chat/completions", service.chat, methods=["POST"]),
            Route("/v1/completions", service.complete, methods=["POST"]),
            Route("/v1/models", service.models, methods=["GET"]),
            Route("/health", service.health, methods=["GET"]),
            Route("/metrics", service.metrics, methods=["GET"]),
            Route("/version", service.version, methods=["GET"]),
        ],
        exception_handlers={
            BadRequestError: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _gone,
        },
        lifespan=service.lifespan,
    )


def config_settings(config: EngineConfig) -> dict[str, str | int | float | bool | None]:
    """Return the configuration flat: dotted key to JSON scalar, as a manifest keeps it."""
    settings: dict[str, str | int | float | bool | None] = {}
    for name, value in msgspec.to_builtins(config).items():
        if isinstance(value, dict):
            settings |= {f"{name}.{inner}": scalar for inner, scalar in value.items()}
        elif isinstance(value, list | tuple):
            settings[name] = msgspec.json.encode(value).decode()
        else:
            settings[name] = value
    return settings


def json_response(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def choice_requests(
    request_id: str, prompt: tuple[int, ...], sampling: SamplingParams, wanted: Wanted
) -> list[GenerationRequest]:
    """Return one sequence for each choice; with a seed, choice i draws from the stream of seed + i."""
    seeds = [None if sampling.seed is None else sampling.seed + index for index in range(wanted.n)]
    return [
        GenerationRequest(
            request_id=request_id if wanted.n == 1 else f"{request_id}-{index}",
            prompt_token_ids=prompt,
            sampling=msgspec.structs.replace(sampling, seed=seed),
            speculation=wanted.speculation,
        )
        for index, seed in enumerate(seeds)
    ]


async def _read_body(request: Request, limit_bytes: int) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > limit_bytes:
            raise BadRequestError(f"The body has more than {limit_bytes} bytes.", None, status=413)
    return bytes(content)


async def _refused(_request: Request, fault: Exception) -> Response:
    if not isinstance(fault, BadRequestError):
        raise fault
    headers = {"Retry-After": str(RETRY_AFTER_S)} if fault.status == 503 else None
    return json_response(fault.body(), fault.status, headers)


async def _gone(_request: Request, _fault: Exception) -> Response:
    """Answer a client that left before its request was complete: nobody reads it."""
    return Response(status_code=400)


async def _http_error(_request: Request, fault: Exception) -> Response:
    if not isinstance(fault, HTTPException):
        raise fault
    headers = dict(fault.headers) if fault.headers else None
    return json_response(error_body(fault.detail, fault.status_code), fault.status_code, headers)
