"""The conductor's end of a worker on another host: words there, records and replies back, clocks compared.

Nothing here knows a cluster: `Remote` is the seam, and what it raises is that the worker is gone.

How far another host's monotonic clock is from ours, and times carried over. Pure.

A ping is read here, there, and here again. Wherever in between the other clock was read, the middle of the
round trip is wrong by at most half of it, so the shortest ping bounds the error best; nothing is assumed of
how long either way took.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.core.records import BlockRecord, Chunk, RequestRecord, WorkerClock
from draftproof.measure.load.ray.facts import HostFacts, check_reachable, read_facts
from draftproof.measure.load.workers.handle import WorkerDiedError
from draftproof.measure.load.workers.messages import (
    REPLIES,
    Count,
    Done,
    Failed,
    Reply,
    Setup,
    Start,
    Stop,
    TurnOrder,
    Word,
)
from draftproof.store.journal import open_sound_lines
from draftproof.store.lines import LineFile


class Ping(msgspec.Struct, frozen=True):
    """One exchange in nanoseconds: sent and received by our clock, answered by the other one."""

    sent_ns: int
    answered_ns: int
    received_ns: int


class Offset(msgspec.Struct, frozen=True):
    """The other clock less ours, in nanoseconds, and how wrong that may be either way."""

    offset_ns: int
    error_ns: int


def estimate_offset(pings: Sequence[Ping]) -> Offset:
    """Return the offset that the ping with the shortest round trip shows.

    Args:
        pings: at least one.
    """
    best = min(pings, key=lambda ping: ping.received_ns - ping.sent_ns)
    trip_ns = best.received_ns - best.sent_ns
    middle_ns = best.sent_ns + trip_ns // 2
    return Offset(best.answered_ns - middle_ns, -(-trip_ns // 2))


def widen_error(before: Offset, after: Offset) -> Offset:
    """Return the offset that a turn was run with, its error wide enough for what the clocks did meanwhile.

    Args:
        before: estimated before the turn; times are converted by it.
        after: estimated after the turn.
    """
    moved_ns = abs(after.offset_ns - before.offset_ns) + after.error_ns
    return Offset(before.offset_ns, max(before.error_ns, moved_ns))


def to_worker_time(word: Word, offset_ns: int) -> Word:
    """Return a word with its time by the clock of the worker."""
    match word:
        case Start():
            return Start(word.start_ns + offset_ns)
        case Count():
            return Count(word.base_ns + offset_ns)
    return word


def record_to_our_time(record: RequestRecord, offset_ns: int) -> RequestRecord:
    """Return a request's record by our clock; every duration in it stays what it was."""
    return msgspec.structs.replace(
        record,
        scheduled_ns=record.scheduled_ns - offset_ns,
        sent_ns=_shift(record.sent_ns, offset_ns),
        headers_ns=_shift(record.headers_ns, offset_ns),
        end_ns=record.end_ns - offset_ns,
        finish_ns=_shift(record.finish_ns, offset_ns),
        chunks=tuple(Chunk(one.arrival_ns - offset_ns, one.cumulative_tokens) for one in record.chunks),
    )


def block_to_our_time(block: BlockRecord, offset_ns: int) -> BlockRecord:
    """Return the record of a part by our clock."""
    return msgspec.structs.replace(
        block,
        started_ns=block.started_ns - offset_ns,
        ended_ns=block.ended_ns - offset_ns,
        counted_from_ns=_shift(block.counted_from_ns, offset_ns),
    )


def _shift(at_ns: int | None, offset_ns: int) -> int | None:
    return None if at_ns is None else at_ns - offset_ns


CLOSE_S = 5.0
PINGS = 16


class Remote(Protocol):
    """The methods of a `LoadActor` as they are called from here.

    Each raises WorkerDiedError when the worker, its host, or the way to it is gone.
    """

    async def set_up(self, secrets: tuple[str, ...]) -> HostFacts:
        """Hand over what holds for all turns; return what the worker is."""
        ...

    async def ping(self) -> int:
        """See `LoadActor.ping`."""
        ...

    async def take(self, body: bytes, headers: tuple[tuple[str, str], ...], offset_ns: int | None) -> None:
        """See `LoadActor.take`."""
        ...

    async def poll(self) -> tuple[bytes, tuple[bytes, ...]]:
        """See `LoadActor.poll`."""
        ...

    async def close(self) -> None:
        """See `LoadActor.close`."""
        ...

    def kill(self) -> None:
        """End the worker's process, whatever it does; harmless when it is gone."""
        ...


class RemoteWorker:
    """A worker on another host.

    Args:
        setup: its number, its journal here, and the secrets that it masks.
        remote: how it is reached.
        clock: the clock that records are kept in.
    """

    def __init__(self, setup: Setup, remote: Remote, clock: Clock = monotonic_ns) -> None:
        self._setup, self._remote, self._clock = setup, remote, clock
        self._words: asyncio.Queue[Word] = asyncio.Queue()
        self._heard = list[Reply]()
        self._sending: asyncio.Task[None] | None = None
        self._lines: LineFile | None = None
        self._facts: HostFacts | None = None
        self._offset = Offset(0, 0)
        self._is_busy = False

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        at = "" if self._facts is None else f" on {self._facts.host} (process {self._facts.pid})"
        return f"load worker {self._setup.index}{at}"

    async def start(self) -> None:
        """Hand over what holds for all turns.

        Raises:
            WorkerDiedError: it is gone.
            StoreError: its journal cannot be opened.
        """
        with self._named():
            self._facts = await self._remote.set_up(self._setup.secrets)
        self._lines = open_sound_lines(Path(self._setup.journal))
        self._sending = asyncio.create_task(self._send())

    def tell(self, word: Word) -> None:
        """Send a word, after those before it.

        Raises:
            UsageError: the arm of a turn answers where this worker cannot reach it.
        """
        if isinstance(word, TurnOrder) and self._facts is not None:
            check_reachable({word.turn.arm: word.endpoint.url}, read_facts(), [self._facts])
        self._is_busy = self._is_busy or isinstance(word, TurnOrder)
        self._words.put_nowait(word)

    async def hear(self) -> Reply:
        """Return the next reply; what ended before it is in the journal, and at `Done` on the device.

        Raises:
            WorkerDiedError: the worker is gone, or gives no sign of life.
            StoreError: its journal cannot be written.
        """
        with self._named():
            while not self._heard:
                lines, replies = await self._remote.poll()
                self._keep(lines)
                for body in replies:
                    self._heard.append(await self._finish(REPLIES.decode(body)))
        return self._heard.pop(0)

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker; what it has of a turn in progress is written down first unless `at_once`."""
        try:
            if not at_once and self._facts is not None:
                async with asyncio.timeout(CLOSE_S):
                    await self._drain()
        except (DraftproofError, TimeoutError):  # why the run ends has been said already
            pass
        finally:
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.wait({self._sending})
            self._remote.kill()
            if self._lines is not None:
                self._lines.close()

    async def _drain(self) -> None:
        if self._is_busy:
            self.tell(Stop())
            while not isinstance(await self.hear(), Done | Failed):
                pass
        await self._remote.close()

    async def _send(self) -> None:
        """Send word after word: calls of an actor that run side by side have no order."""
        with contextlib.suppress(WorkerDiedError):  # `hear` finds the same
            while True:
                word = await self._words.get()
                if isinstance(word, TurnOrder):
                    await self._send_order(word)
                else:
                    await self._remote.take(msgspec.msgpack.encode(word), (), None)

    async def _send_order(self, order: TurnOrder) -> None:
        self._offset = await self._compare_clocks()
        endpoint = msgspec.structs.replace(order.endpoint, headers=())
        body = msgspec.msgpack.encode(msgspec.structs.replace(order, endpoint=endpoint))
        await self._remote.take(body, order.endpoint.headers, self._offset.offset_ns)

    async def _compare_clocks(self) -> Offset:
        pings = []
        for _ in range(PINGS):
            sent_ns = self._clock()
            answered_ns = await self._remote.ping()
            pings.append(Ping(sent_ns, answered_ns, self._clock()))
        return estimate_offset(pings)

    async def _finish(self, reply: Reply) -> Reply:
        """Note the clocks of a part that is over, and put its records on the device."""
        if isinstance(reply, Done | Failed):
            self._is_busy = False
        if isinstance(reply, Done):
            self._keeping.sync()
            return Done(self._note_clock(reply.block, await self._compare_clocks()))
        return reply

    def _note_clock(self, block: BlockRecord, after: Offset) -> BlockRecord:
        offset = widen_error(self._offset, after)
        at = "?" if self._facts is None else f"{self._facts.host}/{self._facts.pid}"
        clock = WorkerClock(f"w{self._setup.index} {at}", offset.offset_ns, offset.error_ns)
        return msgspec.structs.replace(block, clocks=(clock,))

    def _keep(self, lines: bytes) -> None:
        for line in lines.split(b"\n")[:-1]:
            self._keeping.append(line)

    @property
    def _keeping(self) -> LineFile:
        if self._lines is None:
            raise RuntimeError("the worker has not been started")
        return self._lines

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except WorkerDiedError as error:
            raise WorkerDiedError(f"{self.name} {error.message}") from error
