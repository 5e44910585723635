"""One profile of load on the client beside a server that knows when it wrote each chunk.

The client is the one that measures: the same loop, transport, parser and fold. The server is a process of its
own (`paced_server.py`). With two cores or more each has one to itself, so that the capacity found is that of
one load process on one core.

The floor of a host is how late the barest reader reads here, so that a bad host is distinguished from a bad
client: one thread, one selector, plain sockets, the clock read after each read; nothing is parsed. What it is
late by is what this machine does to any client that reads its own clock: other programs, the hypervisor,
wake-ups.
"""

import asyncio
import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import psutil
import uvloop

from draftproof.core.clock import NS_PER_MS, NS_PER_S, monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.judge.metrics.client_error import ErrorSpread, TrueAnswer
from draftproof.judge.metrics.service import percentile
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.loops import run
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink, RequestRunner
from draftproof.measure.selfcheck.client_fitness import Stretch, make_stretch
from draftproof.measure.selfcheck.paced_server import Pace
from draftproof.workload.items import Item, Message

_EVENT_END = b"\n\n\r\n"  # of an event in its HTTP chunk, as the server of known timing writes it
_ANSWER_END = b"0\r\n\r\n"
_PATIENCE_S = 60.0
_MOST_TOKENS = 6400
_TTFT_S = 0.02
_LEAST_REQUESTS_A_STREAM = 3


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of load: how chunks come and how many of them.

    `tokens` of each chunk in turn, `coalesce` events in one write, `split` each write in two pieces, `chunks`
    of an answer, `acceptance` counts at its end; `streams` open at once, `chunks_per_s` over all of them,
    `seconds` of steady load.
    """

    name: str
    tokens: tuple[int, ...] = (1,)
    coalesce: int = 1
    split: bool = False
    chunks: int = 64
    acceptance: bool = False
    streams: int = 64
    chunks_per_s: float = 2000.0
    seconds: float = 4.0

    @property
    def pace(self) -> Pace:
        """What the server gets."""
        return Pace(
            ttft_ns=round(_TTFT_S * NS_PER_S),
            gap_ns=round(self.gap_s * NS_PER_S),
            chunks=self.chunks,
            tokens=self.tokens,
            coalesce=self.coalesce,
            split=self.split,
            acceptance=self.acceptance,
        )

    @property
    def gap_s(self) -> float:
        """Seconds between two chunks of a stream at the offered rate, the wait for the first one counted."""
        return max(self.answer_s - _TTFT_S, 0.0) / (self.chunks - 1)

    @property
    def answer_s(self) -> float:
        """Seconds that an answer takes when the client keeps up."""
        return self.streams * self.chunks / self.chunks_per_s

    @property
    def stagger_s(self) -> float:
        """Seconds between the starts of two streams."""
        return self.answer_s / self.streams

    @property
    def requests(self) -> int:
        """Requests for a ramp, the steady seconds and an end."""
        answers = max(self.seconds / self.answer_s, 1.0) + _LEAST_REQUESTS_A_STREAM - 1
        return round(self.streams * answers)


def run_profile(profile: Profile) -> Stretch:
    """Drive one profile and return what was read against what was written.

    Raises EngineError: the server of known timing did not start.
    """
    names = [f"r{index}" for index in range(profile.requests)]
    settings = LoadSettings(stagger_s=profile.stagger_s)
    with serving(profile.pace) as port, _on_own_core():
        before_s = time.process_time()
        url = f"http://127.0.0.1:{port}"
        records, block = uvloop.run(ask_all(profile.name, url, names, profile.streams, settings))
        cpu_s = time.process_time() - before_s
        truth = fetch_truth(port)
    return make_stretch(
        profile.name,
        records,
        truth,
        block,
        streams=profile.streams,
        offered_chunks_per_s=profile.chunks_per_s,
        cpu_s=cpu_s,
    )


async def ask_all(
    load: str, url: str, names: Sequence[str], concurrency: int, settings: LoadSettings
) -> tuple[list[RequestRecord], BlockRecord]:
    """Ask each name, by which the server's answer is found again, in one period of a closed loop."""
    items = {
        name: Item(
            id=name, messages=(Message(role="user", content=name),), segments={}, max_tokens=_MOST_TOKENS
        )
        for name in names
    }
    period = Period(
        block=0,
        load=load,
        concurrency=concurrency,
        repeat=0,
        arm="baseline",
        order=0,
        item_ids=tuple(names),
    )
    endpoint = Endpoint(url=url, served_model="paced", engine="generic")
    transport, sink = HttpTransport(), MemorySink()
    try:
        block = await run(
            RequestRunner(period, endpoint, items, transport=transport, sink=sink, settings=settings)
        )
        return sink.records, block
    finally:
        await transport.close()
        await asyncio.sleep(0)


def measure_floor(profile: Profile) -> ErrorSpread:
    """Return the gap errors of the barest reader at one answer a stream of a profile.

    Raises EngineError: the server of known timing did not start.
    """
    with serving(profile.pace) as port, _on_own_core():
        arrivals = _read_bare(port, profile.streams, profile.stagger_s)
        return _compute_floor(arrivals, fetch_truth(port))


def _read_bare(port: int, streams: int, stagger_s: float) -> dict[str, list[int]]:
    """Ask for one answer on each of `streams` connections; return when its events were read, by request text.

    An answer that did not come whole within a minute is left out.
    """
    arrivals: dict[str, list[int]] = {f"floor{index}": [] for index in range(streams)}
    whole: dict[str, list[int]] = {}
    with selectors.DefaultSelector() as selector:
        starts = [
            (monotonic_ns() + round(NS_PER_S * stagger_s * index), text)
            for index, text in enumerate(arrivals)
        ]
        until_ns = monotonic_ns() + round(NS_PER_S * (_PATIENCE_S + stagger_s * streams))
        while len(whole) < streams and monotonic_ns() < until_ns:
            while starts and starts[0][0] <= monotonic_ns():
                _, text = starts.pop(0)
                selector.register(_ask(port, text), selectors.EVENT_READ, text)
            wait_s = (starts[0][0] - monotonic_ns()) / NS_PER_S if starts else 1.0
            for key, _ in selector.select(max(wait_s, 0.0)):
                if _read(key.fileobj, arrivals[key.data]):  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    whole[key.data] = arrivals[key.data]
    return whole


def _compute_floor(arrivals: dict[str, list[int]], truth: list[TrueAnswer]) -> ErrorSpread:
    """Return the errors of the gaps between reads; None where nothing can be compared."""
    written = {answer.text: answer.written_ns for answer in truth}
    errors_ms: list[float] = []
    for text, read_ns in arrivals.items():
        content = written.get(text, ())
        if len(read_ns) > len(content) > 1:  # what is read beyond the content is the answer's closing events
            errors_ns = np.abs(np.diff(read_ns[: len(content)]) - np.diff(content))
            errors_ms.extend((errors_ns / NS_PER_MS).tolist())
    return ErrorSpread(p50=percentile(errors_ms, 0.50), p99=percentile(errors_ms, 0.99), n=len(errors_ms))


def _ask(port: int, text: str) -> socket.socket:
    body = b'{"messages":[{"role":"user","content":"%s"}]}' % text.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: floor\r\nContent-Length: %d\r\n\r\n" % len(body)
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(head + body)
    return sock


def _read(sock: socket.socket, arrivals: list[int]) -> bool:
    """Note the events of one read; True when the answer is over."""
    data = sock.recv(65_536)
    at_ns = time.monotonic_ns()
    arrivals.extend([at_ns] * data.count(_EVENT_END))
    return not data or data.endswith(_ANSWER_END)


@contextlib.contextmanager
def serving(pace: Pace) -> Iterator[int]:
    """Yield the port of a server process, which has the first core to itself; it is gone afterwards.

    Raises EngineError: it did not start.
    """
    encoded = msgspec.json.encode(pace).decode()
    command = [sys.executable, "-m", "draftproof.measure.selfcheck.paced_server", "--pace", encoded]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: S603 - our own module
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            port = server.stdout.readline().strip()
            if not port:
                raise EngineError("the server of known timing did not start.")
            _pin(server.pid, 0)
            yield int(port)
        finally:
            server.terminate()


def fetch_truth(port: int) -> list[TrueAnswer]:
    """Return what the server on `port` wrote so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/truth") as answer:
        return msgspec.json.decode(answer.read(), type=list[TrueAnswer])


@contextlib.contextmanager
def _on_own_core() -> Iterator[None]:
    """Keep this process off the server's core while entered."""
    cores = sorted(os.sched_getaffinity(0))
    _pin(os.getpid(), 1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _pin(pid: int, place: int) -> None:
    """Keep a process on one of the cores that this one may use, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        with contextlib.suppress(psutil.Error, OSError):
            os.sched_setaffinity(pid, {cores[place]})
