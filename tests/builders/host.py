"""A host of two cores whose busy programs a test says, by a clock that moves when somebody waits."""

import asyncio
from collections.abc import Collection

from draftproof.core.records import AcceleratorUse
from draftproof.services.telemetry.host import HostCounters, HostLoadReader

CORES = 2


class ScriptedHost(HostLoadReader):
    """Counts as a host on which our own and other programs use so many cores; both may be changed.

    `attached` notes whose work was said to be own at each reading, `closed` whether it was let go of.
    """

    def __init__(self, *, foreign: float = 0.0, own: float = 1.0) -> None:
        self.foreign, self.own = foreign, own
        self.at_s = self._busy_s = self._own_s = self._waited_s = 0.0
        self.attached: list[Collection[int] | None] = []
        self.closed = False

    def read(self, attached: Collection[int] | None = ()) -> HostCounters:
        """Return the counters; threads wait for a core while other programs run."""
        self.attached.append(attached)
        return HostCounters(
            at_ns=round(self.at_s * 1e9),
            busy_s=(self._busy_s / CORES,) * CORES,
            own_s=None if attached is None else self._own_s,
            steal_s=(0.0,) * CORES,
            pressure_s=self._waited_s,
        )

    def read_accelerators(self) -> tuple[AcceleratorUse, ...]:
        """Return one sample of one accelerator."""
        return (AcceleratorUse(index=0, samples=1, throttled=0, clock_mhz=1410.0),)

    def name_busiest(self, attached: Collection[int] | None = ()) -> tuple[str, ...]:
        """Name the program that takes the cores."""
        del attached
        return ("burn, pid 7: 1.0 cores",) if self.foreign else ()

    def close(self) -> None:
        """Note that it was let go of."""
        self.closed = True

    async def pause(self, seconds: float) -> None:
        """Let the host run on for so long, at once."""
        self.at_s += seconds
        self._busy_s += (self.foreign + self.own) * seconds
        self._own_s += self.own * seconds
        self._waited_s += 0.9 * seconds if self.foreign else 0.0
        await asyncio.sleep(0)
