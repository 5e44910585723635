"""The arms of a run and what watches their host from before they start: whose work is own, what waits."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable

from draftproof.core.errors import InvalidRunError
from draftproof.measure.run.early_warning import DECIDING
from draftproof.measure.run.host_watch import HostWatch, OwnWork, wait_until_quiet
from draftproof.measure.run.measure import plan_periods
from draftproof.measure.run.progress import Interrupted, Patience, Progress
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.plan.schema import Plan
from draftproof.services.arms.launch import list_arms
from draftproof.services.telemetry.host import HostLoadReader
from draftproof.services.telemetry.sampler import find_processes, is_by_daemon, is_local_url
from draftproof.workload.items import Item

_OTHERWISE = "or let the run wait with --wait-for-quiet; --keep-going measures all the same"


@contextlib.asynccontextmanager
async def running_arms(
    make: Callable[[asyncio.Event], ServiceGroup],
    watch: HostWatch,
    progress: Progress,
    stop: asyncio.Event,
) -> AsyncIterator[ServiceGroup]:
    """Yield the arms, all of them running; the host is watched from before they start.

    `make`: makes them, given the event that ends their start. `watch`: what watches the host, and halts the
    run. `stop`: set when the user wants to leave. Raises InvalidRunError: the host is too busy for a run that
    ends well; DraftproofError: an arm does not start; Interrupted: the user wants to leave.
    """
    limit_s = watch.patience.wait_s
    if limit_s is not None and await wait_until_quiet(watch.reader, limit_s, progress, stop) is None:
        raise InvalidRunError(
            f"the host was not quiet within {limit_s / 60:g} min; this call measured nothing.",
            fix="stop other programs, wait longer, or leave --wait-for-quiet away",
        )
    async with watch.heeding(stop), contextlib.AsyncExitStack() as stack:
        service_group = None
        while service_group is None:
            progress.phase("Starting the arms")
            try:
                async with watch.span():
                    service_group = await stack.enter_async_context(make(watch.halt))
            except Interrupted:
                await go_on(watch, stop)
        watch.know(await asyncio.to_thread(find_own_work, service_group))
        yield service_group


async def go_on(watch: HostWatch, stop: asyncio.Event) -> None:
    """Return once a halted run may go on.

    Raises InvalidRunError: it may not; Interrupted: the user wants to leave.
    """
    if watch.ending is None or stop.is_set():
        raise Interrupted
    ending = watch.ending
    if not await watch.wait_for_quiet(stop):
        raise InvalidRunError(
            f"{ending.text.rstrip('.')}; this call measured nothing.", fix=f"{ending.remedy}, {_OTHERWISE}"
        )


def make_watch(plan: Plan, items: tuple[Item, ...], progress: Progress, patience: Patience) -> HostWatch:
    """Return what watches the host of a run."""
    arms = list_arms(plan)
    deciding = [period.load for period in plan_periods(plan, items, arms) if period.arm in DECIDING]
    launched = [arm for arm in arms.values() if arm.url is None]
    # A service that is waited for may be loading its model on these cores: whose it is shows when it answers.
    is_known = all(arm.url is None and not is_by_daemon(arm.command or ()) for arm in arms.values())
    return HostWatch(
        HostLoadReader(),
        progress,
        patience=patience,
        planned=Counter(deciding),
        lag_limit_ms=plan.limits.client_lag_ms,
        own=OwnWork(attached=() if is_known else None, serves_here=bool(launched)),
    )


def find_own_work(service_group: ServiceGroup) -> OwnWork:
    """Return whose work is a run's own, beside this program and what it has started.

    What is started through a daemon, and load workers of a cluster, are in no process tree of ours. May block
    for a moment, and asks no service.
    """
    attached, hidden, is_here = list[int](), list[str](), False
    for name, arm in service_group.arms.items():
        if arm.url is None:
            is_here = True
            hidden += [name] if arm.command and is_by_daemon(arm.command) else []
            continue
        found = find_processes(arm.url)
        is_here |= is_local_url(arm.url)
        attached += found or ()
        hidden += [name] if found is None else []
    if service_group.plan.limits.ray is not None:
        hidden.append("the Ray cluster")
    return OwnWork(
        attached=None if hidden else tuple(dict.fromkeys(attached)), hidden=tuple(hidden), serves_here=is_here
    )
