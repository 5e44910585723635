"""One arm of a plan as a running service: made ready from the plan, started, asked what it is, stopped."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import aiohttp
import msgspec

from draftproof.core.errors import DraftproofError, EngineError
from draftproof.core.manifests import ArmManifest, Counting
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint
from draftproof.measure.run.progress import unless_stopped
from draftproof.plan.environment import (
    check_request_fields,
    find_secrets,
    mask_struct,
    mask_values,
    resolve_headers,
    resolve_variables,
)
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.launch import build_command, plan_section
from draftproof.services.arms.manifest import SERVED_MODEL_KEY, Started, ask_identity, fetch_manifest
from draftproof.services.arms.probe import ProbeResult, probe_service
from draftproof.services.arms.process import ArmProcess
from draftproof.services.arms.service import ReadyProbe, Service, locate_service
from draftproof.services.engines import adapter_for
from draftproof.services.telemetry.host import describe_platform


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """A running arm as it is spoken to, and what its first answer showed."""

    service: Service
    endpoint: Endpoint
    probe: ProbeResult

    @property
    def manifest(self) -> ArmManifest:
        """What the arm is."""
        return self.probe.manifest


class RunningArm:
    """Starts an arm and stops it again; between the two it is spoken to through its `Contact`.

    `model`: the target's folder or file, None where it is not at hand. `tokenizer`: what counts after the run
    where this arm does not. `log_path`: where the arm's output goes. `environment`: what references in the
    plan are taken from. Raises PlanError: the arm cannot be started as the plan says, or refers to a name
    that is not set.
    """

    def __init__(
        self,
        name: str,
        arm: Arm,
        plan: Plan,
        *,
        model: Path | None,
        tokenizer: Path | None = None,
        log_path: Path,
        environment: Mapping[str, str],
    ) -> None:
        place = f"arms.{plan_section(name)}"
        self._arm, self._limits, self._environment = arm, plan.limits, environment
        self._headers = resolve_headers(arm.headers, environment, f"{place}.headers")
        check_request_fields(arm.request, f"{place}.request")
        self.name, self.adapter = name, adapter_for(arm.engine)
        self._has_tokenizer = tokenizer is not None
        self.secrets = find_secrets([arm], environment)
        self.process = ArmProcess(
            name,
            command=build_command(name, arm, plan, str(model) if model else None),
            url=arm.url,
            log_path=log_path,
            ready_s=plan.limits.ready_s,
            stop_s=plan.limits.stop_s,
            environment=dict(environment) | dict(resolve_variables(arm.env, environment, f"{place}.env")),
            probe=ReadyProbe(paths=self.adapter.facts.ready_paths, headers=self._headers),
            secrets=self.secrets,
        )

    async def start(self, stop: asyncio.Event, *, again: bool = False) -> Contact:
        """Start the arm, or attach to it; wait until it answers, ask what it is, send its first request.

        `again`: it has answered before and could not be reached; it is not started. Raises EngineError: it
        does not start or does not answer as it must; Interrupted: `stop` was set meanwhile.
        """
        with masked_errors(self.secrets):
            if not again:
                self.process.start()
            await unless_stopped(self.process.wait_ready(again=again), stop)
            return await unless_stopped(self._meet(), stop)

    async def describe_again(self) -> tuple[ArmManifest, bool] | None:
        """Ask a service what it is now, without a request that it would have to answer; None if it is silent.

        The second value tells whether every address that it has told what it tells: one that is busy, or
        slow, is silent, and what is missing then is not known to be gone. Raises EngineError: it answers, and
        as something that the arm cannot be.
        """
        service = self._locate()
        with masked_errors(self.secrets):
            async with aiohttp.ClientSession() as session:
                try:
                    told = await ask_identity(session, service)
                except EngineError:
                    return None
                try:
                    now = await fetch_manifest(session, self._arm, service, self._describe_start(), told=told)
                except EngineError:
                    if told.silent:
                        return None
                    raise
        return mask_struct(now, self.secrets), not told.silent

    def _locate(self) -> Service:
        return locate_service(
            self.name, self._arm, self.process.url, self.adapter, self._headers, secrets=self.secrets
        )

    async def _meet(self) -> Contact:
        service = self._locate()
        transport = HttpTransport()
        async with aiohttp.ClientSession() as session:

            async def describe() -> ArmManifest:
                told = await fetch_manifest(session, self._arm, service, self._describe_start())
                return mask_struct(told, self.secrets)

            try:
                endpoint = _make_endpoint(self._arm, service, await describe())
                probe = await probe_service(
                    service,
                    endpoint,
                    describe,
                    session=session,
                    transport=transport,
                    timeout_s=self._limits.request_s,
                    read_log=self.process.log_text,
                )
            finally:
                await transport.close()
        endpoint = msgspec.structs.replace(endpoint, accepted=probe.accepted)
        return Contact(service=service, endpoint=endpoint, probe=self._complete(probe))

    def _complete(self, probe: ProbeResult) -> ProbeResult:
        """Say in the manifest how answers are counted and how the first one was.

        What ran before this program came has long answered its first request.
        """
        answer = probe.exchange.answer
        counting = Counting(
            asked=probe.accepted,
            token_source=answer.token_source or ("tokenizer" if self._has_tokenizer else None),
            has_total=answer.output_tokens is not None,
        )
        cold = None if self.process.pid is None else probe.cold
        manifest = msgspec.structs.replace(probe.manifest, counting=counting, cold=cold)
        return msgspec.structs.replace(probe, manifest=manifest)

    def _describe_start(self) -> Started:
        return Started(
            command=self.process.command,
            load_time_s=self.process.load_time_s,
            resident_bytes=self.process.resident_bytes(),
            log=self.process.log_text(),
            environment=self._environment,
            platform={} if self.process.pid is None else describe_platform(),
        )


@contextlib.contextmanager
def masked_errors(secrets: tuple[str, ...]) -> Iterator[None]:
    """Mask secrets in the errors that the body raises: a service may repeat a key in all that it says."""
    try:
        yield
    except DraftproofError as error:
        error.message = mask_values(error.message, secrets)
        error.place = error.place and mask_values(error.place, secrets)
        error.fix = error.fix and mask_values(error.fix, secrets)
        error.args = (error.message,)
        raise


def _make_endpoint(arm: Arm, service: Service, manifest: ArmManifest) -> Endpoint:
    model = manifest.settings.get(SERVED_MODEL_KEY)
    if not isinstance(model, str):
        raise EngineError(f"arm {manifest.arm} does not say which model it serves.", place=manifest.url)
    return Endpoint(
        url=service.url,
        served_model=model,
        engine=service.adapter.name,
        headers=service.headers + service.adapter.facts.request_headers,
        request=arm.request,
    )
