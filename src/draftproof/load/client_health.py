"""How the client itself behaved: the event loop's lateness and the CPU time spent."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from draftproof.clock import Clock

LAG_INTERVAL_S = 0.02


class ClientHealth:
    """Samples while entered. `lag_max_ns` is None until the first sample.

    Lag is how much later than asked a sleep of `LAG_INTERVAL_S` ends: the longest time for which an arrival
    may have waited for its timestamp. `cpu_s` is the CPU time of this whole process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cpu_at_start_s = 0.0
        self.lag_max_ns: int | None = None
        self.cpu_s: float | None = None

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator["ClientHealth"]:
        """Sample until the block ends."""
        self._cpu_at_start_s = time.process_time()
        sampler = asyncio.create_task(self._sample())
        try:
            yield self
        finally:
            sampler.cancel()
            await asyncio.wait({sampler})
            self.cpu_s = time.process_time() - self._cpu_at_start_s

    async def _sample(self) -> None:
        interval_ns = round(LAG_INTERVAL_S * 1e9)
        while True:
            due_ns = self._clock() + interval_ns
            await asyncio.sleep(LAG_INTERVAL_S)
            self.lag_max_ns = max(self.lag_max_ns or 0, self._clock() - due_ns, 0)
