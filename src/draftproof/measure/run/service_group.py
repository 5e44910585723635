"""All arms of a plan as running services: started one by one, in turn or together, stopped together.

One arm of a plan as a running service: made ready from the plan, started, asked what it is, stopped.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from draftproof.core.errors import DraftproofError, EngineError, IncompatibleError, PlanError
from draftproof.core.manifests import ArmManifest, Counting
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint
from draftproof.measure.run.progress import Progress, unless_stopped
from draftproof.plan.environment import (
    check_request_fields,
    find_secrets,
    mask_struct,
    mask_values,
    resolve_headers,
    resolve_variables,
)
from draftproof.plan.schema import Arm, Plan
from draftproof.services.arms.comparability import find_differences
from draftproof.services.arms.launch import build_command, list_arms, plan_section
from draftproof.services.arms.manifest import SERVED_MODEL_KEY, Started, ask_identity, fetch_manifest
from draftproof.services.arms.probe import ProbeResult, probe_service
from draftproof.services.arms.process import ArmProcess
from draftproof.services.arms.request_fit import find_tokenizer
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

        The second value tells whether every address that it has answered: one that is busy, or
        slow, is silent, and what is missing then is not known to be gone. Raises EngineError: it answers, and
        as something that the arm cannot be.
        """
        service = self._locate()
        with masked_errors(self.secrets):
            async with aiohttp.ClientSession() as session:
                try:
                    answers = await ask_identity(session, service)
                except EngineError:
                    return None
                try:
                    now = await fetch_manifest(
                        session, self._arm, service, self._describe_start(), answers=answers
                    )
                except EngineError:
                    if answers.silent:
                        return None
                    raise
        return mask_struct(now, self.secrets), not answers.silent

    def _locate(self) -> Service:
        return locate_service(
            self.name, self._arm, self.process.url, self.adapter, self._headers, secrets=self.secrets
        )

    async def _meet(self) -> Contact:
        service = self._locate()
        transport = HttpTransport()
        async with aiohttp.ClientSession() as session:

            async def describe() -> ArmManifest:
                manifest = await fetch_manifest(session, self._arm, service, self._describe_start())
                return mask_struct(manifest, self.secrets)

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


class ServiceGroup:
    """The arms' processes. Use as an async context manager; leaving it stops every process tree.

    Arms start one after the other, so that one's load time is not another's burden. Each is asked what it is
    and probed before the next one starts. Placed one at a time, an arm is stopped after that and runs again
    only in its periods. `model`: the target's folder or file, for arms that this run starts; None for
    attached services. `log_folder`: where each arm's output goes. `progress`: gets which arm is being waited
    for. `stop`: set when the user wants to leave; ends the wait for arms that start. `environment`: what
    references in the plan are taken from; None is this program's own. `started_before`: how often an earlier
    part of the run has started each arm.
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
        started_before: Mapping[str, int] | None = None,
    ) -> None:
        environment = os.environ if environment is None else environment
        self.plan, self.arms = plan, list_arms(plan)
        self._progress, self.stop, self.model = progress, stop, model
        self.tokenizer = find_tokenizer(plan, model, environment)
        self.secrets = find_secrets(list(self.arms.values()), environment)
        self._running = {
            name: RunningArm(
                name,
                arm,
                plan,
                model=model,
                tokenizer=self.tokenizer,
                log_path=log_folder / f"{name}.log",
                environment=environment,
            )
            for name, arm in self.arms.items()
        }
        self._check_placement()
        self._starts = Counter(started_before)
        self.contacts: dict[str, Contact] = {}

    @property
    def takes_turns(self) -> bool:
        """Whether only the arm whose turn it is runs."""
        return self.plan.placement == "one_at_a_time"

    @property
    def start_s(self) -> float | None:
        """How long the arms that this run starts took to start; None where they start with each period."""
        taken = [one.load_time_s for one in self.manifests.values() if one.load_time_s is not None]
        return sum(taken) if taken and not self.takes_turns else None

    @property
    def manifests(self) -> dict[str, ArmManifest]:
        """What each arm is, by its name."""
        return {name: contact.manifest for name, contact in self.contacts.items()}

    async def __aenter__(self) -> Self:
        try:
            for number, (name, arm) in enumerate(self._running.items()):
                self._progress.advance(number, len(self._running), f"starting {name}")
                await self._start(name)
                if self.takes_turns:
                    await arm.process.stop()
            self._progress.advance(len(self._running), len(self._running), "all arms answer")
        except BaseException as error:
            await self._stop(at_once=isinstance(error, asyncio.CancelledError))
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._stop(at_once=kind is not None and issubclass(kind, asyncio.CancelledError))

    async def ensure(self, name: str) -> bool:
        """Let an arm run whose turn it is; return whether it had to be started for it.

        Raises EngineError: it does not start; IncompatibleError: it is not what it was at its first start;
        Interrupted: the user wants to leave.
        """
        if not self.takes_turns or self.pid(name) is not None:
            return False
        await asyncio.gather(*(arm.process.stop() for arm in self._running.values()))
        await self._start_anew(name)
        return True

    async def restart(self) -> tuple[str, ...]:
        """Stop the arms that this run has started, start them one after the other as at first, return them.

        Raises EngineError: one does not start; IncompatibleError: one is not what it was at its first start;
        Interrupted: the user wants to leave.
        """
        names = tuple(name for name in self._running if self.pid(name) is not None)
        await asyncio.gather(*(self._running[name].process.stop() for name in names))
        for name in names:
            await self._start_anew(name)
        return names

    def process(self, name: str) -> int | None:
        """Return how many times the run has started an arm, None for one that it only attaches to."""
        return None if self.arms[name].url is not None else self._starts[name]

    async def _start(self, name: str) -> None:
        self._starts[name] += 1
        self.contacts[name] = await self._running[name].start(self.stop)

    async def _start_anew(self, name: str) -> None:
        before = self.contacts[name].manifest
        await self._start(name)
        check_same(before, self.contacts[name].manifest)

    async def meet_again(self, name: str) -> None:
        """Wait for an arm that could not be reached, for as long as for one that starts, and ask what it is.

        Raises EngineError: it does not answer; IncompatibleError: it is not what it was before; Interrupted:
        the user wants to leave.
        """
        before = self.contacts[name].manifest
        self.contacts[name] = await self._running[name].start(self.stop, again=True)
        check_same(before, self.contacts[name].manifest)

    async def find_change(self, name: str) -> IncompatibleError | None:
        """Ask an arm that somebody else runs what it is; return what is no longer as it was, None if all is.

        None too where it does not answer: it may be there again before it is needed. What it cannot tell just
        now is no change either.
        """
        if self.arms[name].url is None:
            return None
        try:
            now = await self._running[name].describe_again()
        except EngineError as error:  # it answers, as another engine or with other models
            return _not_the_same(name, error.message)
        return None if now is None else find_change(self.contacts[name].manifest, now[0], is_whole=now[1])

    async def is_there(self, name: str) -> bool:
        """Tell whether an arm says what it is, and nothing that it was not before."""
        try:
            now = await self._running[name].describe_again()
        except EngineError:
            return False
        return now is not None and find_change(self.contacts[name].manifest, now[0], is_whole=now[1]) is None

    def check_alive(self, name: str) -> None:
        """Do nothing while the arm's process runs.

        Raises EngineError: it ended; says how, with its last lines of output.
        """
        self._running[name].process.check_alive()

    def pid(self, name: str) -> int | None:
        """Return the process id of an arm that this run has started, None for an attached one."""
        return self._running[name].process.pid

    def _check_placement(self) -> None:
        attached = [name for name, arm in self.arms.items() if arm.url is not None]
        if self.takes_turns and attached:
            raise PlanError(
                "a service that is only attached to cannot be stopped and started in turn.",
                place=f"arms.{plan_section(attached[0])}.url",
                fix='give a command, or set placement = "together".',
            )

    async def _stop(self, *, at_once: bool) -> None:
        """Stop every arm, all at the same time; `at_once` or when cancelled they are killed instead."""
        try:
            if not at_once:
                await asyncio.gather(*(arm.process.stop() for arm in self._running.values()))
        finally:
            for arm in self._running.values():
                arm.process.kill()


def needs_model(arms: Mapping[str, Arm]) -> bool:
    """Tell whether an arm is started from the target's files by this run."""
    return any(arm.engine == "reference" and arm.url is None and arm.command is None for arm in arms.values())


def check_same(before: ArmManifest, now: ArmManifest) -> None:
    """Do nothing if an arm is what it was when the run began.

    Raises IncompatibleError: names every key and both values.
    """
    change = find_change(before, now)
    if change is not None:
        raise change


def find_change(before: ArmManifest, now: ArmManifest, *, is_whole: bool = True) -> IncompatibleError | None:
    """Return what `check_same` would raise; unless `is_whole`, only of what is stated otherwise now."""
    changed = [one for one in find_differences(before, now) if is_whole or one.is_stated]
    pairs = ", ".join(f"{d.key} ({d.baseline} -> {d.other})" for d in changed)
    return _not_the_same(now.arm, pairs) if changed else None


def _not_the_same(arm: str, what: str) -> IncompatibleError:
    return IncompatibleError(
        f"it is not what it was when the run began: {what.rstrip('.')}.",
        place=f"arms.{arm}",
        fix="restore it, or start a new run.",
    )
