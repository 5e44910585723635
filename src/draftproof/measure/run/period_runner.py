"""Runs a turn as the plan asks: in this process, or dealt to load workers here or on a cluster.

With workers this process sends no counted request: it conducts, samples the service's metrics and rests.

Warms arms up before their turns: once at each load level after each start, until they are stable.

Owns who is warm. The rule and the requests are `measure/load/warmup.py`'s; what came of it goes into the run.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from draftproof.core.errors import DraftproofError
from draftproof.core.records import RequestRecord, Warmup
from draftproof.judge.metrics.phases import WarmupRule
from draftproof.measure.client.wire import Transport
from draftproof.measure.load.driver import LoadSettings, run_turn, run_warmup
from draftproof.measure.load.period import Endpoint, Sink, Turn
from draftproof.measure.load.sockets import find_warmup_slots, read_limits
from draftproof.measure.load.warmup import GroupSink, lay_out_group, warm_up
from draftproof.measure.load.workers import Outcome, WorkerDiedError, WorkerPool, index_by_turn
from draftproof.measure.run.clusters import make_workers
from draftproof.measure.run.progress_model import Board
from draftproof.measure.run.service_group import Fleet
from draftproof.plan.schema import Limits
from draftproof.store import RunDirectory
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What warm-up requests travel by: the same as the counted ones."""

    items: Mapping[str, Item]
    transport: Transport
    sink: Sink
    settings: LoadSettings
    stop: asyncio.Event


class Warmer:
    """Remembers who has been warmed up where.

    Args:
        limits: the plan's limits, which hold the rule.
        route: what the requests travel by.
        keep: takes what came of each warm-up.
        before: warm-ups of an earlier part of the run; its arms have been started anew since then.
        known_ids: request ids that are taken.
    """

    def __init__(
        self,
        limits: Limits,
        route: Route,
        keep: Callable[[Warmup], None],
        *,
        before: Collection[Warmup] = (),
        known_ids: Collection[str] = (),
    ) -> None:
        self._rule = WarmupRule(
            requests=limits.warmup_requests, tolerance=limits.warmup_tolerance, max_s=limits.warmup_max_s
        )
        self._route, self._keep, self._known_ids = route, keep, known_ids
        self._taken: dict[str, set[str]] = {}
        self._starts: dict[str, int] = {}
        for one in before:
            self._starts[one.arm] = max(self._starts.get(one.arm, 0), one.start)
        self._warm: dict[str, set[str]] = {}  # arm -> loads, of arms that have been warmed since their start

    def forget(self, arm: str) -> None:
        """An arm has been started anew: it is cold at every level."""
        self._warm.pop(arm, None)

    def needs(self, turn: Turn) -> bool:
        """Tell whether the arm is still to be warmed up for a turn."""
        return bool(self._rule.requests) and turn.load not in self._warm.get(turn.arm, ())

    async def warm(self, turn: Turn, endpoint: Endpoint) -> None:
        """Warm the turn's arm up; its requests are recorded and never counted.

        At the whole level, whoever shares the turn afterwards: a service compiles and captures for the batch
        that it meets, and one that has only met a worker's part of it does so in its first counted turn.
        """
        if turn.concurrency is not None:
            slots = find_warmup_slots(turn.concurrency, read_limits())
            turn = msgspec.structs.replace(turn, concurrency=slots)
        if turn.arm not in self._warm:
            self._starts[turn.arm] = self._starts.get(turn.arm, 0) + 1
        route, size = self._route, self._rule.group_size(turn.concurrency)
        group = lay_out_group(turn, route.items, size)
        taken, end_lags_ns = self._taken_ids(turn), list[int]()

        async def ask(number: int) -> tuple[RequestRecord, ...]:
            del number
            sink = GroupSink(route.sink)
            own = await run_warmup(
                group,
                endpoint,
                route.items,
                count=size,
                transport=route.transport,
                sink=sink,
                settings=route.settings,
                done=taken,
                stop=route.stop,
            )
            taken.update(one.request_id for one in sink.records)
            end_lags_ns.append(own.end_lag_max_ns or 0)
            return tuple(sink.records)

        warmup = await warm_up(
            turn, ask, self._rule, start=self._starts[turn.arm], is_stopped=route.stop.is_set
        )
        if warmup is not None:
            self._warm.setdefault(turn.arm, set()).add(turn.load)
            self._keep(msgspec.structs.replace(warmup, end_lag_max_ns=max(end_lags_ns, default=None)))

    def _taken_ids(self, turn: Turn) -> set[str]:
        """Return the ids of this turn that are taken: an arm may be warmed up twice before the same one."""
        if turn.key not in self._taken:
            self._taken[turn.key] = {one for one in self._known_ids if one.startswith(f"{turn.key}/")}
        return self._taken[turn.key]


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
