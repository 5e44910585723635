"""The probes of behaviour within a run: when they are asked, of which arms, and where their answers go.

They are asked when an arm has no measured period left, so that nothing they leave behind meets a measurement.
Whatever goes wrong in them is a finding about the arm and never ends the run.
"""

import asyncio
from collections.abc import Collection

import aiohttp

from draftproof.core.records import BehaviourProbe
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.run.progress import unless_stopped
from draftproof.measure.run.service_group import ServiceGroup
from draftproof.plan.environment import mask_struct
from draftproof.plan.schema import Plan
from draftproof.services.arms.behaviour.asking import Line
from draftproof.services.arms.behaviour.judging import fetch_whole, read_load
from draftproof.services.arms.behaviour.probes import LAST_PROBE, Bench, run_probes
from draftproof.store import RunDirectory

# The second baseline is the first one's twin: what its behaviour would show is known.
UNPROBED_ARMS = frozenset({"baseline_null"})
LONGEST_PROBE_S = 30.0


def list_unprobed(plan: Plan, arms: Collection[str], known: Collection[BehaviourProbe]) -> tuple[str, ...]:
    """Return the arms whose probes are wanted and not all there, in the order of `arms`."""
    if not plan.limits.behaviour_probes:
        return ()
    complete = {one.arm for one in known if one.probe == LAST_PROBE}
    return tuple(arm for arm in arms if arm not in UNPROBED_ARMS | complete)


async def probe_arm(run: RunDirectory, service_group: ServiceGroup, arm: str, stop: asyncio.Event) -> None:
    """Ask an arm every probe that the run has not got yet, and keep what each shows.

    Raises StoreError: the journal cannot be written; Interrupted: `stop` was set meanwhile; what was asked is
    kept.
    """
    await unless_stopped(_probe_arm(run, service_group, arm), stop)


async def _probe_arm(run: RunDirectory, service_group: ServiceGroup, arm: str) -> None:
    known = {one.probe for one in run.load_behaviours() if one.arm == arm}
    contact, plan, transport = service_group.contacts[arm], service_group.plan, HttpTransport()
    timeout_s = min(plan.limits.request_s, LONGEST_PROBE_S)
    line = Line(endpoint=contact.endpoint, transport=transport, timeout_s=timeout_s)
    async with aiohttp.ClientSession() as session:
        bench = Bench(
            line=line,
            read_load=lambda: read_load(session, contact.service),
            fetch_whole=lambda item: fetch_whole(session, line, item),
            concurrency=max(level.concurrency or 1 for level in plan.load),
        )
        try:
            async for probe in run_probes(arm, bench, skip=known):
                run.append_beside(mask_struct(probe, service_group.secrets))
        finally:
            await transport.close()
