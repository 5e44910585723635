"""Runs the reference engine as a process: socket, model, signals, one line when ready.

The socket is bound before the model is touched, so that a port in use is said at once.
"""

import asyncio
import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from draftproof import __version__
from draftproof.core.errors import UsageError
from draftproof.reference.counters import TraceFile, Tracer
from draftproof.reference.http.app import LoadedEngine, Service, build_app, config_settings
from draftproof.reference.types import EngineConfig
from draftproof.reference.weights.fetch import RECORD_NAME, Progress, file_sha256, quiet, resolve_model

_GRACE_S = 3
WRITE_TIMEOUT_S = 120.0


def serve(
    config: EngineConfig,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_model_name: str | None = None,
    trace: Path | None = None,
    write_timeout_s: float = WRITE_TIMEOUT_S,
    progress: Progress = quiet,
) -> None:
    """Serve until SIGINT or SIGTERM, then return.

    `config`: the engine's settings; an empty `model_path` is the demo's model. `port`: port to listen on, 0
    for any free one; the ready line names it. `served_model_name`: the name clients use; None is the last
    part of the model's path. `trace`: receives a line of JSON for every step (`StepTrace`).
    `write_timeout_s`: how long a client may read nothing of what is sent to it before it counts as gone.
    `progress`: gets how far the fetching of a model is. Raises UsageError: the port is taken, the address is
    not this host's, there is no such model or drafter, or the trace cannot be written;
    EngineError: the model cannot be fetched or loaded.
    """
    listener = bind_socket(host, port)
    with listener, _signals_left_to_the_server(), ExitStack() as stack:
        tracer = None if trace is None else stack.enter_context(closing(TraceFile(trace)))
        folder = resolve_model(config.model_path or None, progress)
        config = msgspec.structs.replace(config, model_path=str(folder))
        _run(config, listener, served_model_name or folder.name, tracer, write_timeout_s)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a bound, not yet listening socket.

    Raises UsageError: the port is taken or the address is not usable.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        # Listening at once turns a second server on the same port away before it loads its model.
        listener.listen(2048)
    except (OSError, OverflowError) as fault:
        listener.close()
        reason = getattr(fault, "strerror", None) or str(fault)
        raise UsageError(
            f"cannot listen there ({reason}).", place=f"{host}:{port}", fix="choose another port with --port."
        ) from fault
    return listener


def _run(
    config: EngineConfig,
    listener: socket.socket,
    name: str,
    tracer: Tracer | None,
    write_timeout_s: float,
) -> None:
    faults: list[BaseException] = []

    def stop_at(fault: BaseException) -> None:
        faults.append(fault)
        server.should_exit = True

    service = Service(
        lambda: start_engine(config, tracer=tracer),
        config,
        name,
        on_ready=lambda settings: _announce(config, settings, listener, name),
        on_fault=stop_at,
    )
    server = _StoppingServer(
        service,
        uvicorn.Config(
            build_app(service),
            lifespan="on",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
            http=protocol_with_write_timeout(write_timeout_s),
        ),
    )
    server.run(sockets=[listener])
    if faults:
        raise faults[0]


async def start_engine(config: EngineConfig, *, tracer: Tracer | None = None) -> LoadedEngine:
    """Load the model, start the engine and describe both.

    The loading thread ends before the first request. OpenMP keeps a team of threads for every thread that has
    computed, and once they are more than the processors it lets them sleep between any two products: a
    second team that is merely alive nearly doubles the time of a pass.
    """
    with ThreadPoolExecutor(max_workers=1) as loader:
        return await asyncio.get_running_loop().run_in_executor(loader, _start_engine, config, tracer)


def _start_engine(config: EngineConfig, tracer: Tracer | None) -> LoadedEngine:
    from draftproof.reference.async_engine import AsyncEngine  # noqa: PLC0415  (torch: seconds to import)
    from draftproof.reference.drafters.loading import choose_drafters, describe_drafters  # noqa: PLC0415
    from draftproof.reference.engine import load_engine  # noqa: PLC0415

    engine = load_engine(config, tracer=tracer)
    engine.warm_grammars()
    backend = AsyncEngine(engine)
    backend.start()
    settings = (
        describe(config)
        | describe_drafters(choose_drafters(config))
        | {
            "kernels": engine.target.kernels_name,
            "openmp.spincount": os.environ.get("GOMP_SPINCOUNT"),
        }
    )
    return LoadedEngine(backend, engine.target.tokenizer, settings)


def describe(config: EngineConfig) -> dict[str, str | int | float | bool | None]:
    """Return the settings this process runs with: configuration, threads, hashes, library versions."""
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    folder = Path(config.model_path)
    return config_settings(config) | {
        "num_threads": torch.get_num_threads(),
        "model.name": folder.name,
        "model.sha256": _weights_sha256(folder),
        "tokenizer.sha256": file_sha256(folder / "tokenizer.json"),
        "engine.version": __version__,
        "torch.version": str(torch.__version__),
        "transformers.version": transformers.__version__,
    }


def _weights_sha256(folder: Path) -> str:
    """Return the hash of the one weights file, or of the list of hashes where the weights are in several."""
    record = folder / RECORD_NAME
    if record.is_file():
        # resolve_model has just compared every file with this record.
        return str(msgspec.json.decode(record.read_bytes())["files"]["model.safetensors"])
    hashes = [file_sha256(path) for path in sorted(folder.glob("*.safetensors"))]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _announce(config: EngineConfig, settings: Mapping[str, Any], listener: socket.socket, name: str) -> None:
    """Print the ready line: where, what model, in which arithmetic, how it speculates by default."""
    host, port = listener.getsockname()[:2]
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    method, count = config.speculation.method, config.speculation.num_spec_tokens
    policy = config.speculation.policy
    speculation = "off" if method == "off" else f"{method}, {count} tokens, {policy}"
    arithmetic = f"{config.dtype}, {settings.get('kernels')} kernels"
    sys.stdout.write(
        f"draftproof {__version__} ready at {where}: {name}, {arithmetic}, speculation {speculation}\n"
    )
    sys.stdout.flush()


@contextmanager
def _signals_left_to_the_server() -> Iterator[None]:
    """Make a stop signal end `serve` by returning.

    The HTTP server stops on SIGINT and SIGTERM and then raises the signal again for whoever started it;
    this handler is whoever started it. Before the server runs, the same handler interrupts the loading.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _StopServing:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _StoppingServer(uvicorn.Server):
    """Stops the engine before it waits for connections, so that open streams end at once and say why."""

    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop the engine, then the server."""
        await self._service.stop()
        await super().shutdown(sockets)


def protocol_with_write_timeout(timeout_s: float) -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP protocol, made to cut a connection that takes nothing for `timeout_s`.

    What was generated for a client waits in this process until the client reads it. The transport says when
    it holds more than it likes and when the client has caught up; a client that does not in time gets its
    connection cut, and with it ends its request.
    """

    class ImpatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # chosen at run time
        _cut: asyncio.TimerHandle | None = None

        def pause_writing(self) -> None:
            super().pause_writing()
            self._cut = self._cut or self._cut_later()

        def resume_writing(self) -> None:
            super().resume_writing()
            self._wait_no_longer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._wait_no_longer()
            super().connection_lost(exc)

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()  # closes, which waits for the client to read the rest
            self._cut = self._cut or self._cut_later()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._cut = self._cut or self._cut_later()

        def _cut_later(self) -> asyncio.TimerHandle:
            return self.loop.call_later(timeout_s, self.transport.abort)  # type: ignore[no-any-return]

        def _wait_no_longer(self) -> None:
            if self._cut is not None:
                self._cut.cancel()
                self._cut = None

    return ImpatientProtocol


class _StopServing(BaseException):
    """A stop signal arrived."""


def _interrupt(_number: int, _frame: Any) -> None:
    raise _StopServing
