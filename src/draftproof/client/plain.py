"""The plain middle of an answer: reads of whole HTTP chunks that hold one whole event of one line each.

Nearly every read of a stream is such a one. Its events are seen by their borders alone, past the parsers of
HTTP and of event streams, which between two chunks and two events have nothing to remember of it (RFC 9112,
section 7.1; WHATWG HTML, section 9.2).
"""

from collections.abc import Sequence

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

    Args:
        reads: the bytes of each read, the first beginning at the border of a chunk.
        times_ns: when each arrived.
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
