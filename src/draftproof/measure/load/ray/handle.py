"""The coordinator's end of a worker on another host: words there, records and replies back, clocks compared.

Nothing here knows a cluster: `Remote` is the seam, and what it raises is that the worker is gone.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.core.records import BlockRecord, WorkerClock
from draftproof.measure.load.ray.actor import POLL_S
from draftproof.measure.load.ray.hosts import (
    HostFacts,
    Offset,
    Ping,
    check_reachable,
    estimate_offset,
    read_facts,
    widen_error,
)
from draftproof.measure.load.workers.messages import (
    REPLIES,
    Done,
    Failed,
    PeriodOrder,
    Reply,
    Setup,
    Stop,
    Word,
    WorkerDiedError,
)
from draftproof.measure.load.workers.process import CLOSE_S
from draftproof.store.journal import open_sound_lines

PINGS = 16


class Remote(Protocol):
    """The way to a `LoadActor`; raises WorkerDiedError where the worker, its host or the way is gone."""

    async def set_up(self, secrets: tuple[str, ...]) -> HostFacts:
        """Hand over what holds for all periods; return what the worker is."""
        ...

    async def call(self, method: str, *arguments: Any, wait_s: float = 0.0) -> Any:
        """Call a method of the actor that may wait so long by itself."""
        ...

    def kill(self) -> None:
        """End the worker's process, whatever it does; harmless when it is gone."""
        ...


class RemoteWorker:
    """A worker on another host.

    `setup`: its number, its journal here, and the secrets that it masks. `remote`: how it is reached.
    `clock`: the clock that records are kept in.
    """

    def __init__(self, setup: Setup, remote: Remote, clock: Clock = monotonic_ns) -> None:
        self._setup, self._remote, self._clock = setup, remote, clock
        self._words: asyncio.Queue[Word] = asyncio.Queue()
        self._heard = list[Reply]()
        self._sending: asyncio.Task[None] | None = None
        self._facts: HostFacts | None = None
        self._offset = Offset(0, 0)
        self._is_busy = False

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        at = "" if self._facts is None else f" on {self._facts.host} (process {self._facts.pid})"
        return f"load worker {self._setup.index}{at}"

    async def start(self) -> None:
        """Hand over what holds for all periods.

        Raises WorkerDiedError: it is gone; StoreError: its journal cannot be opened.
        """
        with self._named():
            facts = await self._remote.set_up(self._setup.secrets)
        self._lines = open_sound_lines(Path(self._setup.journal))
        self._facts, self._sending = facts, asyncio.create_task(self._send())

    def tell(self, word: Word) -> None:
        """Send a word, after those before it.

        Raises UsageError: the arm of a period answers where this worker cannot reach it.
        """
        if isinstance(word, PeriodOrder) and self._facts is not None:
            check_reachable({word.period.arm: word.endpoint.url}, read_facts(), [self._facts])
            self._is_busy = True
        self._words.put_nowait(word)

    async def hear(self) -> Reply:
        """Return the next reply; what ended before it is in the journal, and at `Done` on the device.

        Raises WorkerDiedError: the worker is gone, or gives no sign of life; StoreError: its journal cannot
        be written.
        """
        with self._named():
            while not self._heard:
                lines, replies = await self._remote.call("poll", wait_s=POLL_S)
                for line in lines.split(b"\n")[:-1]:
                    self._lines.append(line)
                for body in replies:
                    self._heard.append(await self._finish(REPLIES.decode(body)))
        return self._heard.pop(0)

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker; what it has of a period in progress is written down first unless `at_once`."""
        try:
            if not at_once and self._facts is not None:
                async with asyncio.timeout(CLOSE_S):
                    await self._drain()
        except (DraftproofError, TimeoutError):  # why the run ends has been said already
            pass
        finally:
            self._remote.kill()
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.wait({self._sending})
                self._lines.close()

    async def _drain(self) -> None:
        if self._is_busy:
            self.tell(Stop())
            while not isinstance(await self.hear(), Done | Failed):
                pass
        await self._remote.call("close")

    async def _send(self) -> None:
        """Send word after word: calls of an actor that run side by side have no order."""
        with contextlib.suppress(WorkerDiedError):  # `hear` finds the same
            while True:
                word = await self._words.get()
                beside: tuple[Any, ...] = ()
                if isinstance(word, PeriodOrder):
                    self._offset = await self._compare_clocks()
                    beside = (word.endpoint.headers, self._offset.offset_ns)
                    endpoint = msgspec.structs.replace(word.endpoint, headers=())
                    word = msgspec.structs.replace(word, endpoint=endpoint)
                await self._remote.call("take", msgspec.msgpack.encode(word), *beside)

    async def _compare_clocks(self) -> Offset:
        pings = []
        for _ in range(PINGS):
            sent_ns = self._clock()
            answered_ns = await self._remote.call("ping")
            pings.append(Ping(sent_ns, answered_ns, self._clock()))
        return estimate_offset(pings)

    async def _finish(self, reply: Reply) -> Reply:
        """Note the clocks of a part that is over, and put its records on the device."""
        if isinstance(reply, Done | Failed):
            self._is_busy = False
        if isinstance(reply, Done):
            self._lines.sync()
            return Done(self._note_clock(reply.block, await self._compare_clocks()))
        return reply

    def _note_clock(self, block: BlockRecord, after: Offset) -> BlockRecord:
        offset = widen_error(self._offset, after)
        at = "?" if self._facts is None else f"{self._facts.host}/{self._facts.pid}"
        clock = WorkerClock(f"w{self._setup.index} {at}", offset.offset_ns, offset.error_ns)
        return msgspec.structs.replace(block, clocks=(clock,))

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except WorkerDiedError as error:
            raise WorkerDiedError(f"{self.name} {error.message}") from error
