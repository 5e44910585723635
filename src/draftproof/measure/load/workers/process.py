"""A load worker as a process: `python -m draftproof.measure.load.workers.process`, words in, replies out.

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
from draftproof.measure.load.workers.messages import WORDS, Reply, Setup, Unframer, Word, encode_message
from draftproof.store.journal import encode_line, open_sound_lines

_READ_BYTES = 1 << 16


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
