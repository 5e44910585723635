"""The floor of a host: how late the barest reader reads here, so that a bad host is told from a bad client.

One thread, one selector, plain sockets, the clock read after each read; nothing is parsed. What it is late by
is what this machine does to any client that reads its own clock: other programs, the hypervisor, wake-ups.
"""

import selectors
import socket
import time

import numpy as np

from draftproof.clock import monotonic_ns
from draftproof.metrics.client_error import NS_PER_MS, ErrorSpread, TrueAnswer
from draftproof.metrics.percentiles import percentile

_EVENT_END = b"\n\n\r\n"  # of an event in its HTTP chunk, as the server of known timing writes it
_ANSWER_END = b"0\r\n\r\n"
_PATIENCE_S = 60.0


def read_bare(port: int, streams: int, stagger_s: float) -> dict[str, list[int]]:
    """Ask for one answer on each of `streams` connections; return when its events were read, by request text.

    An answer that did not come whole within a minute is left out.
    """
    arrivals: dict[str, list[int]] = {f"floor{index}": [] for index in range(streams)}
    whole: dict[str, list[int]] = {}
    with selectors.DefaultSelector() as selector:
        starts = [
            (monotonic_ns() + round(1e9 * stagger_s * index), text) for index, text in enumerate(arrivals)
        ]
        until_ns = monotonic_ns() + round(1e9 * (_PATIENCE_S + stagger_s * streams))
        while len(whole) < streams and monotonic_ns() < until_ns:
            while starts and starts[0][0] <= monotonic_ns():
                _, text = starts.pop(0)
                selector.register(_ask(port, text), selectors.EVENT_READ, text)
            wait_s = (starts[0][0] - monotonic_ns()) / 1e9 if starts else 1.0
            for key, _ in selector.select(max(wait_s, 0.0)):
                if _read(key.fileobj, arrivals[key.data]):  # type: ignore[arg-type]
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    whole[key.data] = arrivals[key.data]
    return whole


def compute_floor(arrivals: dict[str, list[int]], truth: list[TrueAnswer]) -> ErrorSpread:
    """Return the errors of the gaps between reads; None where nothing can be compared."""
    written = {answer.text: answer.written_ns for answer in truth}
    errors_ns: list[float] = []
    for text, read_ns in arrivals.items():
        content = written.get(text, ())
        if len(read_ns) > len(content) > 1:  # what is read beyond the content is the answer's closing events
            errors_ns.extend(np.abs(np.diff(read_ns[: len(content)]) - np.diff(content)).tolist())
    p50, p99 = percentile(errors_ns, 0.50), percentile(errors_ns, 0.99)
    return ErrorSpread(
        p50=None if p50 is None else p50 / NS_PER_MS,
        p99=None if p99 is None else p99 / NS_PER_MS,
        n=len(errors_ns),
    )


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
