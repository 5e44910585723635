"""One arm as a process: start, wait until it answers, watch, stop with everything it started.

The process leads its own group, so a stop reaches the servers that a launcher starts. A watchdog stops the
group should this program be killed. A service with a `url` and no command is only attached to: it is waited
for and never stopped.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Self

import aiohttp
import psutil

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.judge.metrics.host_use import RESIDENT_BYTES
from draftproof.plan.environment import resolve_references
from draftproof.services.arms import watchdog
from draftproof.services.arms.launch import LOOPBACK, PORT_MARK, mask_file, plan_section, read_from, read_tail
from draftproof.services.arms.service import (
    Heard,
    ReadyProbe,
    answers,
    check_address,
    find_free_port,
)
from draftproof.services.telemetry.host import find_family, read_family


def group_exists(group: int) -> bool:
    """Tell whether a process of the group still runs; a group of nothing but dead ones does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def runs(process: psutil.Process) -> bool:
    """Tell whether a process still runs; a dead one that nobody has asked for its exit code does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def describe_exit(code: int) -> str:
    """Return how a process ended, in words; a negative code is the signal that ended it."""
    if code < 0:
        known = -code in {one.value for one in signal.Signals}
        return f"was killed by signal {signal.Signals(-code).name if known else -code}"
    return f"ended with exit code {code}"


_POLL_S = 0.1
# A service that is said to run already is not worth the patience that a loading model needs.
_ATTACH_S = 15.0
_PORT_TAKEN_WORDS = ("address already in use", "cannot listen there")


class ArmProcess:
    """Starts an arm and stops it again.

    `name`: the arm's name, for messages. `command`: the command with `{port}` in it; None attaches to `url`.
    `url`: address of a service that runs already; ignored where there is a command. `log_path`: where the
    command's output goes; appended to. `ready_s`: how long to wait for the service to answer. `stop_s`: how
    long to wait for a clean stop before killing. `environment`: of the command; None is that of this program.
    `probe`: which addresses tell that the service is ready, and with which headers they are asked. `secrets`:
    values that are masked in the log once the command has ended, and in messages.
    """

    def __init__(
        self,
        name: str,
        *,
        command: tuple[str, ...] | None,
        log_path: Path,
        url: str | None = None,
        ready_s: float = 300.0,
        stop_s: float = 15.0,
        environment: Mapping[str, str] | None = None,
        probe: ReadyProbe | None = None,
        secrets: tuple[str, ...] = (),
        clock: Clock = monotonic_ns,
    ) -> None:
        self.name, self.log_path = name, log_path
        self._environment, self._probe, self._secrets = environment, probe or ReadyProbe(), secrets
        self._template = command
        self._ready_s, self._stop_s, self._clock = ready_s, stop_s, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._started_ns: int | None = None
        self.command: tuple[str, ...] | None = None
        self.url = (url or "").rstrip("/")
        self.load_time_s: float | None = None

    @property
    def pid(self) -> int | None:
        """Process id of what was started, None when attached or not started."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the command; does nothing when attached. Raises EngineError: the command cannot be run."""
        if self._template is None:
            return
        port = find_free_port()
        self.command = tuple(part.replace(PORT_MARK, str(port)) for part in self._template)
        self.url = f"http://{LOOPBACK}:{port}"
        environment = os.environ if self._environment is None else self._environment
        place = f"arms.{plan_section(self.name)}.command"
        # What is shown and stored keeps the references to the environment.
        resolved = tuple(resolve_references(part, environment, place) for part in self.command)
        self._watchdog = start_watchdog(self._stop_s)
        self._started_ns = self._clock()
        try:
            self._process = self._launch(resolved)
        except (OSError, ValueError) as error:
            self._release()
            why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
            raise EngineError(
                f"arm {self.name} cannot be started ({why}).",
                fix=f"check arms.{plan_section(self.name)}.command.",
            ) from error
        tell(self._watchdog, f"{self._process.pid}\n")

    async def wait_ready(self, *, again: bool = False) -> float:
        """Wait until the service answers; return the seconds that took.

        `again`: it has answered before and is waited for from now on. Raises EngineError: the process ended,
        the service did not answer in time, or refuses; PlanError: what is attached to has no address that can
        be used.
        """
        check_address(self.url, self.name)
        start_ns = self._clock() if again or self._started_ns is None else self._started_ns
        async with aiohttp.ClientSession() as session:
            while True:
                self.check_alive()
                heard = await answers(session, self.url, self._probe, self.name)
                waited_s = (self._clock() - start_ns) / 1e9
                # One that runs already and has no such address is asked for its model instead.
                if heard.state == "ready" or (heard.state == "absent" and self._process is None):
                    # Another program could hold the port while ours is about to fail.
                    self.check_alive()
                    if not again:
                        self.load_time_s = waited_s if self._process else None
                    return waited_s
                # One that answers and is not ready loads its model, and is given the time for it.
                is_loading = self._process is not None or heard.state == "not_yet"
                if waited_s >= (self._ready_s if is_loading else min(self._ready_s, _ATTACH_S)):
                    raise self._never_ready(waited_s, heard)
                await asyncio.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Do nothing while the process runs.

        Raises EngineError: it ended; says how, with its last lines of output.
        """
        if self._process is None or self._process.poll() is None:
            return
        tail = self.log_tail()
        taken = any(words in tail.lower() for words in _PORT_TAKEN_WORDS)
        raise EngineError(
            f"arm {self.name} {describe_exit(self._process.returncode)}."
            + (f" Last output: {tail}" if tail else " It wrote nothing."),
            place=str(self.log_path),
            fix="another program has the port: end it or start again." if taken else "see the log.",
        )

    def resident_bytes(self) -> int | None:
        """Return the resident memory of the process and all it started, None when not known.

        Pages that several processes share are counted in each.
        """
        found = read_family(find_family(self.pid)).get(RESIDENT_BYTES)
        return None if found is None else int(found)

    def log_tail(self) -> str:
        """Return the last lines this start of the arm wrote, on one line."""
        return read_tail(self.log_path, self._log_start, self._secrets)

    def log_text(self) -> str:
        """Return what this start of the arm wrote, secrets masked; "" when attached."""
        return read_from(self.log_path, self._log_start, self._secrets) if self._process else ""

    async def stop(self) -> None:
        """End the process and everything it started: ask, wait, kill. Harmless without one."""
        if self._process is None:
            return
        family = find_family(self.pid)
        self._signal(signal.SIGTERM, family)
        if not await self._gone_within(family, self._stop_s):
            self._signal(signal.SIGKILL, family)
            await self._gone_within(family, self._stop_s)
        self._release()

    def kill(self) -> None:
        """End the process and everything it started at once, unasked. Harmless without one."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL, find_family(self.pid))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_POLL_S)
        self._release()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def _launch(self, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = log.tell()
            return subprocess.Popen(  # noqa: S603 - the plan's own command, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if self._environment is None else dict(self._environment),
            )

    def _release(self) -> None:
        """Let go of what was stopped, and send the watchdog away."""
        if self._watchdog is not None:
            tell(self._watchdog, "stopped\n")
            self._watchdog.communicate()
        self._process, self._watchdog = None, None
        mask_file(self.log_path, self._secrets)

    def _never_ready(self, waited_s: float, heard: Heard) -> EngineError:
        tail = self.log_tail() if self._process else ""
        start = "start the service first." if heard.state == "silent" else "see what the service itself says."
        return EngineError(
            f"arm {self.name} did not answer at {self.url} within {waited_s:.0f} s ({heard.why})."
            + (f" Last output: {tail}" if tail else ""),
            place=str(self.log_path) if self._process else None,
            fix="see the log, or raise limits.ready_s." if self._process else start,
        )

    def _signal(self, number: signal.Signals, family: Collection[psutil.Process]) -> None:
        if self._process is not None and group_exists(self._process.pid):
            os.killpg(self._process.pid, number)
        for process in family:
            if number is signal.SIGKILL and process.is_running():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    async def _gone_within(self, family: Collection[psutil.Process], wait_s: float) -> bool:
        deadline_ns = self._clock() + int(wait_s * 1e9)
        while self._remains(family):
            if self._clock() >= deadline_ns:
                return False
            await asyncio.sleep(_POLL_S / 2)
        return True

    def _remains(self, family: Collection[psutil.Process]) -> bool:
        assert self._process is not None  # noqa: S101 - stop() has checked
        return self._process.poll() is None or group_exists(self._process.pid) or any(map(runs, family))


def start_watchdog(wait_s: float) -> subprocess.Popen[bytes]:
    """Start the process that stops an arm once this program is no more; see watchdog.py.

    Raises EngineError: it cannot be started.
    """
    command = [sys.executable, "-I", "-S", watchdog.__file__, str(wait_s)]
    try:
        return subprocess.Popen(  # noqa: S603 - our own file
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise EngineError(f"no watchdog can be started ({error.strerror}).", place=command[0]) from error


def tell(process: subprocess.Popen[bytes], line: str) -> None:
    """Write one line to a watchdog; one that has ended needs none."""
    assert process.stdin is not None  # noqa: S101 - started with a pipe
    if process.stdin.closed:
        return
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line.encode())
        process.stdin.flush()
