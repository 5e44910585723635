"""Runs turns: chooses the loop that a load level asks for and hands every record to a sink.

After a failure a slot rests for a moment: a service that refuses at once must not be flooded by the very
client that measures it.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Literal

from draftproof.client.wire import Transport
from draftproof.clock import Clock, monotonic_ns
from draftproof.load.closed_loop import ClosedLoop
from draftproof.load.open_loop import OpenLoopRunner
from draftproof.load.part import Part
from draftproof.load.performing import LoadSettings, Performer
from draftproof.load.schedule import Schedule, SeedOf, warmup_turn
from draftproof.load.turn import Endpoint, Sink, Turn
from draftproof.records import BlockRecord
from draftproof.workload.answers import AnswerView
from draftproof.workload.blocks import request_seed
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
