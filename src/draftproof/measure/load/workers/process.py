"""A load worker as a child process: both ends of its pipes.

Words come on standard input and replies go to what standard output was; whatever else is printed goes to the
error stream. It ends when its input ends, so that none outlives the program that started it: what is in
flight then is written down as interrupted.

A load worker apart from any process: it takes words, runs its part of each period, and replies.

It knows no pipe and no file. Whatever carries words to it (a pipe's reader, an actor of a cluster) calls
`take` on the loop that runs its periods.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import uvloop

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import DraftproofError
from draftproof.measure.client.exchange import Transport
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.loops import run
from draftproof.measure.load.period import Sink
from draftproof.measure.load.request_runner import MaskingSink, RequestRunner
from draftproof.measure.load.schedule import Part
from draftproof.measure.load.workers.messages import (
    REPLIES,
    WORDS,
    Count,
    Done,
    Failed,
    Finish,
    PeriodOrder,
    Prepared,
    Reply,
    Setup,
    ShardProgress,
    Start,
    Stop,
    Unframer,
    Word,
    WorkerDiedError,
    encode_message,
)
from draftproof.store.journal import encode_line, open_sound_lines
from draftproof.workload.items import Item

REPORT_S = 0.05


class LoadWorker:
    """Runs its part of one period after the other, as it is asked.

    `sync`: makes the records of a part as safe as they have to be before `Done` is said. `clock`: the clock
    that all workers of a host share.
    """

    def __init__(
        self,
        items: Sequence[Item],
        *,
        transport: Transport,
        sink: Sink,
        reply: Callable[[Reply], None],
        sync: Callable[[], None] = lambda: None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._items = {item.id: item for item in items}
        self._transport, self._sink, self._clock = transport, sink, clock
        self._reply, self._sync = reply, sync
        self._runner: RequestRunner
        self._stop = asyncio.Event()
        self._period: asyncio.Task[None] | None = None

    def take(self, word: Word) -> None:
        """Do what a word says; the first is a period's order."""
        match word:
            case PeriodOrder():
                with self._replying_errors():
                    self._prepare(word)
                    self._reply(Prepared())
            case Start():
                self._period = asyncio.create_task(self._run(word.start_ns))
            case Count():
                self._runner.part.begin_counting(word.base_ns)
            case Finish():
                self._runner.part.period_over.set()
            case Stop():
                self.end()

    def end(self) -> None:
        """End the period now, as `Stop` does."""
        self._stop.set()

    def standing(self) -> ShardProgress:
        """Return how the part stands."""
        runner = self._runner
        return ShardProgress(runner.ended, runner.in_flight, runner.schedule.is_over, runner.ended_ns)

    async def close(self) -> None:
        """End the period and wait until it has."""
        self.end()
        if self._period is not None:
            await asyncio.wait({self._period})

    def _prepare(self, order: PeriodOrder) -> None:
        """Make the schedule of a period, so that its start costs no time."""
        self._stop = asyncio.Event()
        self._runner = RequestRunner(
            order.period,
            order.endpoint,
            self._items,
            transport=self._transport,
            sink=self._sink,
            settings=order.settings,
            done=order.answered,
            answered=order.answered,
            clock=self._clock,
            part=Part(order.share),
        )

    async def _run(self, start_ns: int) -> None:
        reporting = asyncio.create_task(self._report())
        try:
            with self._replying_errors():
                self._runner.part.start_ns = start_ns
                block = await run(self._runner, self._stop)
                # Who reads that a period is done must find its records after a power cut.
                self._sync()
                self._reply(Done(block))
        finally:
            reporting.cancel()

    async def _report(self) -> None:
        """Tell how the part stands from time to time, and at once when its counted requests are over."""
        over = asyncio.create_task(self._runner.counted_over.wait())
        try:
            while True:
                await asyncio.wait({over}, timeout=REPORT_S)
                self._reply(self.standing())
                if over.done():
                    await asyncio.sleep(REPORT_S)
        finally:
            over.cancel()

    @contextlib.contextmanager
    def _replying_errors(self) -> Iterator[None]:
        try:
            yield
        except DraftproofError as error:
            kind = type(error).__name__
            self._reply(Failed(kind=kind, message=error.message, place=error.place, fix=error.fix))
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator must hear of it
            self._reply(Failed(kind=type(error).__name__, message=f"{type(error).__name__}: {error}"))


_READ_BYTES = 1 << 16
CLOSE_S = 5.0


class ProcessWorker:
    """A child process of this one; `start` makes it.

    `setup`: what it gets first. `inherited`: descriptors that it keeps open as long as it lives.
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
