"""One worker's part of a turn, and what whoever conducts the turn has said of it so far.

A turn that one loop runs alone is a part that is the whole: it decides by itself when its lead is over, and
it ends with its last counted request.
"""

import asyncio

from draftproof.load.share import Share


class Part:
    """What a loop owns of a turn and what it waits for.

    Args:
        share: which part.
        start_ns: when the turn begins, the same for all parts; None: at once.
    """

    def __init__(self, share: Share | None = None, start_ns: int | None = None) -> None:
        self.share, self.start_ns = share or Share(), start_ns
        self.turn_over = asyncio.Event()
        self._base_told = asyncio.Event()
        self._base_ns = 0

    def begin_counting(self, base_ns: int) -> None:
        """Say when the counted part of an open loop begins; a second word changes nothing."""
        if not self._base_told.is_set():
            self._base_ns = base_ns
            self._base_told.set()

    async def wait_for_base(self) -> int:
        """Return when the counted part begins, as soon as that is said."""
        await self._base_told.wait()
        return self._base_ns

    def finish(self) -> None:
        """Say that every counted request of every part has ended."""
        self.turn_over.set()
