"""Warming arms up before their periods: groups of requests until two successive ones agree.

Once at each load level after each start. Owns who is warm, which items are asked and what is written down;
the rule is `WarmupRule`'s.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

import msgspec

from draftproof.core.clock import NS_PER_S, Clock, monotonic_ns
from draftproof.core.records import RequestRecord, Warmup, WarmupGroup
from draftproof.judge.metrics.phases import WarmupRule, last_change, summarise_group
from draftproof.measure.client.exchange import Transport
from draftproof.measure.load.loops import run
from draftproof.measure.load.period import Endpoint, Period, Sink
from draftproof.measure.load.request_runner import LoadSettings, MemorySink, RequestRunner
from draftproof.measure.load.schedule import warmup_period
from draftproof.measure.load.sockets import find_warmup_slots, read_limits
from draftproof.plan.schema import Limits
from draftproof.workload.arm_orders import order_by_seed
from draftproof.workload.items import Item

AskGroup = Callable[[int], Awaitable[Collection[RequestRecord]]]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a run travel by, counted and warm-up ones alike."""

    items: Mapping[str, Item]
    transport: Transport
    sink: Sink
    settings: LoadSettings
    stop: asyncio.Event


def lay_out_group(period: Period, items: Mapping[str, Item], size: int) -> Period:
    """Return the period whose items one group of a warm-up asks, the same in every group and every arm.

    The same in every group, since the times of two groups that ask other prompts differ by the prompts. Of
    items that the period does not count, where there are any: a service that keeps prompts must not know a
    counted one from its warm-up. Different ones as far as they go, so that no answer is read from a cache
    before the second group.
    """
    own = set(period.item_ids)
    others = [item_id for item_id in items if item_id not in own] or list(period.item_ids)
    chosen = order_by_seed(others, "warmup", period.load, period.block, period.repeat)[:size]
    return msgspec.structs.replace(period, item_ids=tuple(chosen))


async def warm_up(
    period: Period,
    ask_group: AskGroup,
    rule: WarmupRule,
    *,
    start: int,
    is_stopped: Callable[[], bool] = lambda: False,
    clock: Clock = monotonic_ns,
) -> Warmup | None:
    """Ask groups until the rule says that it is enough; None where the user stopped it before.

    `period`: the period that the warm-up comes before. `ask_group`: asks one group, numbered from 0, and
    returns its records. `rule`: when it is enough. `start`: number of the arm's start in the run, from 1.
    `is_stopped`: tells whether the user wants to leave; what a group shows then is of no use. `clock`: source
    of both times.
    """
    started_ns = clock()
    groups: list[WarmupGroup] = []
    while (step := rule.next_step(groups, (clock() - started_ns) / NS_PER_S)) == "more":
        records = await ask_group(len(groups))
        if is_stopped():
            return None
        groups.append(summarise_group(records))
    return Warmup(
        arm=period.arm,
        load=period.load,
        block=period.block,
        start=start,
        started_ns=started_ns,
        ended_ns=clock(),
        stable=step == "stable",
        tolerance=rule.tolerance,
        change=last_change(groups),
        groups=tuple(groups),
    )


class Warmer:
    """Remembers who has been warmed up where.

    `limits`: the plan's limits, which hold the rule. `route`: what the requests travel by. `keep`: takes what
    came of each warm-up. `before`: warm-ups of an earlier part of the run; its arms have been started anew
    since then. `known_ids`: request ids that are taken.
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
        self._route, self._keep = route, keep
        self._taken = set(known_ids)
        self._starts: dict[str, int] = {}
        for one in before:
            self._starts[one.arm] = max(self._starts.get(one.arm, 0), one.start)
        self._warm: dict[str, set[str]] = {}  # arm -> loads, of arms that have been warmed since their start

    def forget(self, arm: str) -> None:
        """An arm has been started anew: it is cold at every level."""
        self._warm.pop(arm, None)

    def needs(self, period: Period) -> bool:
        """Tell whether the arm is still to be warmed up for a period."""
        return bool(self._rule.requests) and period.load not in self._warm.get(period.arm, ())

    async def warm(self, period: Period, endpoint: Endpoint) -> None:
        """Warm the period's arm up; its requests are recorded and never counted.

        At the whole level, whoever shares the period afterwards: a service compiles and captures for the
        batch that it meets, and one that has only met a worker's part of it does so in its first counted
        period.
        """
        if period.concurrency is not None:
            slots = find_warmup_slots(period.concurrency, read_limits())
            period = msgspec.structs.replace(period, concurrency=slots)
        if period.arm not in self._warm:
            self._starts[period.arm] = self._starts.get(period.arm, 0) + 1
        route, size = self._route, self._rule.group_size(period.concurrency)
        group = warmup_period(lay_out_group(period, route.items, size), size)
        end_lags_ns = list[int]()

        async def ask(_: int) -> Collection[RequestRecord]:
            sink = MemorySink(route.sink)
            runner = RequestRunner(
                group,
                endpoint,
                route.items,
                transport=route.transport,
                sink=sink,
                settings=route.settings,
                done=self._taken,
                phase="warmup",
            )
            block = await run(runner, route.stop)
            self._taken.update(one.request_id for one in sink.records)
            end_lags_ns.append(block.end_lag_max_ns or 0)
            return sink.records

        start = self._starts[period.arm]
        warmup = await warm_up(period, ask, self._rule, start=start, is_stopped=route.stop.is_set)
        if warmup is not None:
            self._warm.setdefault(period.arm, set()).add(period.load)
            self._keep(msgspec.structs.replace(warmup, end_lag_max_ns=max(end_lags_ns, default=None)))
