"""All arms of a plan as running services: started, asked what they are, probed, stopped together."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from draftproof.arms.comparability import find_differences
from draftproof.arms.context_fit import load_token_counter
from draftproof.arms.environment import collect_secrets, resolve_headers, resolve_references
from draftproof.arms.launch import build_command, list_arms, plan_section
from draftproof.arms.manifest import SERVED_MODEL_KEY, Started, fetch_manifest
from draftproof.arms.probe import ProbeResult, probe_service
from draftproof.arms.process import ArmProcess
from draftproof.arms.readiness import ReadyProbe
from draftproof.arms.service import Service, locate_service
from draftproof.client.transport import HttpTransport
from draftproof.engines import EngineAdapter, adapter_for
from draftproof.errors import EngineError, IncompatibleError, PlanError
from draftproof.load.turn import Endpoint
from draftproof.plan.schema import Arm, Plan
from draftproof.qualify.progress import Progress
from draftproof.qualify.stopping import unless_stopped
from draftproof.records import ArmManifest


class Fleet:
    """The arms' processes. Use as an async context manager; leaving it stops every process tree.

    Arms start one after the other, so that one's load time is not another's burden. Each is asked what it is
    and probed before the next one starts. Placed one at a time, an arm is stopped after that and runs again
    only in its turns.

    Args:
        plan: the plan.
        model: the target's folder or file, for arms that this run starts; None for attached services.
        log_folder: where each arm's output goes.
        progress: told which arm is being waited for.
        stop: set when the user wants to leave; ends the wait for arms that start.
        environment: what references in the plan are taken from; None is this program's own.
    """

    def __init__(
        self,
        plan: Plan,
        model: Path | None,
        log_folder: Path,
        progress: Progress,
        stop: asyncio.Event,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.plan, self.arms = plan, list_arms(plan)
        self._progress, self.stop, self._model = progress, stop, model
        self._environment = dict(os.environ if environment is None else environment)
        self.secrets = _find_secrets(self.arms, self._environment)
        self._adapters = {name: _adapter(arm, model) for name, arm in self.arms.items()}
        self._headers = {
            name: resolve_headers(arm.headers, self._environment, f"arms.{plan_section(name)}.headers")
            for name, arm in self.arms.items()
        }
        self._processes = {name: self._process(name, arm, log_folder) for name, arm in self.arms.items()}
        self._check_placement()
        self.manifests: dict[str, ArmManifest] = {}
        self.probes: dict[str, ProbeResult] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.services: dict[str, Service] = {}

    @property
    def takes_turns(self) -> bool:
        """Whether only the arm whose turn it is runs."""
        return self.plan.placement == "one_at_a_time"

    async def __aenter__(self) -> Self:
        try:
            for number, (name, process) in enumerate(self._processes.items()):
                self._progress.advance(number, len(self._processes), f"starting {name}")
                await self._start(name)
                await unless_stopped(self._probe(name), self.stop)
                if self.takes_turns:
                    await process.stop()
            self._progress.advance(len(self._processes), len(self._processes), "all arms answer")
        except BaseException as error:
            await self._stop(at_once=isinstance(error, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._stop(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    async def ensure(self, name: str) -> bool:
        """Let an arm run whose turn it is; return whether it had to be started for it.

        Raises:
            EngineError: it does not start.
            IncompatibleError: it is not what it was at its first start.
            Interrupted: the user wants to leave.
        """
        if not self.takes_turns or self._processes[name].pid is not None:
            return False
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        before = self.manifests[name]
        await self._start(name)
        await unless_stopped(self._probe(name), self.stop)
        check_same(before, self.manifests[name])
        return True

    def check_alive(self, name: str) -> None:
        """Do nothing while the arm's process runs.

        Raises:
            EngineError: it ended; says how, with its last lines of output.
        """
        self._processes[name].check_alive()

    def pid(self, name: str) -> int | None:
        """Return the process id of an arm that this run has started, None for an attached one."""
        return self._processes[name].pid

    def _process(self, name: str, arm: Arm, log_folder: Path) -> ArmProcess:
        limits, place = self.plan.limits, f"arms.{plan_section(name)}"
        added = {
            key: resolve_references(value, self._environment, f"{place}.env.{key}")
            for key, value in arm.env.items()
        }
        return ArmProcess(
            name,
            command=build_command(name, arm, self.plan, str(self._model) if self._model else None),
            url=arm.url,
            log_path=log_folder / f"{name}.log",
            ready_s=limits.ready_s,
            stop_s=limits.stop_s,
            environment=self._environment | added,
            probe=ReadyProbe(paths=self._adapters[name].facts.ready_paths, headers=self._headers[name]),
            secrets=self.secrets,
        )

    def _check_placement(self) -> None:
        attached = [name for name, arm in self.arms.items() if arm.url is not None]
        if self.takes_turns and attached:
            raise PlanError(
                "a service that is only attached to cannot be stopped and started in turn.",
                place=f"arms.{plan_section(attached[0])}.url",
                fix='give a command, or set placement = "together".',
            )

    async def _start(self, name: str) -> None:
        self._processes[name].start()
        await unless_stopped(self._processes[name].wait_ready(), self.stop)

    async def _probe(self, name: str) -> None:
        """Ask a running arm what it is, and send it its first request."""
        process, arm, adapter = self._processes[name], self.arms[name], self._adapters[name]
        service = locate_service(name, arm, process.url, adapter, self._headers[name])
        log = process.log_text()
        started = Started(
            command=process.command,
            load_time_s=process.load_time_s,
            resident_bytes=process.resident_bytes(),
            log=log,
        )
        transport = HttpTransport()
        async with aiohttp.ClientSession() as session:
            try:
                manifest = await fetch_manifest(session, arm, service, started)
                endpoint = Endpoint(
                    url=service.url,
                    served_model=_served_model(manifest),
                    adapter=adapter,
                    headers=service.headers,
                    request=arm.request,
                )
                probe = await probe_service(
                    service,
                    endpoint,
                    manifest,
                    session=session,
                    transport=transport,
                    timeout_s=self.plan.limits.request_s,
                    log=log,
                )
            finally:
                await transport.close()
        cold = probe.cold if process.pid is not None else None
        self.manifests[name] = msgspec.structs.replace(manifest, cold=cold)
        self.services[name], self.endpoints[name], self.probes[name] = service, endpoint, probe

    async def _stop(self, *, at_once: bool) -> None:
        """Stop every arm, all at the same time; `at_once` or when cancelled they are killed instead."""
        try:
            if not at_once:
                await asyncio.gather(*(process.stop() for process in self._processes.values()))
        finally:
            for process in self._processes.values():
                process.kill()


def needs_model(arms: Mapping[str, Arm]) -> bool:
    """Tell whether an arm is started from the target's files by this run."""
    return any(arm.engine == "reference" and arm.url is None and arm.command is None for arm in arms.values())


def check_same(before: ArmManifest, now: ArmManifest) -> None:
    """Do nothing if an arm is what it was when the run began.

    Raises:
        IncompatibleError: names every key and both values.
    """
    changed = find_differences(before, now)
    if changed:
        pairs = ", ".join(f"{d.key} ({d.baseline} -> {d.other})" for d in changed)
        raise IncompatibleError(
            f"it is not what it was when the run began: {pairs}.",
            place=f"arms.{now.arm}",
            fix="restore it, or start a new run.",
        )


def _adapter(arm: Arm, model: Path | None) -> EngineAdapter:
    """Return the arm's adapter; the target's tokenizer, if at hand, counts where the service does not."""
    adapter = adapter_for(arm.engine)
    counter = load_token_counter(model) if model else None
    return msgspec.structs.replace(adapter, count_tokens=counter) if counter else adapter


def _find_secrets(arms: Mapping[str, Arm], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that the arms refer to."""
    headers = [text for arm in arms.values() for text in arm.headers.values()]
    others = [text for arm in arms.values() for text in (*arm.env.values(), *(arm.command or ()))]
    return collect_secrets(headers, others, environment)


def _served_model(manifest: ArmManifest) -> str:
    model = manifest.settings.get(SERVED_MODEL_KEY)
    if not isinstance(model, str):
        raise EngineError(f"arm {manifest.arm} does not say which model it serves.", place=manifest.url)
    return model
