"""When bytes reached this host, by the kernel's own stamp (SO_TIMESTAMPNS), beside asyncio's transports.

A client that reads its clock after a read that was scheduled late tells its own lateness as the service's:
hundreds of streams on one core, or a neighbour on that core, make milliseconds of it. The kernel stamps a
segment as it comes in, whoever runs at that moment. Owns the reading of plain TCP sockets on Linux; TLS and
other systems are read by the transport, and their times are those of the read.
"""

import asyncio
import contextlib
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence

from draftproof.core.clock import NS_PER_S, Clock

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the stamp is a timespec of two C longs
_STAMP = struct.Struct("@ll")
STAMP_SPACE = socket.CMSG_SPACE(_STAMP.size) if hasattr(socket, "CMSG_SPACE") else 0
_READ_BYTES = 65_536
# A stamp further back lies before a step of the wall clock, which is the one that stamps are taken from.
_LONGEST_WAIT_NS = 10 * NS_PER_S
# With many streams, a look soon after one of few reads waits for company: most of a read's cost is the
# wake-up, and a stamp does not grow old. What it costs: two events of one stream within a rest share the
# stamp of the later one, so that a rest is a small part of the time between a stream's reads; and the next
# request of a closed loop may leave by a rest later. No rest goes beyond a time that `keep_awake` was given.
_MANY_STREAMS = 16
_LONGEST_REST_NS = 1_500_000
_SHORTEST_REST_NS = 100_000  # below, falling asleep takes as long
_REST_SHARE = 1 / 8  # of the time between two reads of one stream
_FEW_SHARE = 1 / 4  # of the streams: with more reads at once the loop is behind, and must not rest
_WAKING_NS = 150_000  # what the system needs to wake a sleeper, at worst about
_GAP_OVER_NS = 10_000_000  # the time between reads is taken anew over so long
# A stamp may be older than the moment from which its bytes could be read: a segment behind a lost one lies in
# the kernel until that one is sent again, and the wall clock may be set. So that no stall of the network is
# taken off, all streams are looked at this often, and a wait is at most as long as since the last look.
_LOOK_S = 0.005
_MOST_READY = 1023  # that one look reports
_FEW_READY = 16  # that it reports where a request may become due meanwhile: they are read in a fifth of 1 ms

Take = Callable[[bytes, int], None]
Lose = Callable[[Exception | None], None]
Stamps = Sequence[tuple[int, int, bytes]]


class ArrivalReader:
    """Reads a transport's socket in its stead; made by `read_arrivals`.

    The descriptor stays the transport's, which closes it; a loop refuses to poll one that a transport holds,
    hence a poll of our own.
    """

    def __init__(self, sock: socket.socket, clock: Clock, take: Take, lose: Lose) -> None:
        self._sock: socket.socket | None = sock
        self._receive = sock.recvmsg
        self._clock, self._take, self._lose = clock, take, lose
        self._left_since_ns: int | None = None
        self._last_ns: int | None = None
        self._poll = _poll_of(asyncio.get_running_loop())
        self._poll.add(sock.fileno(), self.read)

    def close(self) -> None:
        """Stop reading."""
        if self._sock is not None:
            self._poll.remove(self._sock.detach(), self.read)
            self._sock = None

    def read(self) -> None:
        """Runs once a read for every stream of the process."""
        try:
            data, stamps, _, _ = self._receive(_READ_BYTES, STAMP_SPACE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        # What was just read can have waited since the last look; what one read leaves waits on from before.
        since_ns = self._poll.looked_ns if self._left_since_ns is None else self._left_since_ns
        self._left_since_ns = since_ns if len(data) == _READ_BYTES else None
        waited = waited_ns(stamps)  # before the clock: whoever interrupts here must not make bytes early
        at_ns = self._clock() - min(waited, time.monotonic_ns() - since_ns)
        if self._last_ns is not None and at_ns < self._last_ns:
            at_ns = self._last_ns
        self._last_ns = at_ns
        if not data:
            self._end(None)
            return
        try:
            self._take(data, at_ns)
        except Exception as error:  # noqa: BLE001 - it ends this exchange, and must not end the poll of all others
            self._end(error)

    def _end(self, error: Exception | None) -> None:
        self.close()
        self._lose(error)


class _ArrivalPoll:
    """All streams of one loop behind one descriptor: reads that are due together cost one wake-up.

    `looked_ns`: when the last look began; what it did not report was not there yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._reads: dict[int, Callable[[], None]] = {}
        self._last_ns = self._last_reads = 0
        self._rest_ns = self._counted_reads = 0
        self._is_resting = False
        self._counted_from_ns = self.looked_ns = time.monotonic_ns()
        loop.add_reader(self._epoll.fileno(), self._on_ready)
        self._timer = loop.call_later(_LOOK_S, self._on_time)

    def add(self, descriptor: int, read: Callable[[], None]) -> None:
        self._reads[descriptor] = read
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int, read: Callable[[], None]) -> None:
        """Forget a stream, unless its descriptor was closed meanwhile and is another's by now."""
        if self._reads.get(descriptor) != read:
            return
        with contextlib.suppress(OSError):  # the system has forgotten it if it was closed
            self._epoll.unregister(descriptor)
        del self._reads[descriptor]
        if not self._reads:
            del _POLLS[self._loop]
            self._timer.cancel()
            if not self._loop.is_closed():
                self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _on_ready(self) -> None:
        """Look, unless that comes after a rest; what else is ready, such as a request due, goes before."""
        if not self._is_resting and not self._begin_rest():
            self._look(self._find_most())

    def _begin_rest(self) -> bool:
        """Have the next look come after a rest, if one is worth it; tell whether it is."""
        self._is_resting = self._find_rest_ns() > 0
        if self._is_resting:
            self._loop.call_soon(self._rest)
        return self._is_resting

    def _rest(self) -> None:
        """Rest, look, and rest again while streams bring something: waiting for that is a second sleep."""
        self._is_resting = False
        rest_ns = self._find_rest_ns()
        if rest_ns > 0:
            time.sleep(rest_ns / NS_PER_S)
        if self._reads:
            self._look(self._find_most())
        if self._reads and self._last_reads:
            self._begin_rest()

    def _find_rest_ns(self) -> int:
        """Return how long to wait for company before the next look, 0 for not at all."""
        streams, now_ns = len(self._reads), time.monotonic_ns()
        if streams < _MANY_STREAMS or self._last_reads >= _FEW_SHARE * streams:
            return 0
        rest_ns = self._last_ns + self._rest_ns - now_ns
        if (due_ns := _AWAKE.get(self._loop)) is not None:
            rest_ns = min(rest_ns, due_ns - _WAKING_NS - now_ns)
        return rest_ns if rest_ns > _SHORTEST_REST_NS else 0

    def _find_most(self) -> int:
        """Return how many streams to read before whatever else is ready has its period."""
        return _FEW_READY if self._loop in _AWAKE else _MOST_READY

    def _look(self, most: int) -> None:
        reads, looked_ns = self._reads, time.monotonic_ns()
        ready = self._epoll.poll(0, most)
        for descriptor, _ in ready:
            if (read := reads.get(descriptor)) is not None:  # an earlier read may have closed it
                read()
        is_whole = len(ready) < most
        if is_whole:
            self.looked_ns = looked_ns
        # What was left out is there: as with many reads at once, no rest may come before it.
        self._last_reads, self._last_ns = len(ready) if is_whole else len(reads), time.monotonic_ns()
        self._note_gap(len(ready))

    def _note_gap(self, reads: int) -> None:
        """See how often each stream is read, and so how long a rest may be."""
        self._counted_reads += reads
        over_ns = self._last_ns - self._counted_from_ns
        if over_ns > _GAP_OVER_NS:
            gap_ns = over_ns * len(self._reads) / max(self._counted_reads, 1)
            self._rest_ns = min(_LONGEST_REST_NS, round(_REST_SHARE * gap_ns))
            self._counted_reads, self._counted_from_ns = 0, self._last_ns

    def _on_time(self) -> None:
        """Look though nothing was reported, unless that was done just now."""
        if time.monotonic_ns() - self.looked_ns >= _LOOK_S * NS_PER_S:
            self._look(_MOST_READY)
        if self._reads:
            self._timer = self._loop.call_later(_LOOK_S, self._on_time)


_POLLS: dict[asyncio.AbstractEventLoop, _ArrivalPoll] = {}  # of loops that have a stream to read
_AWAKE: dict[asyncio.AbstractEventLoop, int] = {}  # when a loop must not rest


def keep_awake(loop: asyncio.AbstractEventLoop, due_ns: int | None) -> None:
    """Have no rest of a loop go beyond a time of the monotonic clock, until given another; None: none."""
    if due_ns is None:
        _AWAKE.pop(loop, None)
    else:
        _AWAKE[loop] = due_ns


def _poll_of(loop: asyncio.AbstractEventLoop) -> _ArrivalPoll:
    if (poll := _POLLS.get(loop)) is None:
        poll = _POLLS[loop] = _ArrivalPoll(loop)
    return poll


def read_arrivals(transport: asyncio.Transport, clock: Clock, take: Take, lose: Lose) -> ArrivalReader | None:
    """Read `transport`'s socket from now on; return None, and leave it alone, where stamps cannot be had.

    `take` is given the bytes of every read and when the last of them arrived, on `clock`. `lose` is called
    once, after the last bytes, with what broke the connection, None if the other side closed it.
    """
    own = transport.get_extra_info("socket")
    if own is None or transport.get_extra_info("sslcontext") is not None:
        return None
    sock = socket.socket(fileno=own.fileno())
    sock.setblocking(False)
    if not ask_for_stamps(sock):
        sock.detach()
        return None
    transport.pause_reading()
    return ArrivalReader(sock, clock, take, lose)


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel hand a stamp with every read; False where it cannot."""
    if sys.platform != "linux":
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def waited_ns(stamps: Stamps) -> int:
    """Return how long ago the last byte of a read arrived, 0 where its stamp does not tell."""
    if not stamps:
        return 0
    seconds, rest_ns = _STAMP.unpack(stamps[0][2])
    waited = time.time_ns() - seconds * NS_PER_S - rest_ns
    return waited if 0 < waited < _LONGEST_WAIT_NS else 0
