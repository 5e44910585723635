"""Load workers on other hosts, as a plan asks for them. What reaches them is imported only then."""

from collections.abc import Collection

import msgspec

from draftproof.measure.load.workers.pool import MakeWorker
from draftproof.plan.schema import Plan
from draftproof.services.arms.launch import LOOPBACK, list_arms
from draftproof.workload.items import Item


def check_cluster(plan: Plan) -> tuple[str, ...]:
    """Join the plan's cluster and place its workers once; return what there is, () without a cluster.

    Comes before a run takes the signals of this process, see `Cluster.join`.

    Raises:
        UsageError: the cluster cannot be joined, is too small, or a worker there could not do its part.
    """
    if plan.limits.ray is None:
        return ()
    from draftproof.measure.load.ray.cluster import Cluster  # noqa: PLC0415

    urls = {name: arm.url or f"http://{LOOPBACK}" for name, arm in list_arms(plan).items()}
    return Cluster.join(plan.limits.ray).check(plan.load, plan.limits.workers, urls)


def make_workers(plan: Plan, items: Collection[Item]) -> MakeWorker | None:
    """Return what makes the run's workers on its cluster, None where they are processes of this host.

    Args:
        plan: the plan.
        items: the workload.

    Raises:
        UsageError: the cluster cannot be joined.
    """
    if plan.limits.ray is None:
        return None
    from draftproof.measure.load.ray.cluster import Cluster  # noqa: PLC0415

    cluster = Cluster.join(plan.limits.ray)
    encoded = msgspec.msgpack.encode(tuple(items))
    return cluster.make_factory(encoded, plan.load, plan.limits.workers)
