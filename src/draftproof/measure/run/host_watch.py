"""Watches the host while a run measures, and ends or halts a run that cannot end well any more.

Reads counters every few seconds and at both ends of a period, in a thread: no request waits for it. What is
found is `early_warning.py`'s; here it is kept, reported once, and acted on.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import msgspec
import psutil

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.records import AcceleratorUse, BlockRecord, HostUse, Notice
from draftproof.judge.metrics.host_use import (
    LEAST_SPAN_S,
    foreign_cores,
    is_disturbed,
    is_idle,
    join_uses,
    stolen_cores,
)
from draftproof.judge.observe.attempts import HOST_CODES
from draftproof.measure.run.early_warning import PeriodSeen, RunSeen, find_notices
from draftproof.measure.run.progress import Patience, Progress, unless_stopped
from draftproof.measure.run.progress_model import PeriodView
from draftproof.services.telemetry.host import HostCounters, HostLoadReader, subtract

# Slices in which the host is read: the kernel adds up waiting every two seconds.
SLICE_S = 5.0
QUIET_SLICES = 2
MOST_SLICES = 240


class OwnWork(msgspec.Struct, frozen=True, kw_only=True):
    """Whose work on this host is the run's own, beside this program and what it has started.

    `attached`: processes of attached services; None where those of `hidden` cannot be distinguished from
    others. `serves_here`: an arm runs on this host.
    """

    attached: tuple[int, ...] | None = ()
    hidden: tuple[str, ...] = ()
    serves_here: bool = True


class Span:
    """What the host did over one warm-up or period; None until it is over, and where it cannot be read."""

    use: HostUse | None = None


class HostWatch:
    """Sees what the host does in each span, and sets `halt` where the run cannot end well any more.

    `progress`: gets each notice. `patience`: what to do about a run that cannot end well. `planned`:
    periods of baseline and candidate by load. `lag_limit_ms`: how late the client may be. `own`: whose work
    is the run's own. `clock`: source of the times of notices. `pause`: waits so many seconds.
    """

    def __init__(
        self,
        reader: HostLoadReader,
        progress: Progress,
        *,
        patience: Patience | None = None,
        planned: Mapping[str, int] | None = None,
        lag_limit_ms: float = 50.0,
        own: OwnWork | None = None,
        clock: Clock = monotonic_ns,
        pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
    ) -> None:
        own = own or OwnWork()
        self.reader, self.progress, self.patience = reader, progress, patience or Patience()
        self._own, self._clock, self._pause = own, clock, pause
        self._unkept: list[Notice] = []
        self._keep: Callable[[Notice], None] = self._unkept.append
        self._seen = RunSeen(
            planned=planned or {},
            lag_limit_ms=lag_limit_ms,
            serves_here=own.serves_here,
            hidden=own.hidden,
        )
        self._last: HostCounters | None = None
        self._samples: list[AcceleratorUse] = []
        self._reported: set[tuple[str, str]] = set()
        self._found: set[tuple[str, str]] = set()
        self.halt = asyncio.Event()
        self.ending: Notice | None = None
        self._forecast: Callable[[], float | None] | None = None

    def follow(self, forecast: Callable[[], float | None]) -> None:
        """Take the seconds left from whoever shows them, so that nobody says otherwise."""
        self._forecast = forecast

    def keep_in(self, keep: Callable[[Notice], None]) -> None:
        """Say who takes each notice, those so far included."""
        self._keep = keep
        for notice in self._unkept:
            keep(notice)
        self._unkept.clear()

    def know(self, own: OwnWork) -> None:
        """Say whose work is the run's own from now on."""
        self._own = own
        self._seen = msgspec.structs.replace(self._seen, serves_here=own.serves_here, hidden=own.hidden)

    @contextlib.asynccontextmanager
    async def span(self) -> AsyncIterator[Span]:
        """Watch while an arm is warmed up or measured."""
        span, self._samples = Span(), []
        self._reported -= {one for one in self._reported - self._found if one[0] in HOST_CODES}
        self._last = before = await self._read()
        over = asyncio.Event()
        slicing = asyncio.create_task(self._slice(over))
        try:
            yield span
        finally:
            # Not cancelled: what it is about to say would be lost.
            over.set()
            (ended,) = await asyncio.gather(slicing, return_exceptions=True)
        after = await self._take_slice()
        if before is not None and after is not None:
            use = msgspec.structs.replace(subtract(before, after), accelerators=tuple(self._samples))
            span.use = join_uses([use])
        if isinstance(ended, Exception):
            raise ended
        await self._consider()

    async def period_ended(self, record: BlockRecord, view: PeriodView) -> None:
        """Take in a period that has ended, and what is left by the forecast."""
        period = PeriodSeen(record=record, faults=view.client_faults, tpot_ns=view.tpot_ns)
        self._seen = msgspec.structs.replace(
            self._seen, periods=(*self._seen.periods, period), left_s=view.left_s
        )
        await self._consider()

    async def wait_for_quiet(self, stop: asyncio.Event) -> bool:
        """Wait, if the run may, until the host is quiet; tell whether the run can go on.

        Raises Interrupted: the user wants to leave.
        """
        if self.patience.wait_s is None or self.ending is None or self.ending.code not in HOST_CODES:
            return False
        waited_s = await wait_until_quiet(
            self.reader, self.patience.wait_s, self.progress, stop, own=self._own, pause=self._pause
        )
        if waited_s is None:
            return False
        await self._note(
            Notice(
                code="waited",
                severity="note",
                text=f"The run waited {waited_s / 60:.0f} min until the host was quiet.",
                remedy="none is needed",
            )
        )
        self.ending, self._reported = None, set()
        self._seen = msgspec.structs.replace(self._seen, slices=())
        self.halt.clear()
        return True

    @contextlib.asynccontextmanager
    async def heeding(self, stop: asyncio.Event) -> AsyncIterator[None]:
        """Halt as well when the user wants to leave, while the block lasts."""

        async def pass_on() -> None:
            await stop.wait()
            self.halt.set()

        passing = asyncio.create_task(pass_on())
        try:
            yield
        finally:
            passing.cancel()
            await asyncio.wait({passing})
            self.reader.close()

    async def _slice(self, over: asyncio.Event) -> None:
        while not over.is_set():
            waits = {asyncio.ensure_future(self._pause(SLICE_S)), asyncio.create_task(over.wait())}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for one in waits:
                one.cancel()
            if not over.is_set():
                await self._take_slice()
                await self._consider()

    async def _take_slice(self) -> HostCounters | None:
        """Add what the host did since the last reading."""
        before, after = self._last, await self._read()
        self._last = after
        if before is not None and after is not None:
            self._add_slice(subtract(before, after))
        return after

    def _add_slice(self, use: HostUse) -> None:
        if use.span_s >= LEAST_SPAN_S:
            self._seen = msgspec.structs.replace(
                self._seen,
                slices=(*self._seen.slices[1 - MOST_SLICES :], use),
                well_s=self._seen.well_s + (0.0 if is_disturbed(use) else use.span_s),
            )

    async def _read(self) -> HostCounters | None:
        try:
            samples = await asyncio.to_thread(self.reader.read_accelerators)
            counters = await asyncio.to_thread(self.reader.read, self._own.attached)
        except (OSError, psutil.Error):
            return None
        self._samples += samples
        return counters

    async def _consider(self) -> None:
        """Tell what is new, and halt the run where it is over."""
        if self._forecast is not None:
            self._seen = msgspec.structs.replace(self._seen, left_s=self._forecast())
        every = find_notices(self._seen)
        self._found = {(one.code, one.severity) for one in every}
        for found in every:
            if (found.code, found.severity) in self._reported or self.ending is not None:
                continue
            self._reported.add((found.code, found.severity))
            is_over = found.severity == "cannot_end_well"
            self.ending = found if is_over and not self.patience.keep_going else None
            await self._note(found if self.ending else msgspec.structs.replace(found, severity="note"))
            if self.ending is not None:
                self.halt.set()

    async def _note(self, notice: Notice) -> None:
        """Keep a notice and tell it; who takes the cores is reported and not kept."""
        notice = msgspec.structs.replace(notice, at_ns=self._clock())
        self._keep(notice)
        if notice.code == "host_busy":
            busiest = await asyncio.to_thread(self.reader.name_busiest, self._own.attached)
            who = f" ({', '.join(busiest)})" if busiest else ""
            notice = msgspec.structs.replace(notice, remedy=f"{notice.remedy}{who}")
        self.progress.noticed(notice)


async def wait_until_quiet(
    reader: HostLoadReader,
    limit_s: float,
    progress: Progress,
    stop: asyncio.Event,
    *,
    own: OwnWork | None = None,
    pause: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
) -> float | None:
    """Wait until others leave the cores free while nothing is asked; return the seconds, None if in vain.

    Services that wait use no core, so that what cannot be distinguished counts as others' work here. Raises
    Interrupted: the user wants to leave.
    """
    progress.phase(f"Waiting for a quiet host, {limit_s / 60:.0f} min at most")
    attached, waited_s, quiet = (own or OwnWork()).attached or (), 0.0, 0
    before = await asyncio.to_thread(reader.read, attached)
    while waited_s < limit_s:
        await unless_stopped(pause(SLICE_S), stop)
        after = await asyncio.to_thread(reader.read, attached)
        use, before = subtract(before, after), after
        waited_s += use.span_s
        quiet = quiet + 1 if is_idle(use) else 0
        if quiet >= QUIET_SLICES:
            return waited_s
        taken = (foreign_cores(use) or 0.0) + stolen_cores(use)
        progress.advance(round(waited_s), round(limit_s), f"others use {taken:.1f} of {use.cores} cores")
    return None
