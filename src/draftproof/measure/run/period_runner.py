"""Runs a period as the plan asks: in this process, or dealt to load workers here or on a cluster.

With workers this process sends no counted request: it conducts, samples the service's metrics and rests. What
reaches workers on other hosts is imported only where a plan asks for them.
"""

import asyncio
from collections.abc import Collection, Mapping

import msgspec

from draftproof.core.errors import DraftproofError
from draftproof.measure.load.loops import run
from draftproof.measure.load.period import Period
from draftproof.measure.load.request_runner import RequestRunner
from draftproof.measure.load.warmup import Route
from draftproof.measure.load.workers.messages import WorkerDiedError
from draftproof.measure.load.workers.pool import MakeWorker, Outcome, WorkerPool, index_by_period
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.plan.schema import Plan
from draftproof.services.arms.launch import LOOPBACK, list_arms
from draftproof.store import RunDirectory
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import Item


class PeriodRunner:
    """Runs one period after the other.

    `service_group`: the arms, and the plan that says how many workers there are. `route`: what requests of
    this process travel by. `answered`: request id -> answer of what an earlier part of the run has recorded.
    `pool`: load workers that whoever gives them ends; None: those that the plan asks for, of its own.
    """

    def __init__(
        self,
        run: RunDirectory,
        service_group: ServiceGroup,
        route: Route,
        answered: Mapping[str, AnswerView | None],
        *,
        pool: WorkerPool | None = None,
    ) -> None:
        self._run, self._service_group, self._route, self._answered = run, service_group, route, answered
        self._by_period = index_by_period(answered)
        self._own_pool = open_pool(run, service_group, route.items.values()) if pool is None else None
        self._pool = self._own_pool if pool is None else pool

    async def run(self, period: Period, stop: asyncio.Event) -> Outcome:
        """Run one period; what it measured is in the journal, its own record is not yet."""
        endpoint, route = self._service_group.contacts[period.arm].endpoint, self._route
        if self._pool is not None:
            answered = self._by_period.get(period.key, {})
            return await self._pool.run_period(
                period, endpoint, settings=route.settings, answered=answered, stop=stop
            )
        runner = RequestRunner(
            period,
            endpoint,
            route.items,
            transport=route.transport,
            sink=route.sink,
            settings=route.settings,
            done=self._answered,
            answered=self._answered,
        )
        return Outcome(block=await run(runner, stop))

    def raise_error(self, outcome: Outcome) -> None:
        """Do nothing if no worker failed.

        Raises DraftproofError: why the period ended before its end, and how the run goes on.
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

    async def close(self) -> None:
        """End the workers that are its own."""
        if self._own_pool is not None:
            await self._own_pool.close()


def open_pool(run: RunDirectory, service_group: ServiceGroup, items: Collection[Item]) -> WorkerPool | None:
    """Return the load workers that a plan asks for, None where this process sends itself.

    The first period starts them. `service_group`: the arms, and the plan. `items`: every item that they will
    be asked for.
    """
    limits = service_group.plan.limits
    if limits.workers == 1 and limits.ray is None:
        return None
    run.lock()
    return WorkerPool(
        limits.workers,
        tuple(items),
        journal=run.path / "journal",
        secrets=service_group.secrets,
        inherited=() if run.lock_fd is None else (run.lock_fd,),
        make=_make_workers(service_group.plan, items),
    )


def check_cluster(plan: Plan) -> tuple[str, ...]:
    """Join the plan's cluster and place its workers once; return what there is, () without a cluster.

    Comes before a run takes the signals of this process, see `Cluster.join`. Raises UsageError: the cluster
    cannot be joined, is too small, or a worker there could not do its part.
    """
    if plan.limits.ray is None:
        return ()
    from draftproof.measure.load.ray.cluster import Cluster  # noqa: PLC0415

    urls = {name: arm.url or f"http://{LOOPBACK}" for name, arm in list_arms(plan).items()}
    return Cluster.join(plan.limits.ray).check(plan.load, plan.limits.workers, urls)


def _make_workers(plan: Plan, items: Collection[Item]) -> MakeWorker | None:
    """Return what makes the run's workers on its cluster, None where they are processes of this host."""
    if plan.limits.ray is None:
        return None
    from draftproof.measure.load.ray.cluster import Cluster  # noqa: PLC0415

    encoded = msgspec.msgpack.encode(tuple(items))
    return Cluster.join(plan.limits.ray).make_factory(encoded, plan.load, plan.limits.workers)
