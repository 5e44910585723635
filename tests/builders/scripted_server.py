"""An OpenAI-compatible server over real sockets whose every answer is known in advance.

Its own write times are the truth against which a client's readings are judged. It runs on a thread and event
loop of its own, so that a client under test cannot delay it by its own work on the loop.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeVar

from tests.builders.playback import (
    HttpPeer,
    RequestHead,
    Served,
    decode_payload,
    play,
    render_json_response,
    render_text_response,
)
from tests.builders.scripts import Script

from draftproof.core.clock import monotonic_ns

_T = TypeVar("_T")
ScriptFor = Callable[[dict[str, Any]], Script]


class ScriptedServer:
    """Serves while entered as a context manager; `url` is its base address.

    Args:
        script: one script for every request, scripts for the first, second, ... request (the last one
            repeats), or a function from a request's payload to its script.
        port: 0 for any free one.
        model: the name /v1/models lists.
        version: the body of /version; None answers 404 there, as an engine without that path does.
        ready: False answers 503 on /health for good.
        metrics: text of /metrics, made from this server when it is asked; None answers 404 there.
        max_concurrent: answers that are played at once; later requests wait in the order in which they came.

    Attributes:
        served: the requests so far, in order of arrival.
        in_flight_max: most requests that were being answered at one time.
        connections: connections accepted.
    """

    def __init__(
        self,
        script: Script | Sequence[Script] | ScriptFor,
        *,
        port: int = 0,
        model: str = "scripted",
        version: dict[str, Any] | None = None,
        ready: bool = True,
        metrics: Callable[["ScriptedServer"], str] | None = None,
        max_concurrent: int | None = None,
    ) -> None:
        self._script, self._port, self._model = script, port, model
        self._version, self._ready, self._metrics = version, ready, metrics
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)
        self._started = threading.Event()
        self._listener: socket.socket
        self._loop: asyncio.AbstractEventLoop
        self._stop = asyncio.Event()
        self._attending: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._slots = asyncio.Semaphore(max_concurrent) if max_concurrent else None
        self.served: list[Served] = []
        self.in_flight_max = 0
        self.connections = 0

    @property
    def in_flight(self) -> int:
        """Requests that are being answered now."""
        return self._in_flight

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        """Start; returns when connections are accepted.

        Raises:
            OSError: the port is taken.
        """
        self._listener = socket.create_server(("127.0.0.1", self._port), backlog=1024)
        self._listener.setblocking(False)
        self._port = self._listener.getsockname()[1]
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, dropping every connection; every socket is released by then."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        """Accept without `asyncio.Server`: closed while it accepts, that one leaves the new socket open."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._accept)
        self._started.set()
        await self._stop.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        if self._attending:
            await asyncio.wait(self._attending)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._listener.accept()
            # asyncio does so only where the socket names its protocol, which one of `create_server` does not.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            task = asyncio.create_task(self._attend(connection))
            self._attending.add(task)
            task.add_done_callback(self._attending.discard)

    async def _attend(self, connection: socket.socket) -> None:
        """Hold one conversation, stopped with the server, and release its socket. Never cancelled."""
        peer = HttpPeer(*await asyncio.open_connection(sock=connection))
        conversation = await _run_until(self._stop.wait(), self._converse(peer))
        peer.abort()
        await peer.wait_closed()
        if not conversation.cancelled():
            conversation.result()

    async def _converse(self, peer: HttpPeer) -> None:
        """Answer request after request until one side hangs up."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._answer_next(peer):
                pass
            peer.close()
            await peer.wait_closed()

    async def _answer_next(self, peer: HttpPeer) -> bool:
        head, body = await peer.read_request()
        if (head.method, head.path) == ("POST", "/v1/chat/completions"):
            served = Served(decode_payload(body), head.headers, monotonic_ns())
            return await self._play_watched(served, peer)
        await peer.write(self._answer_other(head))
        return True

    def _answer_other(self, head: RequestHead) -> bytes:
        if head.path == "/health":
            return render_json_response(*((200, {"status": "ready"}) if self._ready else (503, {})))
        if head.path == "/metrics" and self._metrics is not None:
            return render_text_response(self._metrics(self))
        if head.path == "/version" and self._version is not None:
            return render_json_response(200, self._version)
        if head.path == "/v1/models":
            card = {"id": self._model, "object": "model"}
            return render_json_response(200, {"object": "list", "data": [card]})
        return render_json_response(404, {"error": {"message": f"no such path: {head.path}"}})

    async def _play_watched(self, served: Served, peer: HttpPeer) -> bool:
        """Play the script, stopped as soon as the client hangs up."""
        script = self._choose_script(served)
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        try:
            playing = await _run_until(peer.wait_for_hang_up(), self._play(script, served, peer))
        finally:
            self._in_flight -= 1
        served.disconnected = playing.cancelled() or isinstance(playing.exception(), ConnectionError)
        return not served.disconnected and playing.result()

    async def _play(self, script: Script, served: Served, peer: HttpPeer) -> bool:
        """Play the script when a slot is free."""
        async with self._slots or contextlib.nullcontext():
            return await play(script, served, peer)

    def _choose_script(self, served: Served) -> Script:
        index = len(self.served)
        self.served.append(served)
        if isinstance(self._script, Script):
            return self._script
        if callable(self._script):
            return self._script(served.payload or {})
        return self._script[min(index, len(self._script) - 1)]


async def _run_until(end: Coroutine[Any, Any, object], work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
    """Run `work` until it is done or `end` is; return its task, which has ended or is cancelled by then."""
    working, ending = asyncio.create_task(work), asyncio.create_task(end)
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        ending.cancel()
        await asyncio.wait({working, ending})
    return working
