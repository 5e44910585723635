"""One start of the engine: started, asked what it is, sent one test request, stopped with all it began."""

import asyncio
import os
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from draftproof.arms.context_fit import load_token_counter
from draftproof.arms.environment import collect_secrets, resolve_headers, resolve_references
from draftproof.arms.launch import build_command
from draftproof.arms.manifest import SERVED_MODEL_KEY, Started, fetch_manifest
from draftproof.arms.probe import probe_service
from draftproof.arms.process import ArmProcess
from draftproof.arms.readiness import ReadyProbe
from draftproof.arms.service import Service, locate_service
from draftproof.client.transport import HttpTransport
from draftproof.engines import EngineAdapter, adapter_for
from draftproof.errors import EngineError
from draftproof.load.turn import Endpoint
from draftproof.plan.schema import Arm, Plan
from draftproof.qualify.stopping import unless_stopped
from draftproof.records import ArmManifest
from draftproof.telemetry.scrape import fetch_exposition

ARM = "candidate"


class Station:
    """A running candidate. Use as an async context manager; leaving it stops the process tree.

    Args:
        arm: the candidate, varied.
        plan: the plan it comes from.
        model: the target's folder or file where the arm is started from it.
        log_path: where its output goes.
        stop: set when the user wants to leave.

    Attributes:
        secrets: values that must not be kept.
        manifest: what the service said it is.
        endpoint: where and how it is asked.
    """

    manifest: ArmManifest
    endpoint: Endpoint

    def __init__(self, arm: Arm, plan: Plan, model: Path | None, log_path: Path, stop: asyncio.Event) -> None:
        self._arm, self._plan, self._stop = arm, plan, stop
        self.adapter = _adapter(arm, model)
        environment = dict(os.environ)
        place = f"arms.{ARM}"
        self._headers = resolve_headers(arm.headers, environment, f"{place}.headers")
        added = {
            key: resolve_references(value, environment, f"{place}.env.{key}")
            for key, value in arm.env.items()
        }
        self.secrets = collect_secrets(
            arm.headers.values(), (*arm.env.values(), *(arm.command or ())), environment
        )
        self._process = ArmProcess(
            ARM,
            command=build_command(ARM, arm, plan, str(model) if model else None),
            log_path=log_path,
            ready_s=plan.limits.ready_s,
            stop_s=plan.limits.stop_s,
            environment=environment | added,
            probe=ReadyProbe(paths=self.adapter.facts.ready_paths, headers=self._headers),
            secrets=self.secrets,
        )
        self._service: Service
        self.transport: HttpTransport
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self.transport, self._session = HttpTransport(), aiohttp.ClientSession()
        try:
            self._process.start()
            await unless_stopped(self._process.wait_ready(), self._stop)
            await unless_stopped(self._ask_what_it_is(), self._stop)
        except BaseException:
            await self._close(at_once=True)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._close(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    def check_alive(self) -> None:
        """Do nothing while the process runs.

        Raises:
            EngineError: it ended.
        """
        self._process.check_alive()

    async def scrape(self) -> dict[str, float] | None:
        """Return the service's counters summed over its replicas, None where they cannot be read."""
        totals: dict[str, float] = {}
        for url in self._service.metrics_urls:
            try:
                exposition = await fetch_exposition(self._session, url, headers=self._headers)
            except EngineError:
                return None
            for series, value in exposition.values.items():
                totals[series] = totals.get(series, 0.0) + value
        return totals or None

    async def _ask_what_it_is(self) -> None:
        process, arm = self._process, self._arm
        self._service = locate_service(
            ARM, arm, process.url, self.adapter, self._headers, secrets=self.secrets
        )
        log = process.log_text()
        started = Started(command=process.command, load_time_s=process.load_time_s, log=log)
        self.manifest = await fetch_manifest(self._session, arm, self._service, started)
        self.endpoint = Endpoint(
            url=self._service.url,
            served_model=str(self.manifest.settings[SERVED_MODEL_KEY]),
            adapter=self.adapter,
            headers=self._headers,
            request=arm.request,
        )
        await probe_service(
            self._service,
            self.endpoint,
            self._describe,
            session=self._session,
            transport=self.transport,
            timeout_s=self._plan.limits.request_s,
            read_log=process.log_text,
        )

    async def _describe(self) -> ArmManifest:
        return self.manifest

    async def _close(self, *, at_once: bool) -> None:
        try:
            await self.transport.close()
            await self._session.close()
            if not at_once:
                await self._process.stop()
        finally:
            self._process.kill()


def _adapter(arm: Arm, model: Path | None) -> EngineAdapter:
    """Return the arm's adapter; the target's tokenizer, if at hand, counts where the service does not."""
    adapter, counter = adapter_for(arm.engine), load_token_counter(model) if model else None
    return msgspec.structs.replace(adapter, count_tokens=counter) if counter else adapter
