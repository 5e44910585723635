"""Several streams of outputs as one, each output in the order it becomes known."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def interleave(streams: Sequence[AsyncIterable[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield (index of the stream, item) until every stream has ended; no stream is read ahead of its turn.

    Closing it stops reading and leaves the streams open, for whoever opened them to close. What a stream
    raises is raised here.
    """
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    iterators = [stream.__aiter__() for stream in streams]
    reading = {asyncio.create_task(_next(iterator)): at for at, iterator in enumerate(iterators)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=reading.__getitem__):
                at = reading.pop(task)
                for item in task.result():
                    yield at, item
                    reading[asyncio.create_task(_next(iterators[at]))] = at
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


async def _next(iterator: AsyncIterator[T]) -> tuple[T, ...]:
    """Return the next item, nothing at the end."""
    try:
        return (await anext(iterator),)
    except StopAsyncIteration:
        return ()
