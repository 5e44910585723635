"""Warms arms up before their turns: once at each load level after each start, until they are stable.

Owns who is warm. The rule and the requests are `load/warmup.py`'s; what came of it goes into the run.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping

import msgspec

from draftproof.client.wire import Transport
from draftproof.load.driver import LoadSettings, run_warmup
from draftproof.load.sockets import find_warmup_slots, read_limits
from draftproof.load.turn import Endpoint, Sink, Turn
from draftproof.load.warmup import GroupSink, lay_out_group, warm_up
from draftproof.metrics.warmup import WarmupRule
from draftproof.plan.schema import Limits
from draftproof.records import RequestRecord, Warmup
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
