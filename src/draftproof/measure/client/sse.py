"""Server-sent events from bytes, without I/O (WHATWG HTML, section 9.2).

Owns lines, fields and event borders. It knows neither JSON nor time: who feeds it knows when the bytes
that completed an event arrived.

The plain middle of an answer: reads of whole HTTP chunks that hold one whole event of one line each.

Nearly every read of a stream is such a one. Its events are seen by their borders alone, past the parsers of
HTTP and of event streams, which between two chunks and two events have nothing to remember of it (RFC 9112,
section 7.1; WHATWG HTML, section 9.2).
"""

from collections.abc import Sequence

import msgspec

from draftproof.core.errors import EngineError

MAX_EVENT_BYTES = 8 * 1024 * 1024
_DATA = b"data: "
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_IGNORED_FIELDS = (b"", b"id", b"retry")  # the empty name is a comment


class SseEvent(msgspec.Struct, frozen=True):
    """One event: its data lines joined by a line feed, and its type.

    `complete` is False only for what `flush` returns: an event whose closing blank line never came.
    """

    data: bytes
    event: str = "message"
    complete: bool = True


class SseDecoder:
    """Feed bytes in any cut, get whole events; CR, LF and CRLF end a line.

    Attributes:
        stray_lines: lines whose field name is none of the format's. A browser drops them silently; here
            they are kept, because a service that prints a traceback into its stream prints them.
        is_between: True while nothing is held, no line, no field, no half of a line end.
    """

    def __init__(self, *, limit_bytes: int = MAX_EVENT_BYTES) -> None:
        self.stray_lines: list[bytes] = []
        self._limit_bytes = limit_bytes
        self._partial: list[bytes] = []
        self._data: list[bytes] = []
        self._event = b""
        self._pending_bytes = self._data_bytes = 0
        self._after_cr = False
        self._at_start = True
        self.is_between = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes, in order.

        Raises EngineError: an event grows beyond the limit; nothing after it can be parsed.
        """
        if self.is_between and (events := _split_plain(chunk)) is not None:
            self._at_start = False
            return events
        chunk = self._drop_second_half_of_crlf(chunk)
        if b"\n" not in chunk and b"\r" not in chunk:
            self._hold(chunk)
            return []
        joined = b"".join((*self._partial, chunk))
        self._partial.clear()
        self._after_cr = joined.endswith(b"\r")
        events = self._take_lines(joined.splitlines(keepends=True))
        self._pending_bytes = sum(map(len, self._partial)) + self._data_bytes
        self.is_between = not (self._pending_bytes or self._event or self._after_cr)
        self._check_limit()
        return events

    def flush(self) -> SseEvent | None:
        """Return the unfinished event at the end of the stream, None if nothing is left over."""
        if self._partial:
            self._take_line(b"".join(self._partial))
            self._partial.clear()
        return self._dispatch(complete=False)

    def _drop_second_half_of_crlf(self, chunk: bytes) -> bytes:
        """A CR ends its line at once, so that no event waits for a byte that may never come."""
        if self._after_cr and chunk:
            self._after_cr = False
            return chunk.removeprefix(b"\n")
        return chunk

    def _hold(self, chunk: bytes) -> None:
        if chunk:
            self.is_between = False
            self._partial.append(chunk)
            self._pending_bytes += len(chunk)
            self._check_limit()

    def _check_limit(self) -> None:
        if self._pending_bytes > self._limit_bytes:
            raise EngineError(f"one stream event is longer than {self._limit_bytes} bytes")

    def _take_lines(self, lines: list[bytes]) -> list[SseEvent]:
        if not lines[-1].endswith((b"\n", b"\r")):
            self._partial.append(lines.pop())
        events = (self._take_line(line.rstrip(b"\r\n")) for line in lines)
        return [event for event in events if event is not None]

    def _take_line(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            line, self._at_start = line.removeprefix(_BYTE_ORDER_MARK), False
        if not line:
            return self._dispatch(complete=True)
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(self._data[-1])
        elif name == b"event":
            self._event = value.removeprefix(b" ")
        elif name not in _IGNORED_FIELDS:
            self.stray_lines.append(line)
        return None

    def _dispatch(self, *, complete: bool) -> SseEvent | None:
        lines, kind = self._data, self._event
        self._data, self._event, self._data_bytes = [], b"", 0
        if not lines:
            return None
        name = kind.decode("utf-8", "replace") or "message"
        return SseEvent(data=b"\n".join(lines), event=name, complete=complete)


def _split_plain(chunk: bytes) -> list[SseEvent] | None:
    """Return the events of a chunk that is whole events of one data line each, None of any other.

    Nearly every read of a stream is such a chunk; this is its way around the reading of lines and fields.
    """
    if not (chunk.startswith(_DATA) and chunk.endswith(b"\n\n")) or b"\r" in chunk:
        return None
    if chunk.find(b"\n") == len(chunk) - 2:
        return [SseEvent(chunk[6:-2])]
    pieces = chunk[:-2].split(b"\n\n")
    if any(b"\n" in piece or not piece.startswith(_DATA) for piece in pieces):
        return None
    return [SseEvent(piece[6:]) for piece in pieces]


Frames = tuple[list[bytes], list[int]]

_EVENT_END = b"}\n\n\r\n"  # of an event of JSON and its chunk
_MARKER = b"data: [DONE]"
_END = b"\n\n\r\n"  # of an event and its chunk
_MIDDLE = b"\r\ndata: "  # between the chunk's size and the frame
_IN_CHUNK = len(b"data: \n\n")  # what the size counts beside the frame


def ends_plain(read: bytes) -> bool:
    """Tell whether a read may be of the plain middle, and surely is not the end of an answer.

    A chunked message ends with an empty line, so that none is over with an event's end; but what is wanted of
    it is over with the end marker, whatever a service writes behind that.
    """
    return read.endswith(_EVENT_END) and read.find(_MARKER) < 0  # faster than `in`


def take_frames(reads: Sequence[bytes], times_ns: Sequence[int]) -> Frames | None:
    """Return the data of every event in some reads and its time, None if a read holds anything else.

    `reads`: the bytes of each read, the first beginning at the border of a chunk.
    """
    joined = b"".join(reads)
    pieces = joined.split(_END)
    if pieces.pop() or joined.count(b"\n") != 4 * len(pieces) or joined.count(b"\r") != 2 * len(pieces):
        return None
    frames, times, rest = list[bytes](), list[int](), iter(pieces)
    for read, at_ns in zip(reads, times_ns, strict=True):
        left = len(read)
        while left > 0 and (piece := next(rest, None)) is not None:
            size, _, frame = piece.partition(_MIDDLE)
            if size != b"%x" % (len(frame) + _IN_CHUNK):
                return None
            left -= len(piece) + len(_END)
            frames.append(frame)
            times.append(at_ns)
        if left:
            return None
    return frames, times
