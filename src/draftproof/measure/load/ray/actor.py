"""The worker's end: a `LoadWorker` as an object whose methods a cluster calls from another host.

It is asked for news again and again, and each answer brings the lines of records that ended since. Where
nobody asks any more, the program that started it is gone or cannot be reached: the turn ends then, so that no
load goes on that nobody counts.

Lines on their way from a worker to the run directory, which lies on another host.

They wait in a file that has no name and goes with its process: a program that is slow to take them, or gone,
costs the worker's host no memory and leaves no answer behind on its disk.
"""

import asyncio
import contextlib
import resource
import tempfile
import time
from pathlib import Path

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.records import RequestRecord
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.driver import MaskingSink
from draftproof.measure.load.ray.handle import block_to_our_time, record_to_our_time, to_worker_time
from draftproof.measure.load.workers.core import LoadWorker, WorkerShell
from draftproof.measure.load.workers.messages import WORDS, Done, Failed, Reply, Standing, TurnOrder
from draftproof.store.journal import encode_line
from draftproof.store.lines import write_error
from draftproof.workload.items import Item

IN_MEMORY_BYTES = 4 << 20
BATCH_BYTES = 1 << 20


class Spool:
    """Takes lines and hands them over in order, each once.

    Args:
        folder: where what does not fit into `in_memory_bytes` waits; None: the system's temporary folder.
        in_memory_bytes: up to so many bytes no file is made.
    """

    def __init__(self, folder: Path | None = None, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory_bytes, dir=str(self._folder))  # noqa: SIM115
        self._taken = self._end = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything has been handed over."""
        return self._taken == self._end

    def append(self, line: bytes) -> None:
        """Keep one line.

        Args:
            line: the bytes without the newline; must not contain one.

        Raises:
            StoreError: the disk is full.
        """
        try:
            self._file.seek(self._end)
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise write_error(self._folder, error) from error
        self._end += len(line) + 1

    def take(self, at_most: int = BATCH_BYTES) -> bytes:
        """Return the next whole lines with their newlines, at most so many bytes or one line, b"" if none."""
        self._file.seek(self._taken)
        found = self._file.read(min(at_most, self._end - self._taken))
        whole = found[: found.rfind(b"\n") + 1]
        if found and not whole:  # one line longer than a batch
            whole = found + self._file.readline()
        self._taken += len(whole)
        if self.is_empty:
            self._file.seek(0)
            self._file.truncate()
            self._taken = self._end = 0
        return whole

    def close(self) -> None:
        """Let go of the file, and of what nobody took."""
        self._file.close()


POLL_S = 0.5
ALONE_S = 30.0

Headers = tuple[tuple[str, str], ...]
News = tuple[bytes, tuple[bytes, ...]]
_ITEMS = msgspec.msgpack.Decoder(tuple[Item, ...])


class LoadActor:
    """One worker of a cluster.

    Args:
        clock: the host's clock.
        alone_s: after so long without a question the turn ends.
    """

    def __init__(self, clock: Clock = monotonic_ns, alone_s: float = ALONE_S) -> None:
        self._clock, self._alone_s, self._offset_ns = clock, alone_s, 0
        self._spool, self._replies, self._news = Spool(), list[Reply](), asyncio.Event()
        self._asked_s = time.monotonic()
        self._transport = HttpTransport(clock=clock)
        self._shell: WorkerShell | None = None
        self._watch: asyncio.Task[None] | None = None

    async def set_up(self, items: bytes, secrets: tuple[str, ...], descriptors: int = 0) -> None:
        """Take what holds for all turns.

        Args:
            items: the whole workload.
            secrets: values masked in every record before it leaves this process.
            descriptors: how many open files this process has to be allowed.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and descriptors > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
        worker = LoadWorker(
            _ITEMS.decode(items),
            transport=self._transport,
            sink=MaskingSink(_SpoolSink(self), secrets),
            clock=self._clock,
        )
        self._shell = WorkerShell(worker, reply=self._reply, sync=lambda: None)
        self._watch = asyncio.create_task(self._end_when_alone())

    async def ping(self) -> int:
        """Return what the host's clock says."""
        return self._clock()

    async def take(self, body: bytes, headers: Headers = (), offset_ns: int | None = None) -> None:
        """Do what a word says.

        Args:
            body: the word; its times are by the clock of whoever says it.
            headers: those of the requests of a turn, kept apart from its order since they hold keys.
            offset_ns: this host's clock less that one, from now on.
        """
        self._asked_s = time.monotonic()
        word = WORDS.decode(body)
        if offset_ns is not None:
            self._offset_ns = offset_ns
        if isinstance(word, TurnOrder):
            word = _complete(word, headers)
        self._prepared.take(to_worker_time(word, self._offset_ns))

    async def poll(self) -> News:
        """Return lines of records and replies, as soon as there is a reply, or nothing after a while.

        A part is said to be over only with its last line.
        """
        self._asked_s = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._news.wait()
        lines, held = self._spool.take(), list[Reply]()
        if not self._spool.is_empty:
            held = [one for one in self._replies if isinstance(one, Done | Failed)]
        told = self._replies[: len(self._replies) - len(held)]
        self._replies = held
        if not held:
            self._news.clear()
        return lines, tuple(msgspec.msgpack.encode(one) for one in told)

    async def close(self) -> None:
        """End the turn and let go of everything."""
        if self._watch is not None:
            self._watch.cancel()
        if self._shell is not None:
            await self._shell.close()
        await self._transport.close()
        self._spool.close()

    def keep(self, record: RequestRecord) -> None:
        """Keep a record, by the clock of whoever asks, until it is handed over."""
        self._spool.append(encode_line(record_to_our_time(record, self._offset_ns)))

    def _reply(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            reply = Done(block_to_our_time(reply.block, self._offset_ns))
        if isinstance(reply, Standing):  # only the latest one tells how things stand
            self._replies = [one for one in self._replies if not isinstance(one, Standing)]
        self._replies.append(reply)  # `Done` and `Failed` come last
        self._news.set()

    async def _end_when_alone(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._alone_s / 4))
            if time.monotonic() - self._asked_s > self._alone_s:
                self._prepared.end()

    @property
    def _prepared(self) -> WorkerShell:
        if self._shell is None:
            raise RuntimeError("a worker is told of a turn before it is set up")
        return self._shell


def _complete(order: TurnOrder, headers: Headers) -> TurnOrder:
    """Return an order with what does not travel in it."""
    return msgspec.structs.replace(order, endpoint=msgspec.structs.replace(order.endpoint, headers=headers))


class _SpoolSink:
    """Takes masked records; an actor's own methods are what the cluster calls."""

    def __init__(self, actor: LoadActor) -> None:
        self._actor = actor

    def append(self, record: RequestRecord) -> None:
        self._actor.keep(record)
