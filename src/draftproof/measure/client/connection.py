"""One HTTP/1.1 connection of the load client: an asyncio protocol over httptools.

A bare protocol and not a client library, because every reader layer between socket and clock costs CPU that
shows up as false latency once hundreds of streams share one core. A listener hears all bytes of one read
under one time: the kernel's stamp of their arrival where there is one (`arrival.py`), else the clock, read
first thing.
"""

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Callable
from typing import cast

import httptools

from draftproof.core.clock import Clock
from draftproof.measure.client.arrival import ArrivalReader, read_arrivals
from draftproof.measure.client.exchange import KEPT_HEADERS, Ending, EndKind, Listener
from draftproof.measure.client.sse import ends_plain, take_frames

# Where Linux's tcp_info holds the bytes that the other end has acknowledged.
_ACKED = struct.Struct("=Q")
_ACKED_AT = 120


def count_taken_bytes(sock: socket.socket | None) -> int | None:
    """Return how many bytes the other end's system has acknowledged, None where this one does not say."""
    if sock is None or not hasattr(socket, "TCP_INFO"):
        return None
    with contextlib.suppress(OSError, struct.error):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + _ACKED.size)
        return int(_ACKED.unpack_from(info, _ACKED_AT)[0])
    return None


_KEPT_NAMES = {name.encode("latin-1"): name for name in KEPT_HEADERS}
_MOST_WAITING = 100  # reads of one stream that wait to be parsed


class HttpConnection(asyncio.Protocol):
    """Carries one exchange after another; `is_reusable` says whether it may carry the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._reader: ArrivalReader | None = None
        self._lost_by: Exception | None = None
        self._listener: Listener | None = None
        self._ending: asyncio.Future[Ending] | None = None
        self._is_kept = False
        self._sock: socket.socket | None = None
        self._hang_ups: select.poll | None = None
        self._sent_bytes = 0
        self._taken_at_first: int | None = None
        self._begin()
        self.is_drained = True

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._content_type = ""
        self._further: dict[str, str] = {}
        self._is_framed = False
        self._headers_complete = False
        self._headers_reported = False
        self.is_drained = False  # True when the response has been read to its end
        self._keep_alive = True
        self._sent_reported = False
        self._heard_bytes = 0
        self.is_untaken = False  # True when the other end took not a byte of the request, as the system says
        self._taken_before: int | None = None
        self._bodies: list[bytes] = []
        self._is_chunked = False
        self._may_wait = False
        self._is_in_chunk = False
        self._is_at_border = False
        self._waiting: list[bytes] = []
        self._waiting_ns: list[int] = []

    @property
    def is_closed(self) -> bool:
        """True once the connection is gone or going."""
        return self._closed.done() or self._transport is None or self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """True when another request may be sent."""
        return not self.is_closed and self.is_drained and self._keep_alive

    @property
    def is_kept_open(self) -> bool:
        """True when the last response is whole and said that the connection stays open."""
        return self.is_drained and self._keep_alive

    @property
    def has_hung_up(self) -> bool:
        """True when the other end has closed, whether or not the loop has come to see it."""
        if self.is_closed or self._sock is None:
            return True
        if self._hang_ups is None:
            self._hang_ups = select.poll()
            self._hang_ups.register(self._sock.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
        return bool(self._hang_ups.poll(0))

    @property
    def is_unheard(self) -> bool:
        """True while not a byte of the last exchange's response has come."""
        return self._heard_bytes == 0

    def when_released(self, tell: Callable[["HttpConnection"], object]) -> None:
        """Have `tell` called once the socket is given back."""
        self._closed.add_done_callback(lambda _: tell(self))

    async def exchange(self, request: bytes, listener: Listener) -> Ending:
        """Send `request`, tell `listener` what arrives, return how it ended.

        Being cancelled drops the connection, which is how a server learns that nobody listens any more.
        """
        self._begin()
        self._listener = listener
        self._ending = asyncio.get_running_loop().create_future()
        try:
            self._write(request)
            return await self._ending
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._catch_up()
            self._listener = self._ending = None
            self._may_wait = False  # what comes unasked is to be seen before the next request

    def abort(self) -> None:
        """Drop the connection without waiting for anything to be sent."""
        if self._reader is not None:  # before the transport, which closes the descriptor
            self._reader.close()
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Return once the socket is released."""
        await asyncio.shield(self._closed)

    def _write(self, request: bytes) -> None:
        if self._transport is None or self.is_closed:
            self.is_untaken = True
            self._end("broken", "the connection was closed by the server before the request was sent")
            return
        if self._is_kept:
            self._taken_before = self._count_taken_before()
        else:
            self._reader = read_arrivals(self._transport, self._clock, self._take, self._on_lost)
            self._taken_at_first = None if self._reader is None else count_taken_bytes(self._sock)
        self._is_kept = True
        self._sent_bytes += len(request)
        at_ns = self._clock()  # before: what answers the request is stamped while the call still runs
        self._transport.write(request)
        if self._transport.get_write_buffer_size() == 0:
            self._tell_sent(at_ns)

    def _count_taken_before(self) -> int | None:
        """Return what the other end took of the requests so far, which it has answered.

        That is all of them, and no call of the system needed; over TLS more than that was sent.
        """
        if self._taken_at_first is None:
            return count_taken_bytes(self._sock)
        return self._taken_at_first + self._sent_bytes

    def _tell_sent(self, at_ns: int) -> None:
        if self._listener is not None and not self._sent_reported:
            self._sent_reported = True
            self._listener.on_sent(at_ns)

    def _end(self, kind: EndKind, detail: str | None = None, at_ns: int | None = None) -> None:
        if self._ending is not None and not self._ending.done():
            at_ns = self._clock() if at_ns is None else at_ns
            is_stamped = self._reader is not None
            self._ending.set_result(Ending(kind=kind, at_ns=at_ns, detail=detail, is_stamped=is_stamped))

    def _note_untaken(self) -> None:
        """See whether a kept connection was closed before the server's system had the request.

        The closing packet says up to which byte the other end had taken what we sent. If that is not past
        the end of the request before this one, nobody can have read this one.
        """
        before = self._taken_before
        if before is not None and self._heard_bytes == 0 and not self.is_untaken:
            taken = count_taken_bytes(self._sock)
            self.is_untaken = taken is not None and taken <= before

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the moment the socket has taken every byte: that moment is `sent_ns`."""
        self._transport = cast("asyncio.Transport", transport)
        self._sock = transport.get_extra_info("socket")
        self._transport.set_write_buffer_limits(high=0)

    def resume_writing(self) -> None:
        """The socket took the last byte that was waiting."""
        self._tell_sent(self._clock())

    def data_received(self, data: bytes) -> None:
        """Read the clock, then the bytes: of a connection whose arrivals the kernel does not stamp."""
        self._take(data, self._clock())

    def _on_lost(self, error: Exception | None) -> None:
        self._lost_by = error
        if error is None:
            self._note_untaken()
        self.abort()

    def _take(self, data: bytes, at_ns: int) -> None:
        """Let what is plainly the middle of an answer wait: reads parsed in a row cost less than one by one.

        Runs once a read for every stream of the process.
        """
        if not self._may_wait:
            self._parse(data, at_ns)
            return
        waiting = self._waiting
        waiting.append(data)
        self._waiting_ns.append(at_ns)
        if len(waiting) > _MOST_WAITING or not ends_plain(data):
            self._catch_up()

    def _catch_up(self) -> None:
        reads, times_ns = self._waiting, self._waiting_ns
        if not reads:
            return
        self._waiting, self._waiting_ns = [], []
        if len(reads) > 1 and self._tell_plain(reads[:-1], times_ns[:-1]):  # the last one may end the answer
            reads, times_ns = reads[-1:], times_ns[-1:]
        for data, at_ns in zip(reads, times_ns, strict=True):
            self._parse(data, at_ns)

    def _tell_plain(self, reads: list[bytes], times_ns: list[int]) -> bool:
        """Tell the listener of reads past the parsers; False: none, they are for the parsers."""
        found = take_frames(reads, times_ns) if self._listener and self._is_at_border else None
        if found is None or self._listener is None:
            return False
        self._heard_bytes += sum(map(len, reads))
        self._listener.on_frames(*found)
        return True

    def _parse(self, data: bytes, at_ns: int) -> None:
        """Tell the listener what a read brought; it does its own work instead of calling for it."""
        listener = self._listener
        if listener is None and self.is_drained:
            self.abort()  # nobody asked: whatever this is, it must not be read as the next answer
            return
        self._heard_bytes += len(data)
        fault: str | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            fault = "it changes to another protocol"
        except httptools.HttpParserError as error:
            fault = str(error) or type(error).__name__
        # A read that ends in the line of a size is not in a chunk either; behind a fault no border is known.
        is_at_border = self._is_chunked and not self._is_in_chunk and data.endswith(b"\r\n")
        self._is_at_border = is_at_border and fault is None
        if listener is None:
            self._bodies.clear()
        else:  # outside the parser, which would wrap a listener's error as a fault of the stream
            self._tell(listener, at_ns)
        if self.is_drained or fault is not None or (listener is not None and listener.finished):
            self._conclude(fault, data, at_ns)

    def _tell(self, listener: Listener, at_ns: int) -> None:
        if not self._headers_reported and self._headers_complete:
            self._headers_reported = True
            listener.on_headers(self._status, self._content_type, at_ns, self._further)
        bodies = self._bodies
        if bodies:
            listener.on_body(bodies[0] if len(bodies) == 1 else b"".join(bodies), at_ns)
            bodies.clear()
            self._may_wait = self._is_chunked and listener.may_wait

    def _conclude(self, fault: str | None, data: bytes, at_ns: int) -> None:
        """End the exchange: its answer is whole, or its bytes are no answer."""
        if self.is_drained or (self._listener is not None and self._listener.finished):
            self._end("complete", at_ns=at_ns)
        elif fault is not None:
            what = "a body that breaks HTTP's framing" if self._headers_complete else "not an HTTP response"
            self._end("not_http", f"{what} ({fault}): {data[:80]!r}", at_ns)
        if fault is not None:
            self.abort()

    def eof_received(self) -> None:
        """The server closes: the socket still tells what it had taken by then."""
        self._note_untaken()

    def connection_lost(self, exc: Exception | None) -> None:
        """A body without stated length ends with the connection; any other is broken by it."""
        self._note_untaken()
        if not self._closed.done():
            self._closed.set_result(None)
        if self._reader is not None:
            self._reader.close()
        self._catch_up()
        exc = exc or self._lost_by
        if exc is not None and not isinstance(exc, OSError):
            self._fail(exc)
        elif exc is None and self._headers_complete and not self._is_framed:
            self._end("complete")
        else:
            reason = f" ({exc})" if exc is not None else ""
            self._end("broken", f"the server closed the connection after {self._heard_bytes} bytes{reason}")

    def _fail(self, exc: Exception) -> None:
        """An error of our own inside a callback reaches whoever waits, and is not booked as the server's."""
        if self._ending is not None and not self._ending.done():
            self._ending.set_exception(exc)

    # What httptools calls. It goes on after the end of a response; what it finds there was not asked for.

    def on_message_begin(self) -> None:
        """A response after the one that counts spoils the connection and not the answer.

        Raises RuntimeError: there is such a response; the parser hands it on as its own fault.
        """
        if self.is_drained:
            raise RuntimeError("a response that was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep what is needed to read the body; trailers come after it and change nothing."""
        lowered = name.lower()
        if self._headers_complete:
            return
        if lowered == b"content-type":
            self._content_type = value.decode("latin-1").strip().lower()
        elif lowered in {b"content-length", b"transfer-encoding"}:
            self._is_framed = True
            self._is_chunked = self._is_chunked or value.strip().lower().endswith(b"chunked")
        elif (kept := _KEPT_NAMES.get(lowered)) is not None:
            self._further[kept] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        """Interim responses (1xx) precede the one that counts."""
        self._status = self._parser.get_status_code()
        self._headers_complete = self._status >= 200

    def on_chunk_header(self) -> None:
        """The size of a chunk has been read."""
        self._is_in_chunk = True

    def on_chunk_complete(self) -> None:
        """The chunk is whole, with the line end after it."""
        self._is_in_chunk = False

    def on_body(self, body: bytes) -> None:
        """Hold the bytes until the whole read is parsed."""
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        """The response is whole."""
        if self._headers_complete:
            self.is_drained = True
            self._keep_alive = self._parser.should_keep_alive()
