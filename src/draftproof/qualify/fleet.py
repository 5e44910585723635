"""All arms of a plan as running services: started one by one, stopped together, asked what they are."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import aiohttp

from draftproof.arms.launch import build_command, list_arms
from draftproof.arms.manifest import SERVED_MODEL_KEY, fetch_manifest
from draftproof.arms.process import ArmProcess
from draftproof.engines import adapter_for
from draftproof.errors import EngineError
from draftproof.load.turn import Endpoint
from draftproof.plan.schema import Arm, Plan
from draftproof.qualify.progress import Progress
from draftproof.qualify.stopping import unless_stopped
from draftproof.records import ArmManifest


class Fleet:
    """The arms' processes. Use as an async context manager; leaving it stops every process tree.

    Arms start one after the other, so that one's load time is not another's burden.

    Args:
        plan: the plan.
        model: folder of the target's files for arms that this run starts, None for attached services.
        log_folder: where each arm's output goes.
        progress: told which arm is being waited for.
        stop: set when the user wants to leave; ends the wait for arms that start.
    """

    def __init__(
        self,
        plan: Plan,
        model: Path | None,
        log_folder: Path,
        progress: Progress,
        stop: asyncio.Event,
    ) -> None:
        self.plan, self.arms = plan, list_arms(plan)
        self._progress, self.stop = progress, stop
        self._processes = {
            name: self._process(name, arm, model, log_folder) for name, arm in self.arms.items()
        }
        self.manifests: dict[str, ArmManifest] = {}
        self.endpoints: dict[str, Endpoint] = {}

    async def __aenter__(self) -> Self:
        try:
            for number, (name, process) in enumerate(self._processes.items()):
                self._progress.advance(number, len(self._processes), f"starting {name}")
                process.start()
                await unless_stopped(process.wait_ready(), self.stop)
            self._progress.advance(len(self._processes), len(self._processes), "all arms answer")
            await unless_stopped(self._describe(), self.stop)
        except BaseException as error:
            await self._stop(at_once=isinstance(error, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._stop(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    def check_alive(self, name: str) -> None:
        """Do nothing while the arm's process runs.

        Raises:
            EngineError: it ended; says how, with its last lines of output.
        """
        self._processes[name].check_alive()

    def url(self, name: str) -> str:
        """Return the arm's base address."""
        return self._processes[name].url

    def _process(self, name: str, arm: Arm, model: Path | None, log_folder: Path) -> ArmProcess:
        limits = self.plan.limits
        return ArmProcess(
            name,
            command=build_command(name, arm, self.plan, str(model) if model else None),
            url=arm.url,
            log_path=log_folder / f"{name}.log",
            ready_s=limits.ready_s,
            stop_s=limits.stop_s,
        )

    async def _describe(self) -> None:
        async with aiohttp.ClientSession() as session:
            for name, process in self._processes.items():
                self.manifests[name] = await fetch_manifest(
                    session,
                    name,
                    self.arms[name],
                    process.url,
                    command=process.command,
                    load_time_s=process.load_time_s,
                    resident_bytes=process.resident_bytes(),
                )
                self.endpoints[name] = Endpoint(
                    url=process.url,
                    served_model=_served_model(self.manifests[name]),
                    adapter=adapter_for(self.arms[name].engine),
                )

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


def _served_model(manifest: ArmManifest) -> str:
    model = manifest.settings.get(SERVED_MODEL_KEY)
    if not isinstance(model, str):
        raise EngineError(f"arm {manifest.arm} does not say which model it serves.", place=manifest.url)
    return model
