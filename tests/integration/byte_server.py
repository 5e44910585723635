"""A server of responses as bytes, and streams in every engine's dialect: for faults a script cannot play.

Every response is known to the byte, in the packets that a test wants, and so is the end of its connection.
"""

import asyncio
import contextlib
import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Literal, NamedTuple, Self, TypeVar

from tests.builders.load import run_period
from tests.builders.playback import parse_head
from tests.builders.records import build_item

from draftproof.core.records import RequestRecord
from draftproof.measure.client.exchange import Exchange, ExchangeFold, WireRequest
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.services.engines import adapter_for

STREAM, JSON, HTML, TEXT = "text/event-stream", "application/json", "text/html", "text/plain"
CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
_BETWEEN_PACKETS_S = 0.0002
_TLS_HELLO = b"\x16"  # how a client of TLS begins
Found = TypeVar("Found")
Framing = Literal["length", "chunked", "trailers", "close", "http10"]
Then = Literal["keep", "close", "hang"]


class Reply(NamedTuple):
    """A response in packets, and what becomes of the connection."""

    packets: tuple[bytes, ...]
    then: Then = "keep"


class Request(NamedTuple):
    """What a client asked."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Route = Reply | Callable[[Request], Reply]


def respond(
    body: bytes | str,
    *,
    status: int = 200,
    kind: str = STREAM,
    framing: Framing = "length",
    then: Then = "keep",
    size: int | None = None,
    **headers: str,
) -> Reply:
    """Return a response; `size` cuts it into packets of so many bytes, `headers` names have "_" for "-"."""
    content = body.encode() if isinstance(body, str) else body
    head = [f"HTTP/1.{0 if framing == 'http10' else 1} {status} Said", f"Content-Type: {kind}"]
    head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if framing == "length":
        head.append(f"Content-Length: {len(content)}")
    if framing in {"chunked", "trailers"}:
        trailer = b"X-Checksum: 1\r\nContent-Type: text/html\r\n" if framing == "trailers" else b""
        content = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(content), content, trailer)
        head.append("Transfer-Encoding: chunked")
    raw = "\r\n".join([*head, "", ""]).encode() + content
    step = size or len(raw)
    packets = tuple(raw[start : start + step] for start in range(0, len(raw), step))
    return Reply(packets, "close" if framing in {"close", "http10"} else then)


def models(*names: str) -> Reply:
    """Return the answer of /v1/models."""
    return respond(json.dumps({"data": [{"id": name} for name in names]}), kind=JSON)


class ByteServer:
    """Serves while entered; a path without a route is answered 404.

    Attributes:
        requests: what was asked, in order.
        connections: connections accepted.
    """

    def __init__(self, routes: dict[str, Route], *, tls: ssl.SSLContext | None = None) -> None:
        self._routes, self._tls = routes, tls
        self.requests: list[Request] = []
        self.connections = 0
        self._stop = threading.Event()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            disable_nagle_algorithm = True

            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    outer.connections += 1
                    while outer._answer(self):
                        pass

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, block_on_close, request_queue_size = True, True, 64

            def get_request(self) -> Any:
                connection, address = self.socket.accept()
                if outer._tls is not None:
                    connection = outer._tls.wrap_socket(
                        connection, server_side=True, do_handshake_on_connect=False
                    )
                return connection, address

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: socketserver.StreamRequestHandler) -> bool:
        head = handler.rfile.read(1)
        if head == _TLS_HELLO:
            handler.wfile.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            return False
        while not head.endswith(b"\r\n\r\n"):
            line = handler.rfile.readline()
            if not line:
                return False
            head += line
        parsed = parse_head(head)
        body = handler.rfile.read(int(parsed.headers.get("content-length", "0")))
        request = Request(parsed.method, parsed.path, parsed.headers, body)
        self.requests.append(request)
        route = self._routes.get(parsed.path, respond('{"detail":"Not Found"}', status=404, kind=JSON))
        reply = route if isinstance(route, Reply) else route(request)
        for number, packet in enumerate(reply.packets):
            time.sleep(_BETWEEN_PACKETS_S if number else 0)
            handler.wfile.write(packet)
        if reply.then == "hang":
            self._stop.wait()
        return reply.then == "keep"


class Dialect(NamedTuple):
    """How one engine streams the answer "The quick brown fox" of four tokens, and what follows from it.

    `counts` are the cumulative tokens of its content chunks.
    """

    frames: tuple[dict[str, Any], ...]
    counts: list[int | None]
    source: str | None


def chunk(text: str | None, *, index: int = 0, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return a chunk of one choice; `choice_` fields go into the choice, all others beside it."""
    inner = {
        key.removeprefix("choice_"): fields.pop(key) for key in list(fields) if key.startswith("choice_")
    }
    delta = {} if text is None else {"content": text}
    choice = {"index": index, "delta": delta, "finish_reason": finish, **inner}
    return {"object": "chat.completion.chunk", "choices": [choice], **fields}


def usage(tokens: int, prompt: int = 5) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}


def final(tokens: int, **fields: Any) -> dict[str, Any]:
    """Return the closing chunk with the whole usage."""
    return {"object": "chat.completion.chunk", "choices": [], "usage": usage(tokens), **fields}


_STEPS = (("The", 1), (" quick brown", 3), (" fox", 4))
_TOKENS = (("The", 1), (" quick", 2), (" brown", 3), (" fox", 4))
_END = chunk(None, finish="stop")
_BY_IDS = tuple(
    chunk(text, choice_token_ids=list(range(*span)), usage=usage(span[1]))
    for (text, _), span in zip(_STEPS, ((0, 1), (1, 3), (3, 4)), strict=True)
)
_BY_USAGE = tuple(chunk(text, usage=usage(count)) for text, count in _STEPS)
_BY_TIMINGS = tuple(
    chunk(text, timings={"predicted_n": count, "predicted_ms": 10.0 * count}) for text, count in _TOKENS
)
DIALECTS = {
    "vllm": Dialect((chunk(""), *_BY_IDS, _END, final(4)), [1, 3, 4], "token_ids"),
    "sglang": Dialect((chunk(""), *_BY_USAGE, _END, final(4)), [1, 3, 4], "continuous_usage"),
    "tensorrt-llm": Dialect(
        (*_BY_USAGE, chunk(None, finish="stop", usage=usage(4)), final(4)), [1, 3, 4], "continuous_usage"
    ),
    "llamacpp": Dialect((chunk(None), *_BY_TIMINGS, _END, final(4)), [1, 2, 3, 4], "engine"),
    "tgi": Dialect(
        (*(chunk(text) for text, _ in _TOKENS[:-1]), chunk(" fox", finish="stop"), final(4)),
        [1, 2, 3, 4],
        "engine",
    ),
    "generic": Dialect(
        (chunk(""), *(chunk(text) for text, _ in _STEPS), _END, final(4)), [None, None, None], None
    ),
}


def events(frames: Iterable[dict[str, Any] | bytes], *, done: bool = True) -> bytes:
    """Return frames as a stream of events."""
    rendered = (frame if isinstance(frame, bytes) else json.dumps(frame).encode() for frame in frames)
    return b"".join(b"data: " + frame + b"\n\n" for frame in rendered) + (DONE if done else b"")


class _Records(list[RequestRecord]):
    """Keeps records in memory."""


def ask(
    url: str,
    *,
    engine: str = "generic",
    requests: int = 1,
    timeout_s: float = 20.0,
    headers: tuple[tuple[str, str], ...] = (),
) -> list[RequestRecord]:
    """Return the records of so many measured requests in a row, sent as a run sends them."""
    items = {f"i{number}": build_item(f"i{number}") for number in range(requests)}
    period = Period(
        block=0, load="low", concurrency=1, repeat=0, arm="baseline", order=0, item_ids=tuple(items)
    )
    endpoint = Endpoint(url=url, served_model="m", engine=engine, headers=headers)
    settings = LoadSettings(request_timeout_s=timeout_s, failure_pause_s=0.0, stagger_s=0.0)
    records = _Records()

    async def run() -> None:
        transport = HttpTransport()
        try:
            await run_period(period, endpoint, items, transport=transport, sink=records, settings=settings)
        finally:
            await transport.close()

    asyncio.run(run())
    return list(records)


def ask_one(reply: Reply, **options: Any) -> RequestRecord:
    """Return the record of one request that is answered so."""
    with ByteServer({CHAT: reply}) as server:
        (record,) = ask(server.url, **options)
        return record


def counts(record: RequestRecord) -> list[int | None]:
    return [one.cumulative_tokens for one in record.chunks]


async def send(transport: HttpTransport, url: str) -> Exchange:
    """Return the exchange of one request."""
    fold = ExchangeFold(adapter_for("generic").start_fold())
    return fold.close(await transport.send(WireRequest(url=url + CHAT, body=b"{}"), fold))


def with_transport(
    work: Callable[[HttpTransport], Coroutine[Any, Any, Found]],
    *,
    run: Callable[[Coroutine[Any, Any, Found]], Found] = asyncio.run,
    **options: Any,
) -> Found:
    """Return what `work` returns of a transport, which is closed behind it."""

    async def main() -> Found:
        transport = HttpTransport(**options)
        try:
            return await work(transport)
        finally:
            await transport.close()

    return run(main())
