"""The load workers of a run: started at the first turn, told of one turn after the other, ended together."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from draftproof.clock import Clock, monotonic_ns
from draftproof.load.performing import LoadSettings
from draftproof.load.share import Share, count_parts
from draftproof.load.turn import Endpoint, Turn
from draftproof.load.workers.conducting import Conductor, Outcome
from draftproof.load.workers.handle import ProcessWorker, Worker
from draftproof.load.workers.messages import EndpointOrder, Setup, TurnOrder
from draftproof.workload.answers import AnswerView
from draftproof.workload.items import Item

Answered = Mapping[str, AnswerView | None]
MakeWorker = Callable[[Setup], Worker]


class WorkerPool:
    """Workers that share turns between them: child processes unless `make` makes others.

    Args:
        count: how many.
        items: the workload.
        journal: folder in which worker k writes records-w<k>.jsonl.
        secrets: values masked in every record.
        inherited: descriptors that a worker keeps open as long as it lives, such as the run's lock.
        make: returns the worker of a setup; None: a process that inherits `inherited`.
    """

    def __init__(
        self,
        count: int,
        items: Sequence[Item],
        *,
        journal: Path,
        secrets: tuple[str, ...] = (),
        inherited: tuple[int, ...] = (),
        make: MakeWorker | None = None,
        clock: Clock = monotonic_ns,
    ) -> None:
        self._clock = clock
        self._is_started = False
        make = make or (lambda setup: ProcessWorker(setup, inherited))
        self.workers = [
            make(
                Setup(
                    index=index,
                    items=tuple(items),
                    journal=str(journal / f"records-w{index}.jsonl"),
                    secrets=secrets,
                )
            )
            for index in range(count)
        ]

    async def run_turn(
        self,
        turn: Turn,
        endpoint: Endpoint,
        *,
        settings: LoadSettings,
        answered: Answered,
        stop: asyncio.Event,
        watch: Callable[[int], None] = lambda _: None,
    ) -> Outcome:
        """Run one turn; workers that it is too small for rest.

        Args:
            turn: the turn.
            endpoint: the arm's service.
            settings: patience and pace.
            answered: what is recorded of this turn already, see `TurnOrder`.
            stop: set by whoever wants the turn to end.
            watch: told how many requests are open.
        """
        await self._start()
        parts = count_parts(turn, len(self.workers))
        orders = [
            (
                worker,
                TurnOrder(
                    turn=turn,
                    endpoint=self._describe(endpoint),
                    settings=settings,
                    share=Share(index, parts),
                    answered=dict(answered),
                ),
            )
            for index, worker in enumerate(self.workers[:parts])
        ]
        conductor = Conductor(turn, orders, lead_s=settings.lead_s, watch=watch, clock=self._clock)
        return await conductor.run(stop)

    async def close(self, *, at_once: bool = False) -> None:
        """End every worker; what they have is on the device then, unless `at_once`."""
        await asyncio.gather(*(worker.close(at_once=at_once) for worker in self.workers))

    async def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            await asyncio.gather(*(worker.start() for worker in self.workers))

    def _describe(self, endpoint: Endpoint) -> EndpointOrder:
        return EndpointOrder(
            engine=endpoint.adapter.name,
            url=endpoint.url,
            served_model=endpoint.served_model,
            headers=endpoint.headers,
            request=endpoint.request,
            accepted=endpoint.accepted,
        )


def index_by_turn(answered: Answered) -> dict[str, dict[str, AnswerView | None]]:
    """Return turn key -> what is recorded of that turn: a worker is told of its turn and no more."""
    found: defaultdict[str, dict[str, AnswerView | None]] = defaultdict(dict)
    for request_id, answer in answered.items():
        found["/".join(request_id.split("/", 4)[:4])][request_id] = answer
    return dict(found)
