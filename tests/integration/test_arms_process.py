"""Real processes: started, watched, found dead, and stopped with everything they started."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from draftproof.core.errors import EngineError
from draftproof.services.arms.process import ArmProcess
from draftproof.services.arms.service import find_free_port

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status}); self.end_headers(); self.wfile.write(b"{{}}")
    def log_message(self, *args): pass
print("starting", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child!r}], start_new_session={apart})
print("child", child.pid, flush=True)
{ignore}
time.sleep(600)
"""


def python(program: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program, *arguments)


def arm(tmp_path: Path, command, **options) -> ArmProcess:
    return ArmProcess("candidate", command=command, log_path=tmp_path / "logs" / "candidate.log", **options)


async def wait_for_log(process: ArmProcess, words: str) -> str:
    for _ in range(200):
        if words in process.log_tail():
            return process.log_tail()
        await asyncio.sleep(0.05)
    raise AssertionError(f"never logged {words!r}: {process.log_tail()!r}")


def test_arm_starts_gets_ready_and_stops(tmp_path):
    """A service that answers is ready, has a load time and memory, and is gone after a stop."""

    async def scenario():
        async with arm(tmp_path, python(SERVER.format(status=200), "{port}"), ready_s=30) as process:
            waited_s = await process.wait_ready()
            assert process.load_time_s == waited_s > 0
            assert (process.resident_bytes() or 0) > 1_000_000
            return process, process.pid

    process, pid = asyncio.run(scenario())
    assert process.pid is None
    assert not psutil.pid_exists(pid)
    assert "starting" in process.log_path.read_text()


def test_service_that_lists_models_but_has_no_health_path_gets_ready(tmp_path):
    """Where there is no /health, /v1/models decides."""
    program = SERVER.format(status="200 if self.path == '/v1/models' else 404")

    async def scenario():
        async with arm(tmp_path, python(program, "{port}"), ready_s=30) as process:
            return await process.wait_ready()

    assert asyncio.run(scenario()) > 0


def test_service_that_never_gets_ready_is_named_with_seconds_and_log(tmp_path):
    """A service that answers 503 for good ends the wait with arm, seconds and log."""

    async def scenario():
        async with arm(tmp_path, python(SERVER.format(status=503), "{port}"), ready_s=2.0) as process:
            await process.wait_ready()

    with pytest.raises(
        EngineError, match=r"arm candidate did not answer at http.* within 2 s.*starting"
    ) as caught:
        asyncio.run(scenario())
    assert caught.value.place == str(tmp_path / "logs" / "candidate.log")
    assert "limits.ready_s" in str(caught.value)


def test_early_exit_is_found_at_once_with_the_last_lines(tmp_path):
    """A process that ends is not waited for: the error has its exit code and last output."""
    command = python("import sys; print('no such model: x'); sys.exit(3)", "{port}")
    started = time.monotonic()

    async def scenario():
        async with arm(tmp_path, command, ready_s=60) as process:
            await process.wait_ready()

    with pytest.raises(EngineError, match=r"ended with exit code 3\. Last output: no such model: x"):
        asyncio.run(scenario())
    assert time.monotonic() - started < 20


def test_only_this_start_s_output_is_quoted(tmp_path):
    """The log of an earlier start is kept and never quoted as this one's."""

    async def scenario():
        first = arm(tmp_path, python("print('old words')", "{port}"))
        first.start()
        await wait_for_log(first, "old words")
        await first.stop()
        second = arm(tmp_path, python("pass", "{port}"))
        second.start()
        with pytest.raises(EngineError, match="It wrote nothing"):
            await second.wait_ready()
        await second.stop()

    asyncio.run(scenario())
    assert "old words" in (tmp_path / "logs" / "candidate.log").read_text()


def test_killed_service_is_found(tmp_path):
    """A service killed from outside is no longer alive, and the error names the signal."""

    async def scenario():
        async with arm(tmp_path, python(SERVER.format(status=200), "{port}"), ready_s=30) as process:
            await process.wait_ready()
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            for _ in range(200):
                process.check_alive()
                await asyncio.sleep(0.02)

    with pytest.raises(EngineError, match="was killed by signal SIGKILL"):
        asyncio.run(scenario())


def test_port_taken_while_starting_is_told_from_the_log(tmp_path):
    """A service that finds its port taken fails, and the fix names the port."""
    command = python("import sys; sys.exit('OSError: [Errno 98] Address already in use')", "{port}")

    async def scenario():
        async with arm(tmp_path, command) as process:
            await process.wait_ready()

    with pytest.raises(EngineError, match="another program has the port"):
        asyncio.run(scenario())


def test_command_that_is_not_there_is_one_sentence(tmp_path):
    """A program that does not exist is named with the plan's key."""
    with pytest.raises(EngineError, match=r"no-such-program.*arms\.candidate\.command"):
        arm(tmp_path, ("no-such-program", "{port}")).start()


@pytest.mark.parametrize("apart", [False, True])
def test_stop_reaches_the_whole_tree(tmp_path, apart):
    """Children end too, also one that has left the process group and one that ignores the polite signal."""
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    program = PARENT.format(child=child, apart=apart, ignore="")

    async def scenario():
        process = arm(tmp_path, python(program, "{port}"), stop_s=0.5)
        process.start()
        child_pid = int((await wait_for_log(process, "child")).split()[-1])
        await asyncio.sleep(0.3)
        await process.stop()
        return child_pid

    child_pid = asyncio.run(scenario())
    assert not psutil.pid_exists(child_pid) or psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE


def test_service_that_ignores_the_polite_signal_is_killed(tmp_path):
    """After the grace period a stubborn process is killed."""
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(600)"
    )

    async def scenario():
        process = arm(tmp_path, python(program, "{port}"), stop_s=0.3)
        process.start()
        pid = process.pid
        await wait_for_log(process, "up")
        await process.stop()
        await process.stop()
        return pid

    assert not psutil.pid_exists(asyncio.run(scenario()))


def test_attached_service_is_waited_for_and_left_alone(tmp_path):
    """With a url nothing is started; stopping does nothing, and what does not answer is named."""

    async def scenario():
        async with arm(tmp_path, python(SERVER.format(status=200), "{port}"), ready_s=30) as server:
            await server.wait_ready()
            attached = arm(tmp_path, None, url=server.url + "/")
            attached.start()
            await attached.wait_ready()
            await attached.stop()
            assert attached.load_time_s is None
            assert attached.resident_bytes() is None

    asyncio.run(scenario())


def test_attached_service_that_is_not_there_is_named(tmp_path):
    """Nothing listens at the url: the error says where and what to do."""
    absent = arm(tmp_path, None, url=f"http://127.0.0.1:{find_free_port()}", ready_s=0.2)
    with pytest.raises(EngineError, match=r"did not answer at .*start the service first"):
        asyncio.run(absent.wait_ready())
