"""How the client itself behaved in a turn: lateness of its event loop, CPU time, garbage collection."""

import asyncio
import contextlib
import gc
import time
from array import array
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec

from draftproof.clock import Clock
from draftproof.metrics.percentiles import percentile

LAG_INTERVAL_S = 0.02
# New objects before garbage is looked for among them, seven times as many as usual: most are gone by then, so
# that a search costs little more, a fraction of a millisecond, and comes that much more seldom.
_NEW_OBJECTS = 5_000


class HealthReading(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen over one turn; None where nothing was sampled. Times in ns, `cpu_s` of this process."""

    lag_max_ns: int | None
    lag_p99_ns: int | None
    cpu_s: float
    gc_pause_max_ns: int
    gc_pause_total_ns: int


class ClientHealth:
    """Samples while entered.

    Lag is how much later than asked a sleep of `LAG_INTERVAL_S` ends: the longest time for which an arrival
    may have waited for its timestamp. Pauses of garbage collection are told by the collector itself.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lags = array("q")  # eight bytes each: a turn may take hours
        self._pauses: list[int] = []
        self._collecting_since_ns: int | None = None
        self._cpu_at_start_s = 0.0

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator["ClientHealth"]:
        """Sample until the block ends."""
        self._cpu_at_start_s = time.process_time()
        gc.freeze()  # what the program has loaded by now is not searched for garbage during the turn
        thresholds = gc.get_threshold()
        gc.set_threshold(_NEW_OBJECTS, *thresholds[1:])
        gc.callbacks.append(self._on_collection)
        sampler = asyncio.create_task(self._sample())
        try:
            yield self
        finally:
            sampler.cancel()
            await asyncio.wait({sampler})
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*thresholds)
            gc.unfreeze()

    def read(self) -> HealthReading:
        """Return what was seen so far."""
        return HealthReading(
            lag_max_ns=max(self._lags, default=None),
            lag_p99_ns=p99(self._lags),
            cpu_s=time.process_time() - self._cpu_at_start_s,
            gc_pause_max_ns=max(self._pauses, default=0),
            gc_pause_total_ns=sum(self._pauses),
        )

    async def _sample(self) -> None:
        interval_ns = round(LAG_INTERVAL_S * 1e9)
        while True:
            due_ns = self._clock() + interval_ns
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lags.append(max(self._clock() - due_ns, 0))

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        del info
        now_ns = self._clock()
        if phase == "start":
            self._collecting_since_ns = now_ns
        elif self._collecting_since_ns is not None:
            self._pauses.append(now_ns - self._collecting_since_ns)


def p99(values: Iterable[int]) -> int | None:
    """Return the 99th percentile by nearest rank, None of nothing."""
    found = percentile(values, 0.99)
    return None if found is None else int(found)
