"""Carries words to a `LoadWorker` and its replies back, whatever they travel by."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from draftproof.errors import DraftproofError
from draftproof.load.workers.core import LoadWorker
from draftproof.load.workers.messages import (
    Count,
    Done,
    Failed,
    Finish,
    Prepared,
    Reply,
    Setup,
    Start,
    Stop,
    TurnOrder,
    Word,
)

REPORT_S = 0.05


class WorkerShell:
    """Does what words say and tells what came of it.

    Args:
        worker: runs the parts of the turns.
        reply: takes each reply.
        sync: makes the records of a part as safe as they have to be before `Done` is said.
    """

    def __init__(
        self, worker: LoadWorker, *, reply: Callable[[Reply], None], sync: Callable[[], None]
    ) -> None:
        self._worker, self._reply, self._sync = worker, reply, sync
        self._turn: asyncio.Task[None] | None = None

    def take(self, word: Word) -> None:
        """Do what a word says."""
        worker = self._worker
        match word:
            case TurnOrder():
                with self._told_errors():
                    worker.prepare(word)
                    self._reply(Prepared())
            case Start():
                self._turn = asyncio.create_task(self._run(word.start_ns))
            case Count():
                worker.begin_counting(word.base_ns)
            case Finish():
                worker.finish()
            case Stop():
                worker.stop()
            case Setup():
                raise RuntimeError("a worker is set up once")

    def end(self) -> None:
        """End the turn now, as `Stop` does."""
        self._worker.stop()

    async def close(self) -> None:
        """End the turn and wait until it has."""
        self.end()
        if self._turn is not None:
            await asyncio.wait({self._turn})

    async def _run(self, start_ns: int) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            with self._told_errors():
                block = await self._worker.run(start_ns)
                # Who reads that a turn is done must find its records after a power cut.
                self._sync()
                self._reply(Done(block))
        finally:
            reporting.cancel()

    async def _report(self) -> None:
        """Tell how the part stands from time to time, and at once when it is over."""
        over = asyncio.create_task(self._worker.wait_until_over())
        try:
            while True:
                await asyncio.wait({over}, timeout=REPORT_S)
                self._reply(self._worker.standing())
                if over.done():
                    await asyncio.sleep(REPORT_S)
        finally:
            over.cancel()

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except DraftproofError as error:
            kind = type(error).__name__
            self._reply(Failed(kind=kind, message=error.message, place=error.place, fix=error.fix))
        except Exception as error:  # noqa: BLE001 - whatever it is, the conductor must hear of it
            self._reply(Failed(kind=type(error).__name__, message=f"{type(error).__name__}: {error}"))
