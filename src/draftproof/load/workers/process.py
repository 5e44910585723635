"""A load worker as a process: `python -m draftproof.load.workers.process`, words in, replies out.

Words come on standard input and replies go to what standard output was; whatever else is printed goes to the
error stream. It ends when its input ends, so that none outlives the program that started it: what is in
flight then is written down as interrupted.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

import uvloop

from draftproof.client.transport import HttpTransport
from draftproof.errors import DraftproofError
from draftproof.load.masking import MaskingSink
from draftproof.load.workers.core import LoadWorker
from draftproof.load.workers.messages import (
    WORDS,
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
    Unframer,
    Word,
    encode_message,
)
from draftproof.records import RequestRecord
from draftproof.store.framing import open_sound_lines
from draftproof.store.journal import encode_line
from draftproof.store.lines import LineFile

REPORT_S = 0.05
_READ_BYTES = 1 << 16


class _LineSink:
    """Writes records to one journal file."""

    def __init__(self, lines: LineFile) -> None:
        self._lines = lines

    def append(self, record: RequestRecord) -> None:
        self._lines.append(encode_line(record))


class _Shell:
    """Carries words to a worker and its replies back."""

    def __init__(self, setup: Setup, out: BinaryIO) -> None:
        self._out = out
        self._lines = open_sound_lines(Path(setup.journal))
        self._transport = HttpTransport()
        sink = MaskingSink(_LineSink(self._lines), setup.secrets)
        self._worker = LoadWorker(setup.items, transport=self._transport, sink=sink)
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

    async def close(self) -> None:
        """End the turn, keep what it has, let go of everything."""
        self._worker.stop()
        if self._turn is not None:
            await asyncio.wait({self._turn})
        await self._transport.close()
        self._lines.close()

    async def _run(self, start_ns: int) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            with self._told_errors():
                block = await self._worker.run(start_ns)
                # Who reads that a turn is done must find its records after a power cut.
                self._lines.sync()
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

    def _reply(self, reply: Reply) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the input ends too
            self._out.write(encode_message(reply))

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except DraftproofError as error:
            kind = type(error).__name__
            self._reply(Failed(kind=kind, message=error.message, place=error.place, fix=error.fix))
        except Exception as error:  # noqa: BLE001 - whatever it is, the conductor must hear of it
            self._reply(Failed(kind=type(error).__name__, message=f"{type(error).__name__}: {error}"))


async def _serve(out: BinaryIO) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    words = _read_words(ended)
    setup = await anext(words, None)
    if not isinstance(setup, Setup):
        return
    shell = _Shell(setup, out)
    try:
        async for word in words:
            shell.take(word)
    finally:
        await shell.close()


async def _read_words(ended: asyncio.Event) -> AsyncIterator[Word]:
    """Yield words until the input ends or the process is asked to end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer
    )
    unframer, leaving = Unframer(), asyncio.create_task(ended.wait())
    while True:
        reading = asyncio.create_task(reader.read(_READ_BYTES))
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not reading.done() or not (data := reading.result()):
            reading.cancel()
            leaving.cancel()
            return
        for body in unframer.feed(data):
            yield WORDS.decode(body)


def main() -> int:
    """Serve until the input ends."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    uvloop.run(_serve(out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
