"""One start of the engine for the experiment: a running arm, its transport, and its counters.

Sends a wave: so many requests at once, each answered to its end.
"""

import asyncio
import os
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from draftproof.core.clock import monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.core.manifests import ArmManifest
from draftproof.core.records import Phase, RequestRecord
from draftproof.explore.costs.batches import Wave
from draftproof.explore.costs.schedule import Start, build_items
from draftproof.measure.client.exchange import Exchange, ExchangeFold
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.client.wire import Ending, WireRequest
from draftproof.measure.load.period import Endpoint, Job, Period, make_record
from draftproof.measure.run.engine_session import Contact, RunningArm
from draftproof.plan.environment import mask_struct
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.service import fetch_totals

ARM = "candidate"


class EngineSession:
    """One start of the engine. Use as an async context manager; leaving it stops the process tree.

    `arm`: the arm as varied for this start. `plan`: the plan; its limits say how long to wait. `model`: the
    target's folder or file, None where it is not at hand. `stop`: set when the user wants to leave.
    """

    def __init__(self, arm: Arm, plan: Plan, model: Path | None, log_path: Path, stop: asyncio.Event) -> None:
        self._arm = RunningArm(ARM, arm, plan, model=model, log_path=log_path, environment=os.environ)
        self._stop, self.log_path = stop, log_path
        self.adapter, self.secrets = self._arm.adapter, self._arm.secrets
        self.transport = HttpTransport()
        self._contact: Contact | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the engine answers."""
        return self._reached.endpoint

    @property
    def manifest(self) -> ArmManifest:
        """What the engine is."""
        return self._reached.manifest

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        try:
            self._contact = await self._arm.start(self._stop)
        except BaseException as error:
            await self._close(at_once=isinstance(error, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    def check_alive(self) -> None:
        """Do nothing while the process runs. Raises EngineError: it ended."""
        self._arm.process.check_alive()

    async def scrape(self) -> dict[str, float] | None:
        """Return the service's counters summed over its replicas, None where they cannot be read."""
        try:
            return await fetch_totals(self._session, self._reached.service)
        except EngineError:
            return None

    @property
    def _reached(self) -> Contact:
        assert self._contact is not None  # noqa: S101 - inside the context
        return self._contact

    async def _close(self, *, at_once: bool) -> None:
        try:
            await self.transport.close()
            await self._session.close()
            if not at_once:
                await self._arm.process.stop()
        finally:
            self._arm.process.kill()


async def send_wave(
    session: EngineSession,
    start: Start,
    number: int,
    batch: int,
    *,
    answer_tokens: int,
    synthetic: bool,
    timeout_s: float,
    phase: Phase = "measure",
) -> Wave:
    """Send `batch` requests at once and return what was heard, with the counters before and after."""
    items = build_items(batch, answer_tokens)
    period = Period(
        block=start.index,
        load=f"{start.draft_length}-{start.drafting}",
        concurrency=batch,
        repeat=number,
        arm=ARM,
        order=number,
        item_ids=tuple(item.id for item in items),
    )
    jobs = [
        Job(request_id=f"{period.key}/{item.id}", item=item, phase=phase, order_in_block=slot, seed=slot + 1)
        for slot, item in enumerate(items)
    ]
    before = await session.scrape()
    records = await asyncio.gather(*(_ask(session, period, job, timeout_s) for job in jobs))
    return Wave(
        start=start.index,
        draft_length=start.draft_length,
        batch=batch,
        synthetic=synthetic,
        records=tuple(records),
        before=before,
        after=await session.scrape(),
    )


async def _ask(session: EngineSession, period: Period, job: Job, timeout_s: float) -> RequestRecord:
    scheduled_ns = monotonic_ns()
    record = make_record(period, job, scheduled_ns, await _exchange(session, job, timeout_s))
    return mask_struct(record, session.secrets) if session.secrets else record


async def _exchange(session: EngineSession, job: Job, timeout_s: float) -> Exchange:
    endpoint = session.endpoint
    request = WireRequest(
        url=endpoint.chat_url,
        body=msgspec.json.encode(endpoint.build_payload(job.item, seed=job.seed)),
        headers=endpoint.headers,
    )
    fold = ExchangeFold(endpoint.adapter.start_fold())
    try:
        async with asyncio.timeout(timeout_s):
            return fold.close(await session.transport.send(request, fold))
    except TimeoutError:
        return fold.close(
            Ending(kind="timeout", at_ns=monotonic_ns(), detail=f"no end within {timeout_s:g} s")
        )
