"""An OpenAI-compatible server that writes tens of thousands of chunks a second and knows when it wrote each.

One thread, plain sockets, no event loop: between two writes it looks at the clock and at its sockets, so that
a chunk leaves within microseconds of its time and the time it left is its own reading, on the clock that the
client reads too. It burns a core while streams are open. Every answer is known in advance; for scripted
faults see `faults.py`.
"""

import argparse
import heapq
import selectors
import signal
import socket
import sys
from array import array
from collections.abc import Iterator
from typing import Any

import msgspec

from draftproof.core.clock import NS_PER_S, monotonic_ns
from draftproof.judge.metrics.client_error import TrueAnswer
from draftproof.measure.client.arrival import STAMP_SPACE, ask_for_stamps, waited_ns
from draftproof.workload.arm_orders import hash_number

_SPIN_NS = 2_000_000  # with nothing due sooner than this the server sleeps in its selector
_POLL_EVERY = 8  # writes after which sockets are looked at, however much is due
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer looks like.

    `tokens`: tokens of each content chunk, in turn. `coalesce`: events in one write. `split`: each write goes
    out in two pieces, the second `split_ns` after the first. `jitter`: gaps are drawn between 1 − jitter and
    1 + jitter times `gap_ns`, by the request's text and the chunk's index alone. `acceptance`: the closing
    chunk has a `metrics` block with the counts of drafts, one verification step a chunk; below the path
    /plain, for an arm that does not speculate, it has none.
    """

    ttft_ns: int = 20_000_000
    gap_ns: int = 12_000_000
    chunks: int = 64
    tokens: tuple[int, ...] = (1,)
    coalesce: int = 1
    split: bool = False
    split_ns: int = 300_000
    jitter: float = 0.5
    acceptance: bool = False


class _Message(msgspec.Struct):
    content: Any  # a text, or the list of parts that some clients send


class _Ask(msgspec.Struct):
    messages: list[_Message]

    @property
    def text(self) -> str:
        """The last message's text; one part of it where it has several."""
        content = self.messages[-1].content
        return content if isinstance(content, str) else str(content[0].get("text"))


class _Stream:
    """One connection and the answer it is being given."""

    __slots__ = ("generation", "inbox", "index", "pending", "salt", "sock", "tail", "tokens", "truth")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.inbox = self.tail = b""
        self.generation = 0
        self.pending: list[tuple[int, bytes, bool]] = []
        self.salt = self.index = self.tokens = 0
        self.truth = _Truth("", 0)


class _Truth:
    """What is noted of an answer while it is written."""

    __slots__ = ("counts", "received_ns", "text", "written_ns")

    def __init__(self, text: str, received_ns: int) -> None:
        self.text, self.received_ns = text, received_ns
        self.written_ns, self.counts = array("q"), array("q")


class PacedServer:
    """Serves until `stop`; `port` is bound at construction."""

    def __init__(self, pace: Pace, port: int = 0) -> None:
        self._pace = pace
        self._listener = socket.create_server(("127.0.0.1", port), backlog=16_384)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._due: list[tuple[int, int, int, _Stream]] = []
        self._answers: list[_Truth] = []
        self._order = 0
        self._running = True
        # Every content chunk as the bytes of one HTTP chunk, with continuous usage.
        self._events = [_render(index, count) for index, count in enumerate(_cumulate(pace))]
        self._tail = _render_tail(pace)
        self._plain_tail = _render_tail(msgspec.structs.replace(pace, acceptance=False))

    def stop(self) -> None:
        """End `serve` soon."""
        self._running = False

    def serve(self) -> None:
        """Answer until stopped, then close every socket."""
        writes = 0
        while self._running:
            now_ns = monotonic_ns()
            if self._due and self._due[0][0] <= now_ns:
                self._write_next()
                writes += 1
                if writes % _POLL_EVERY:
                    continue
            wait_ns = self._due[0][0] - now_ns if self._due else NS_PER_S // 20
            self._poll(max(wait_ns - _SPIN_NS, 0) / NS_PER_S)
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)

    def _poll(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
            else:
                self._read(key.data)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask_for_stamps(sock)
            self._selector.register(sock, selectors.EVENT_READ, _Stream(sock))

    def _drop(self, sock: object) -> None:
        self._selector.unregister(sock)  # type: ignore[arg-type]
        sock.close()  # type: ignore[attr-defined]

    def _read(self, stream: _Stream) -> None:
        try:
            data, stamps, _, _ = stream.sock.recvmsg(65_536, STAMP_SPACE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            stream.generation += 1  # what is still due to this stream is let go
            self._drop(stream.sock)
            return
        stream.inbox += data
        head, border, rest = stream.inbox.partition(b"\r\n\r\n")
        length = _content_length(head)
        if border and len(rest) >= length:
            stream.inbox = rest[length:]
            self._begin(stream, head, rest[:length], monotonic_ns() - waited_ns(stamps))

    def _begin(self, stream: _Stream, head: bytes, body: bytes, received_ns: int) -> None:
        """Answer a request: the truth of all answers so far, the list of models, or a stream."""
        path = head.split(b" ", 2)[1]
        if path == b"/truth":
            self._answer(stream, msgspec.json.encode([_freeze(one) for one in self._answers]))
        elif path.endswith(b"/chat/completions"):
            stream.tail = self._plain_tail if path.startswith(b"/plain/") else self._tail
            text = msgspec.json.decode(body, type=_Ask).text
            self._start(stream, text, received_ns)
        else:
            self._answer(stream, b'{"object":"list","data":[{"id":"paced","object":"model"}]}')

    def _start(self, stream: _Stream, text: str, received_ns: int) -> None:
        stream.generation += 1
        stream.salt, stream.index, stream.tokens = hash_number(text) % 65_521, 0, 0
        stream.truth = _Truth(text, received_ns)
        self._answers.append(stream.truth)
        self._push(received_ns + self._pace.ttft_ns, stream)

    def _answer(self, stream: _Stream, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        stream.sock.setblocking(True)
        stream.sock.sendall(head + body)
        stream.sock.setblocking(False)

    def _push(self, due_ns: int, stream: _Stream) -> None:
        self._order += 1
        heapq.heappush(self._due, (due_ns, self._order, stream.generation, stream))

    def _write_next(self) -> None:
        due_ns, _, generation, stream = heapq.heappop(self._due)
        if generation != stream.generation:
            return
        if stream.pending:
            self._send(stream, *stream.pending.pop())
            self._follow(due_ns, stream)
            return
        first, pace = stream.index, self._pace
        last = min(first + pace.coalesce, pace.chunks)
        data = (_HEAD if first == 0 else b"") + b"".join(self._events[first:last])
        stream.index = last
        if last == pace.chunks:
            data += stream.tail
        if pace.split:
            half = len(data) // 2
            stream.pending = [(last - first, data[half:], True)]
            self._send(stream, 0, data[:half], is_last=False)
            self._push(due_ns + pace.split_ns, stream)
            return
        self._send(stream, last - first, data, is_last=True)
        self._follow(due_ns, stream)

    def _follow(self, due_ns: int, stream: _Stream) -> None:
        if stream.index < self._pace.chunks:
            self._push(due_ns + self._gap_ns(stream), stream)

    def _gap_ns(self, stream: _Stream) -> int:
        pace = self._pace
        # A number in [0, 1) that depends on the request and the chunk, cheap enough for every chunk.
        fraction = (stream.salt * 31 + stream.index * 40_503) % 65_536 / 65_536
        swing = pace.jitter * (2 * fraction - 1)
        return round(pace.coalesce * pace.gap_ns * (1 + swing))

    def _send(self, stream: _Stream, events: int, data: bytes, is_last: bool) -> None:  # noqa: FBT001 - unpacked
        """Write and note the time just before: a byte cannot be read before it is written."""
        at_ns = monotonic_ns()
        try:
            sent = stream.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            stream.generation += 1
            return
        if sent < len(data):  # a slow reader: wait for it, and the truth is when the last byte went
            at_ns = _send_rest(stream.sock, data[sent:])
        if is_last:
            truth, tokens = stream.truth, self._pace.tokens
            for index in range(stream.index - events, stream.index):
                stream.tokens += tokens[index % len(tokens)]
                truth.written_ns.append(at_ns)
                truth.counts.append(stream.tokens)


def _send_rest(sock: socket.socket, rest: bytes) -> int:
    sock.setblocking(True)
    at_ns = monotonic_ns()
    try:
        sock.sendall(rest)
    except OSError:
        return at_ns
    finally:
        sock.setblocking(False)
    return at_ns


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _freeze(truth: _Truth) -> TrueAnswer:
    return TrueAnswer(
        text=truth.text,
        received_ns=truth.received_ns,
        written_ns=tuple(truth.written_ns),
        cumulative_tokens=tuple(truth.counts),
    )


def _render_tail(pace: Pace) -> bytes:
    """Return how an answer ends: the closing chunk with the whole usage, for clients that read no other."""
    *_, total = _cumulate(pace)
    metrics = {"metrics": _acceptance(pace)} if pace.acceptance else {}
    return _frame({"choices": [], "usage": _usage(total), **metrics}) + _DONE


def _acceptance(pace: Pace) -> dict[str, Any]:
    """Return the counts of an answer each of whose chunks but the first is a step of the longest draft."""
    accepted = [pace.tokens[index % len(pace.tokens)] - 1 for index in range(1, pace.chunks)]
    longest = max(pace.tokens)
    return {
        "speculative_decoding": {
            "num_spec_steps": len(accepted),
            "num_draft_tokens": longest * len(accepted),
            "num_accepted_draft_tokens": sum(accepted),
            "acceptance_histogram": [accepted.count(count) for count in range(longest + 1)],
            "per_step_drafted": [longest] * len(accepted),
            "per_step_accepted": accepted,
        }
    }


def _cumulate(pace: Pace) -> Iterator[int]:
    total = 0
    for index in range(pace.chunks):
        total += pace.tokens[index % len(pace.tokens)]
        yield total


def _render(index: int, cumulative: int) -> bytes:
    choice = {"index": 0, "delta": {"content": f" word{index}"}, "finish_reason": None}
    return _frame({"choices": [choice], "usage": _usage(cumulative)})


def _usage(cumulative: int) -> dict[str, int]:
    return {"prompt_tokens": 20, "completion_tokens": cumulative, "total_tokens": 20 + cumulative}


def _frame(said: dict[str, Any]) -> bytes:
    """Return one event as the bytes of one HTTP chunk."""
    body = {"id": "chatcmpl-paced", "object": "chat.completion.chunk", "created": 1, "model": "paced", **said}
    event = b"data: " + msgspec.json.encode(body) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(event), event)


def main() -> int:
    """Serve in a process of its own; prints the port as its first line, ends with SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m draftproof.measure.selfcheck.paced_server")
    parser.add_argument("--pace", default="{}", help="a Pace as JSON")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    server = PacedServer(msgspec.json.decode(arguments.pace, type=Pace), arguments.port)

    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
