"""The conductor's end of a load worker: the seam, and the one that is a child process.

A worker on another host is a second implementation of `Worker`: it takes the same words and gives the same
replies.
"""

import asyncio
import contextlib
import signal
import sys
from typing import Protocol

from draftproof.core.errors import DraftproofError
from draftproof.measure.load.workers.messages import REPLIES, Reply, Setup, Unframer, Word, encode_message

CLOSE_S = 5.0
_READ_BYTES = 1 << 16


class WorkerDiedError(DraftproofError):
    """A load worker is gone: a fault of the client, never of a service."""


class Worker(Protocol):
    """One load worker as its conductor sees it."""

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        ...

    async def start(self) -> None:
        """Make it ready for its first turn. Raises DraftproofError: it cannot be had."""
        ...

    def tell(self, word: Word) -> None:
        """Send a word; one that does not arrive shows in `hear`."""
        ...

    async def hear(self) -> Reply:
        """Return the next reply. Raises WorkerDiedError: the worker is gone."""
        ...

    async def close(self, *, at_once: bool = False) -> None:
        """End the worker and wait until it is gone; `at_once`: it gets no time to write down what it has."""
        ...


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
