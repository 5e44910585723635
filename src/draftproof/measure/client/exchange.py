"""From the bytes of one response to its outcome and answer, without I/O.

Owns the decision which of the seven outcomes a request had. The reading of an event's content belongs to
the engine's adapter, time and sockets to the transport.

Whether a body is compressed, by what its headers say and by its first bytes. Pure.

A compressed stream is never unpacked: the packer holds bytes back, so that the time at which a token arrived
says nothing about when it was sent.

The seam between a request and the network: what is sent, what is heard, how it ended.

A transport turns a `WireRequest` into calls on a `Listener` and one `Ending`. The real one speaks HTTP/1.1
(`transport.py`); the one for tests plays a script (tests/builders/transport.py).
"""

import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Protocol

import msgspec

from draftproof.core.errors import EngineError
from draftproof.core.records import Outcome
from draftproof.measure.client.sse import SseDecoder, SseEvent
from draftproof.services.engines.protocol import Answer, AnswerFold, FrameError

EndKind = Literal["complete", "broken", "unreachable", "not_http", "timeout", "cancelled"]
# Headers of a response that explain why it is not the stream that was asked for.
KEPT_HEADERS = ("content-encoding", "location", "retry-after")
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST: absolute URL, extra headers, body."""

    url: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How an exchange ended and when.

    `complete`: the response ended as its framing says, or the listener had all it wanted. `broken`: the
    connection was lost before. `unreachable`: there never was one. `not_http`: the bytes are not an HTTP
    response. `connect_ns`: time that a new connection took before the request was sent, None on a kept one.
    `is_stamped`: whether the kernel says when the answer arrived, and not the clock as it was read.
    """

    kind: EndKind
    at_ns: int
    detail: str | None = None
    connect_ns: int | None = None
    is_stamped: bool = True


class Listener(Protocol):
    """Hears one response as it arrives. Times are those of the transport's clock."""

    @property
    def finished(self) -> bool:
        """True once nothing more is wanted; the transport then ends the exchange at once."""
        ...

    @property
    def may_wait(self) -> bool:
        """False where what was read must be passed on at once, and not in batches, which cost less."""
        ...

    def on_connecting(self, at_ns: int) -> None:
        """A new connection is being made for the request."""
        ...

    def on_connected(self, at_ns: int) -> None:
        """The new connection stands, its handshake included."""
        ...

    def on_sent(self, at_ns: int) -> None:
        """The last byte of the request was handed to the socket; of a request made anew the last word."""
        ...

    def on_headers(
        self, status: int, content_type: str, at_ns: int, further: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """The final response's headers are complete; `content_type` is lower case, "" if absent.

        `further` holds those of `KEPT_HEADERS` that are present, names in lower case.
        """
        ...

    def on_body(self, data: bytes, at_ns: int) -> None:
        """Bytes of the body, as one read of the socket brought them."""
        ...

    def on_frames(self, frames: Sequence[bytes], times_ns: Sequence[int]) -> None:
        """Stands for calls of `on_body` with a whole event of one line each, of which these are the data."""
        ...


class Transport(Protocol):
    """Carries one request at a time per call; calls may overlap."""

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        """Send, tell the listener what arrives, return how it ended. Being cancelled drops the connection."""
        ...

    async def close(self) -> None:
        """Drop every connection."""
        ...


# First bytes of gzip (RFC 1952, 2.3.1) and Zstandard (RFC 8878, 3.1.1): no event stream begins so.
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))
LONGEST_MAGIC = max(len(magic) for magic, _ in _MAGIC)


def describe_packing(content_encoding: str, head: bytes) -> str | None:
    """Return how a body is compressed, as a phrase, None where nothing says that it is.

    `content_encoding` is the header's value, "" if absent; `head` the body's first bytes.
    """
    named = [name.strip().lower() for name in content_encoding.split(",")]
    packed = [name for name in named if name not in {"", "identity"}]
    if packed:
        return f"compressed ({', '.join(packed)})"
    found = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    return None if found is None else f"compressed ({found}, which its headers do not say)"


RAW_LIMIT_BYTES = 2048  # kept of a malformed frame or an error body; the rest is dropped
END_MARKER = b"[DONE]"
_EVENT = b"data: %b\n\n"
_OBJECT = b"{"  # how nearly every event begins
REJECTED_STATUSES = (429, 503)
_MAX_STRAY_LINES_SHOWN = 3


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request from its sending to its end: what was heard, and what to call it."""

    outcome: Outcome
    sent_ns: int | None
    headers_ns: int | None
    end_ns: int
    http_status: int | None
    error: str | None
    malformed_raw: str | None
    answer: Answer
    warnings: tuple[str, ...]
    connect_ns: int | None = None


class ExchangeFold:
    """A `Listener` that folds a response; `close` turns it into an `Exchange`.

    `may_wait`: False where somebody follows the answer as it comes.
    """

    def __init__(self, answer: AnswerFold, *, may_wait: bool = True) -> None:
        self._answer, self.may_wait = answer, may_wait
        self._decoder = SseDecoder()
        self._connecting_ns: int | None = None
        self._connected_ns: int | None = None
        self._sent_ns: int | None = None
        self._headers_ns: int | None = None
        self._status: int | None = None
        self._content_type = ""
        self._further: Mapping[str, str] = NO_HEADERS
        self._packing: str | None = None
        self._is_head_open = True  # what the body is packed in is not known yet, or it is packed
        self._is_stream = False
        self._done_ns: int | None = None
        self._head = self._body = b""
        self._malformed: str | None = None
        self._malformed_raw: bytes | None = None
        self._unreadable = False
        self._stream_error: str | None = None

    @property
    def finished(self) -> bool:
        """True after the end marker, and when nothing that follows could be read."""
        return self._done_ns is not None or self._unreadable

    def on_connecting(self, at_ns: int) -> None:
        """Keep when connecting began; what was sent before on a closed connection was not taken."""
        self._connecting_ns, self._sent_ns = at_ns, None

    def on_connected(self, at_ns: int) -> None:
        """Keep when the connection stood."""
        self._connected_ns = at_ns

    def on_sent(self, at_ns: int) -> None:
        """Keep when the request had left."""
        self._sent_ns = at_ns

    def on_headers(
        self, status: int, content_type: str, at_ns: int, further: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Keep the status; only a successful event stream is decoded."""
        self._status, self._headers_ns, self._content_type = status, at_ns, content_type
        if (
            self._sent_ns is not None
        ):  # an answer shows that the request had left, whenever we came to note it
            self._sent_ns = min(self._sent_ns, at_ns)
        self._further = further
        self._is_stream = 200 <= status < 300 and content_type.startswith("text/event-stream")

    def on_body(self, data: bytes, at_ns: int) -> None:
        """Decode a stream; of any other body keep the head. What is compressed is not read."""
        if self._is_head_open and self._is_packed(data):
            return
        if not self._is_stream:
            self._body += data[: max(0, RAW_LIMIT_BYTES - len(self._body))]
            return
        try:
            events = self._decoder.feed(data)
        except EngineError as error:
            self._unreadable = True
            self._note_malformed(error.message.rstrip("."), data)
            return
        for event in events:
            self._take_event(event, at_ns)

    def on_frames(self, frames: Sequence[bytes], times_ns: Sequence[int]) -> None:
        """Take events past the decoder, where that is between two of them."""
        if self._is_stream and self._decoder.is_between and not self.finished:
            with contextlib.suppress(FrameError):  # none was taken; one by one shows which one is at fault
                self._answer.add_all(frames, times_ns)
                return
        for frame, at_ns in zip(frames, times_ns, strict=True):
            self.on_body(_EVENT % frame, at_ns)

    def close(self, ending: Ending) -> Exchange:
        """Return the exchange, given how it ended."""
        self._take_leftover(ending.at_ns)
        answer = self._answer.finish()
        outcome, error = self._decide(ending, answer)
        raw, stray = self._malformed_raw, self._decoder.stray_lines[:_MAX_STRAY_LINES_SHOWN]
        shown = (f"line outside the event-stream format: {show_bytes(line)}" for line in stray)
        return Exchange(
            outcome=outcome,
            sent_ns=self._sent_ns,
            headers_ns=self._headers_ns,
            end_ns=ending.at_ns if self._done_ns is None else self._done_ns,
            http_status=self._status,
            error=error,
            malformed_raw=None if raw is None else show_bytes(raw),
            answer=answer,
            warnings=(*answer.warnings, *shown),
            connect_ns=self._connect_ns(ending),
        )

    def _connect_ns(self, ending: Ending) -> int | None:
        """Return the time that connecting took, up to the end of a request that ended meanwhile."""
        if self._connecting_ns is None or ending.connect_ns is not None:
            return ending.connect_ns
        return (self._connected_ns or ending.at_ns) - self._connecting_ns

    def _is_packed(self, data: bytes) -> bool:
        """Look at the first bytes, however few of them a packet brings."""
        if self._packing is None:
            self._head = (self._head + data)[:LONGEST_MAGIC]
            self._packing = describe_packing(self._further.get("content-encoding", ""), self._head)
            self._unreadable = self._packing is not None and self._is_stream
            self._is_head_open = self._packing is not None or len(self._head) < LONGEST_MAGIC
        return self._packing is not None

    def _take_event(self, event: SseEvent, at_ns: int) -> None:
        if self.finished:
            return
        if event.event == "message" and event.data.startswith(_OBJECT):
            self._take_frame(event.data, at_ns)
            return
        data = event.data.strip()
        if not data:  # an event without data is a keep-alive
            return
        if data == END_MARKER:
            self._done_ns = at_ns
        elif event.event == "error":
            self._stream_error = self._stream_error or show_bytes(data)
        else:
            self._take_frame(event.data, at_ns)

    def _take_frame(self, data: bytes, at_ns: int) -> None:
        """A bad frame fails the request but not the reading: later frames are still kept."""
        try:
            self._answer.add(data, at_ns)
        except FrameError as error:
            self._note_malformed(str(error), data)

    def _take_leftover(self, at_ns: int) -> None:
        """What the stream ended inside of: an end marker still counts, anything else is kept as raw bytes."""
        rest = self._decoder.flush()
        if rest is None or self.finished:
            return
        if rest.data.strip() == END_MARKER:
            self._done_ns = at_ns
        elif self._malformed_raw is None:
            self._malformed_raw = rest.data

    def _note_malformed(self, reason: str, data: bytes) -> None:
        if self._malformed is None:
            self._malformed, self._malformed_raw = reason, data

    def _decide(self, ending: Ending, answer: Answer) -> tuple[Outcome, str | None]:
        if ending.kind == "cancelled":
            return "cancelled", ending.detail
        if ending.kind == "timeout":
            return "timeout", ending.detail
        if ending.kind == "not_http":
            return "malformed", ending.detail
        if self._status is None:
            return "http_error", ending.detail or "the connection was lost before the response began"
        if not 200 <= self._status < 300:
            return self._decide_refused(self._status)
        return self._decide_stream(ending, answer)

    def _decide_refused(self, status: int) -> tuple[Outcome, str]:
        said = show_bytes(self._body) or "no reason given"
        if self._packing is not None:
            said = f"a body {self._packing}, which is not read"
        if 300 <= status < 400 and "location" in self._further:
            said = f"the service redirects to {self._further['location']}, which is not followed"
        elif "retry-after" in self._further:
            said += f" (Retry-After: {self._further['retry-after']})"
        return ("rejected" if status in REJECTED_STATUSES else "http_error"), f"HTTP {status}: {said}"

    def _decide_stream(self, ending: Ending, answer: Answer) -> tuple[Outcome, str | None]:
        stream_error = self._stream_error or answer.stream_error
        if stream_error is not None:
            kind: Outcome = "rejected" if answer.is_refused else "http_error"
            return kind, f"error event in the stream: {stream_error}"
        unreadable = self._explain_unreadable()
        if unreadable is not None:
            return "malformed", unreadable
        if self._done_ns is None:
            return "cut", ending.detail or "the stream ended without its end marker [DONE]"
        if not answer.chunks and answer.finish_reason is None:
            return "malformed", "the stream carries neither a token nor a finish reason"
        return "ok", None

    def _explain_unreadable(self) -> str | None:
        """Return what makes a successful response no stream that can be read."""
        if self._packing is not None:
            return (
                f"the response is {self._packing} although it was asked not to be, as a proxy does: when a "
                "token arrived cannot be told"
            )
        if not self._is_stream:
            self._malformed_raw = self._malformed_raw or self._body
            stated = self._content_type.partition(";")[0] or "of no stated type"
            return f"the response is not an event stream but {stated}"
        return self._malformed


def show_bytes(raw: bytes) -> str:
    """Return the first `RAW_LIMIT_BYTES` bytes as text; bytes that are not UTF-8 become escapes."""
    return raw[:RAW_LIMIT_BYTES].decode("utf-8", "backslashreplace")
