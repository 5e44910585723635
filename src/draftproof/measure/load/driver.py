"""Runs turns: chooses the loop that a load level asks for and hands every record to a sink.

After a failure a slot rests for a moment: a service that refuses at once must not be flooded by the very
client that measures it.

A sink that keeps records in memory, for loads that are judged at once and not stored.

Keeps secrets out of the journal: what a service quotes of its request is masked before that.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Literal

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.records import BlockRecord, RequestRecord
from draftproof.measure.client.wire import Transport
from draftproof.measure.load.loops import ClosedLoop, OpenLoopRunner
from draftproof.measure.load.period import Endpoint, Sink, Turn
from draftproof.measure.load.request_runner import LoadSettings, Performer
from draftproof.measure.load.schedule import Part, Schedule, SeedOf, warmup_turn
from draftproof.plan.environment import mask_struct
from draftproof.workload.blocks import request_seed
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item

__all__ = ["LoadSettings", "prepare_turn", "run_performer", "run_turn", "run_warmup"]


def prepare_turn(
    turn: Turn,
    endpoint: Endpoint,
    items: Mapping[str, Item],
    *,
    transport: Transport,
    sink: Sink,
    settings: LoadSettings | None = None,
    done: Collection[str] = (),
    seed_of: SeedOf = request_seed,
    clock: Clock = monotonic_ns,
    answered: Mapping[str, AnswerView | None] | None = None,
    part: Part | None = None,
    phase: Literal["measure", "warmup"] = "measure",
) -> Performer:
    """Return what `run_performer` runs, made of what `run_turn` takes.

    `part` is which part of the turn, and the words of whoever conducts it; None: all of it, alone.
    """
    part = part or Part()
    schedule = Schedule(
        turn, items, done=done, seed_of=seed_of, phase=phase, answered=answered, share=part.share
    )
    return Performer(
        turn=turn,
        endpoint=endpoint,
        schedule=schedule,
        transport=transport,
        sink=sink,
        settings=settings or LoadSettings(),
        clock=clock,
        part=part,
    )


async def run_performer(performer: Performer, stop: asyncio.Event) -> BlockRecord:
    """Run a prepared turn, or a part of one, in the loop that its load level asks for."""
    is_closed = performer.turn.concurrency is not None
    loop = ClosedLoop(performer) if is_closed else OpenLoopRunner(performer)
    return await loop.run(stop)


async def run_turn(
    turn: Turn,
    endpoint: Endpoint,
    items: Mapping[str, Item],
    *,
    transport: Transport,
    sink: Sink,
    settings: LoadSettings | None = None,
    done: Collection[str] = (),
    stop: asyncio.Event | None = None,
    seed_of: SeedOf = request_seed,
    clock: Clock = monotonic_ns,
    answered: Mapping[str, AnswerView | None] | None = None,
) -> BlockRecord:
    """Run one arm's turn of a block and return how it went.

    Setting `stop` ends the turn early: requests in flight are cancelled and recorded, counted ones as
    `interrupted`. An error of the sink cancels what is in flight and is raised.

    Args:
        turn: which items, at which concurrency.
        endpoint: the arm's service.
        items: the workload's items by id.
        transport: carries the requests.
        sink: takes each record as its request ends.
        settings: patience and pace; None: the defaults.
        done: request ids already recorded by an interrupted run.
        stop: set by whoever wants the turn to end.
        seed_of: seed of an item at a repeat.
        clock: source of every time in the records.
        answered: request id -> answer of what is done, None for a failure; conversations go on from there.
    """
    performer = prepare_turn(
        turn,
        endpoint,
        items,
        transport=transport,
        sink=sink,
        settings=settings,
        done=done,
        seed_of=seed_of,
        clock=clock,
        answered=answered,
    )
    return await run_performer(performer, stop or asyncio.Event())


async def run_warmup(
    turn: Turn,
    endpoint: Endpoint,
    items: Mapping[str, Item],
    *,
    count: int,
    transport: Transport,
    sink: Sink,
    settings: LoadSettings | None = None,
    done: Collection[str] = (),
    stop: asyncio.Event | None = None,
    seed_of: SeedOf = request_seed,
    clock: Clock = monotonic_ns,
) -> BlockRecord:
    """Send `count` requests of phase `warmup` over the turn's items, at its concurrency; never counted."""
    performer = prepare_turn(
        warmup_turn(turn, count),
        endpoint,
        items,
        transport=transport,
        sink=sink,
        settings=settings,
        done=done,
        seed_of=seed_of,
        clock=clock,
        phase="warmup",
    )
    return await run_performer(performer, stop or asyncio.Event())


class MemorySink:
    """Takes every record; `records` are those taken so far, in the order in which their requests ended."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self.records.append(record)


class MaskingSink:
    """Hands records on with every secret masked in every text of theirs.

    A service that refuses a key likes to repeat it in its answer, and an answer is kept as it came.

    Args:
        sink: takes the records.
        secrets: values to mask.
    """

    def __init__(self, sink: Sink, secrets: tuple[str, ...]) -> None:
        self._sink, self._secrets = sink, secrets

    def append(self, record: RequestRecord) -> None:
        """Keep one record."""
        self._sink.append(mask_struct(record, self._secrets) if self._secrets else record)
