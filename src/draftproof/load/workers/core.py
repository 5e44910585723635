"""A load worker apart from any process: it takes an order, and returns how its part of the turn went.

It knows no pipe and no file. Whatever carries words to it (a pipe's reader, an actor of a cluster) calls its
methods from the loop on which `run` is awaited.
"""

import asyncio
from collections.abc import Mapping, Sequence

from draftproof.client.wire import Transport
from draftproof.clock import Clock, monotonic_ns
from draftproof.engines import adapter_for
from draftproof.load.driver import prepare_turn, run_performer
from draftproof.load.part import Part
from draftproof.load.performing import Performer
from draftproof.load.turn import Endpoint, Sink
from draftproof.load.workers.messages import EndpointOrder, Standing, TurnOrder
from draftproof.records import BlockRecord
from draftproof.workload.items import Item


class LoadWorker:
    """Runs its part of one turn after the other.

    Args:
        items: the whole workload.
        transport: carries its requests.
        sink: takes its records.
        clock: the clock that all workers of a host share.
    """

    def __init__(
        self, items: Sequence[Item], *, transport: Transport, sink: Sink, clock: Clock = monotonic_ns
    ) -> None:
        self._items: Mapping[str, Item] = {item.id: item for item in items}
        self._transport, self._sink, self._clock = transport, sink, clock
        self._performer: Performer | None = None
        self._stop = asyncio.Event()

    def prepare(self, order: TurnOrder) -> None:
        """Make the schedule of a turn, so that its start costs no time.

        Raises:
            PlanError: no adapter has the engine's name.
        """
        self._stop = asyncio.Event()
        self._performer = prepare_turn(
            order.turn,
            self._make_endpoint(order.endpoint),
            self._items,
            transport=self._transport,
            sink=self._sink,
            settings=order.settings,
            done=order.answered,
            answered=order.answered,
            clock=self._clock,
            part=Part(order.share),
        )

    async def run(self, start_ns: int) -> BlockRecord:
        """Run the prepared part from `start_ns` on; counts of the record are those of the part."""
        performer = self._prepared
        performer.part.start_ns = start_ns
        return await run_performer(performer, self._stop)

    def begin_counting(self, base_ns: int) -> None:
        """Take the time from which due times of counted requests count."""
        self._prepared.part.begin_counting(base_ns)

    def finish(self) -> None:
        """Every counted request of all workers has ended."""
        self._prepared.part.finish()

    def stop(self) -> None:
        """End the turn now."""
        self._stop.set()

    def standing(self) -> Standing:
        """Return how the part stands."""
        performer = self._prepared
        return Standing(performer.ended, performer.in_flight, performer.schedule.is_over, performer.ended_ns)

    async def wait_until_over(self) -> None:
        """Return when each counted request of this part has ended."""
        await self._prepared.counted_over.wait()

    @property
    def _prepared(self) -> Performer:
        if self._performer is None:
            raise RuntimeError("a worker is told of a turn before it has prepared one")
        return self._performer

    def _make_endpoint(self, order: EndpointOrder) -> Endpoint:
        return Endpoint(
            url=order.url,
            served_model=order.served_model,
            adapter=adapter_for(order.engine),
            headers=order.headers,
            request=order.request,
            accepted=order.accepted,
        )
