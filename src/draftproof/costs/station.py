"""One start of the engine for the experiment: a running arm, its transport, and its counters."""

import asyncio
import os
from pathlib import Path
from typing import Self

import aiohttp

from draftproof.arms.service import fetch_totals
from draftproof.client.transport import HttpTransport
from draftproof.errors import EngineError
from draftproof.load.turn import Endpoint
from draftproof.manifests import ArmManifest
from draftproof.plan.schema import Arm, Plan
from draftproof.qualify.running_arm import Contact, RunningArm

ARM = "candidate"


class Station:
    """One start of the engine. Use as an async context manager; leaving it stops the process tree.

    Args:
        arm: the arm as varied for this start.
        plan: the plan; its limits say how long to wait.
        model: the target's folder or file, None where it is not at hand.
        log_path: where the engine's output goes.
        stop: set when the user wants to leave.
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
        """Do nothing while the process runs.

        Raises:
            EngineError: it ended.
        """
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
