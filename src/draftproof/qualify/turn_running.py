"""Runs a turn as the plan asks: in this process, or dealt to load workers here or on a cluster.

With workers this process sends no counted request: it conducts, samples the service's metrics and rests.
"""

import asyncio
from collections.abc import Collection, Mapping

from draftproof.errors import DraftproofError
from draftproof.load.driver import run_turn
from draftproof.load.turn import Turn
from draftproof.load.workers import Outcome, WorkerDiedError, WorkerPool, index_by_turn
from draftproof.qualify.board import Board
from draftproof.qualify.clusters import make_workers
from draftproof.qualify.fleet import Fleet
from draftproof.qualify.warming import Route
from draftproof.store import RunDirectory
from draftproof.workload.answers import AnswerView
from draftproof.workload.items import Item


class TurnRunner:
    """Runs one turn after the other.

    Args:
        run: where records go.
        fleet: the arms, and the plan that says how many workers there are.
        route: what requests of this process travel by.
        answered: request id -> answer of what an earlier part of the run has recorded.
        board: told how many requests of workers are open.
        pool: load workers that whoever gives them ends; None: those that the plan asks for, of its own.
    """

    def __init__(
        self,
        run: RunDirectory,
        fleet: Fleet,
        route: Route,
        answered: Mapping[str, AnswerView | None],
        board: Board,
        *,
        pool: WorkerPool | None = None,
    ) -> None:
        self._run, self._fleet, self._route, self._answered = run, fleet, route, answered
        self._board, self._in_flight = board, 0
        self._by_turn = index_by_turn(answered)
        self._own_pool = open_pool(run, fleet, route.items.values()) if pool is None else None
        self._pool = self._own_pool if pool is None else pool

    async def run(self, turn: Turn, stop: asyncio.Event) -> Outcome:
        """Run one turn; what it measured is in the journal, its own record is not yet."""
        endpoint = self._fleet.contacts[turn.arm].endpoint
        if self._pool is not None:
            return await self._pool.run_turn(
                turn,
                endpoint,
                settings=self._route.settings,
                answered=self._by_turn.get(turn.key, {}),
                stop=stop,
                watch=self._show_in_flight,
            )
        block = await run_turn(
            turn,
            endpoint,
            self._route.items,
            transport=self._route.transport,
            sink=self._route.sink,
            settings=self._route.settings,
            done=self._answered,
            answered=self._answered,
            stop=stop,
        )
        return Outcome(block=block)

    def raise_error(self, outcome: Outcome) -> None:
        """Do nothing if no worker failed.

        Raises:
            DraftproofError: why the turn ended before its end, and how the run goes on.
        """
        if isinstance(outcome.error, WorkerDiedError):
            raise WorkerDiedError(
                f"{outcome.error.message}; what it had in flight was not recorded and counts as no arm's "
                "failure",
                fix="see what ended it (memory?), then continue with: "
                f"draftproof run --resume {self._run.path}",
            )
        if isinstance(outcome.error, DraftproofError):
            raise outcome.error

    async def close(self, *, at_once: bool = False) -> None:
        """End the workers that are its own."""
        if self._own_pool is not None:
            await self._own_pool.close(at_once=at_once)

    def _show_in_flight(self, in_flight: int) -> None:
        self._board.count_in_flight(in_flight - self._in_flight)
        self._in_flight = in_flight


def open_pool(run: RunDirectory, fleet: Fleet, items: Collection[Item]) -> WorkerPool | None:
    """Return the load workers that a plan asks for, None where this process sends itself.

    The first turn starts them.

    Args:
        run: where records go.
        fleet: the arms, and the plan.
        items: every item that they will be asked for.
    """
    limits = fleet.plan.limits
    if limits.workers == 1 and limits.ray is None:
        return None
    run.lock()
    return WorkerPool(
        limits.workers,
        tuple(items),
        journal=run.path / "journal",
        secrets=fleet.secrets,
        inherited=() if run.lock_fd is None else (run.lock_fd,),
        make=make_workers(fleet.plan, items),
    )
