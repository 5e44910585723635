"""The worker's end: a `LoadWorker` as an object whose methods a cluster calls from another host.

It is asked for news again and again, and each answer brings the lines of records that ended since. Where
nobody asks any more, the program that started it is gone or cannot be reached: the period ends then, so that
no load goes on that nobody counts.
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
from draftproof.measure.load.ray.hosts import block_to_our_time, record_to_our_time, to_worker_time
from draftproof.measure.load.request_runner import MaskingSink
from draftproof.measure.load.workers.messages import WORDS, Done, Failed, PeriodOrder, Reply, ShardProgress
from draftproof.measure.load.workers.process import LoadWorker
from draftproof.store.journal import encode_line
from draftproof.store.lines import write_error
from draftproof.workload.items import Item

IN_MEMORY_BYTES = 4 << 20
BATCH_BYTES = 1 << 20
POLL_S = 0.5
ALONE_S = 30.0

Headers = tuple[tuple[str, str], ...]
News = tuple[bytes, tuple[bytes, ...]]
_ITEMS = msgspec.msgpack.Decoder(tuple[Item, ...])


class Spool:
    """Takes lines on their way to the run directory, and hands them over in order, each once.

    Beyond `in_memory_bytes` they wait in a file of the system's temporary folder that has no name and goes
    with its process: a program that is slow to take them, or gone, costs the worker's host no memory and
    leaves no answer behind on its disk.
    """

    def __init__(self, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=in_memory_bytes)  # noqa: SIM115
        self._taken = self._end = 0

    @property
    def is_empty(self) -> bool:
        """Whether everything has been handed over."""
        return self._taken == self._end

    def append(self, line: bytes) -> None:
        """Keep one line, given without its newline. Raises StoreError: the disk is full."""
        try:
            self._file.seek(self._end)
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise write_error(Path(tempfile.gettempdir()), error) from error
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


class LoadActor:
    """One worker of a cluster, which calls its public methods, `set_up` first.

    `alone_s`: after so long without a question the period ends.
    """

    def __init__(self, clock: Clock = monotonic_ns, alone_s: float = ALONE_S) -> None:
        self._clock, self._alone_s, self._offset_ns = clock, alone_s, 0
        self._spool, self._replies, self._news = Spool(), list[Reply](), asyncio.Event()
        self._asked_s = time.monotonic()
        self._transport = HttpTransport(clock=clock)
        self._worker: LoadWorker
        self._watch: asyncio.Task[None]

    async def set_up(self, items: bytes, secrets: tuple[str, ...], descriptors: int = 0) -> None:
        """Take what holds for all periods.

        `secrets`: values masked in every record before it leaves this process. `descriptors`: how many open
        files this process has to be allowed.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and descriptors > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
        sink = MaskingSink(self._keep, secrets)
        self._worker = LoadWorker(
            _ITEMS.decode(items), transport=self._transport, sink=sink, reply=self._reply, clock=self._clock
        )
        self._watch = asyncio.create_task(self._end_when_alone())

    async def ping(self) -> int:
        """Return what the host's clock says."""
        return self._clock()

    async def take(self, body: bytes, headers: Headers = (), offset_ns: int | None = None) -> None:
        """Do what a word says.

        `body`: the word; its times are by the clock of whoever says it. `headers`: those of the requests of a
        period, kept apart from its order since they hold keys. `offset_ns`: this host's clock less that one,
        from now on.
        """
        self._asked_s = time.monotonic()
        word = WORDS.decode(body)
        if offset_ns is not None:
            self._offset_ns = offset_ns
        if isinstance(word, PeriodOrder):
            endpoint = msgspec.structs.replace(word.endpoint, headers=headers)
            word = msgspec.structs.replace(word, endpoint=endpoint)
        self._worker.take(to_worker_time(word, self._offset_ns))

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
        ready = self._replies[: len(self._replies) - len(held)]
        self._replies = held
        if not held:
            self._news.clear()
        return lines, tuple(msgspec.msgpack.encode(one) for one in ready)

    async def close(self) -> None:
        """End the period and let go of everything."""
        self._watch.cancel()
        await self._worker.close()
        await self._transport.close()
        self._spool.close()

    def _keep(self, record: RequestRecord) -> None:
        """Keep a record, by the clock of whoever asks, until it is handed over."""
        self._spool.append(encode_line(record_to_our_time(record, self._offset_ns)))

    def _reply(self, reply: Reply) -> None:
        if isinstance(reply, Done):
            reply = Done(block_to_our_time(reply.block, self._offset_ns))
        if isinstance(reply, ShardProgress):  # only the latest one tells how things stand
            self._replies = [one for one in self._replies if not isinstance(one, ShardProgress)]
        self._replies.append(reply)  # `Done` and `Failed` come last
        self._news.set()

    async def _end_when_alone(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._alone_s / 4))
            if time.monotonic() - self._asked_s > self._alone_s:
                self._worker.end()
