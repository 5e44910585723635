"""A load worker as a child process: both ends of its pipes.

Words come on standard input and replies go to what standard output was; whatever else is printed goes to the
error stream. It ends when its input ends, so that none outlives the program that started it: what is in
flight then is written down as interrupted.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import uvloop

from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.request_runner import MaskingSink
from draftproof.measure.load.workers.core import LoadWorker
from draftproof.measure.load.workers.messages import (
    REPLIES,
    WORDS,
    Reply,
    Setup,
    Unframer,
    Word,
    WorkerDiedError,
    encode_message,
)
from draftproof.store.journal import encode_line, open_sound_lines

_READ_BYTES = 1 << 16
CLOSE_S = 5.0


class ProcessWorker:
    """A child process of this one; `start` makes it.

    `setup`: what it is told first. `inherited`: descriptors that it keeps open as long as it lives.
    """

    def __init__(self, setup: Setup, inherited: tuple[int, ...] = ()) -> None:
        self._setup, self._inherited = setup, inherited
        self._process: asyncio.subprocess.Process | None = None
        self._unframer, self._heard = Unframer(), list[Reply]()

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"load worker {self._setup.index}"

    @property
    def pid(self) -> int | None:
        """Its process id, None before `start`."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Make the process and hand it its setup by a pipe: command line and environment can be read."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "draftproof.measure.load.workers.process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=self._inherited,
            # Ctrl-C in a terminal is meant for the program: it says what the workers have to do.
            start_new_session=True,
        )
        self.tell(self._setup)

    def tell(self, word: Word) -> None:
        """Send a word."""
        pipe = self._running.stdin
        if pipe is not None and not pipe.is_closing():
            pipe.write(encode_message(word))

    async def hear(self) -> Reply:
        """Return the next reply. Raises WorkerDiedError: the worker is gone."""
        while not self._heard:
            pipe = self._running.stdout
            data = b"" if pipe is None else await pipe.read(_READ_BYTES)
            if not data:
                raise WorkerDiedError(f"{self.name} {describe_end(await self._running.wait())}")
            self._heard += [REPLIES.decode(body) for body in self._unframer.feed(data)]
        return self._heard.pop(0)

    async def close(self, *, at_once: bool = False) -> None:
        """End the process and wait until it is gone."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            if not at_once:
                async with asyncio.timeout(CLOSE_S):
                    await self._drain(process)
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        """A process whose last words nobody reads would wait for ever to say them."""
        while process.stdout is not None and await process.stdout.read(_READ_BYTES):
            pass
        await process.wait()

    @property
    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the worker has not been started")
        return self._process


def describe_end(code: int) -> str:
    """Return how a process ended, as the rest of a sentence."""
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


async def _serve(out: BinaryIO) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    words = _read_words(ended)
    setup = await anext(words, None)
    if not isinstance(setup, Setup):
        return
    lines, transport = open_sound_lines(Path(setup.journal)), HttpTransport()

    def reply(said: Reply) -> None:
        with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the input ends too
            out.write(encode_message(said))

    sink = MaskingSink(lambda record: lines.append(encode_line(record)), setup.secrets)
    worker = LoadWorker(setup.items, transport=transport, sink=sink, reply=reply, sync=lines.sync)
    try:
        async for word in words:
            worker.take(word)
    finally:
        await worker.close()
        await transport.close()
        lines.close()


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
