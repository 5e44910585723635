"""The watchdog of an arm against real process groups."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftproof.services.arms.process import start_watchdog, tell

CHILD = "import sys, time; print('up', flush=True); time.sleep(60)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + CHILD


@pytest.fixture
def group():
    """Return a function that starts a process as the leader of its own group, ready for signals."""
    with contextlib.ExitStack() as stack:

        def start(program: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            return process

        yield start


def watch(process: subprocess.Popen[bytes], wait_s: float = 30.0) -> subprocess.Popen[bytes]:
    watchdog = start_watchdog(wait_s)
    tell(watchdog, f"{process.pid}\n")
    return watchdog


def end_starter(watchdog: subprocess.Popen[bytes], process: subprocess.Popen[bytes]) -> int:
    """Close the pipe as the death of a starter does; return how the watched process ended."""
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    code = process.wait(20)
    assert watchdog.wait(20) == 0
    return code


def test_it_asks_the_group_to_stop_when_its_starter_is_gone(group):
    """The end of the pipe, whatever caused it, ends the group by SIGTERM."""
    process = group(CHILD)
    assert end_starter(watch(process), process) == -signal.SIGTERM


def test_it_kills_a_group_that_does_not_heed(group):
    """A service that ignores SIGTERM is killed once the time for a clean stop is over."""
    process = group(DEAF)
    assert end_starter(watch(process, wait_s=0.2), process) == -signal.SIGKILL


def test_it_leaves_a_group_alone_that_was_stopped_by_its_starter(group):
    """A watchdog that was sent away touches nothing: the number may belong to another group by then."""
    process = group(CHILD)
    watchdog = watch(process)
    tell(watchdog, "stopped\n")
    watchdog.communicate(timeout=20)
    assert watchdog.returncode == 0
    assert process.poll() is None


def test_it_outlives_the_signals_that_a_terminal_sends(group):
    """Ctrl-C and a closed terminal reach the starter, and the watchdog waits for what the starter does."""
    process = group(CHILD)
    watchdog = watch(process)
    deadline_s = time.monotonic() + 20
    while not _ignores(watchdog.pid, signal.SIGTERM):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(watchdog.pid, number)
    with pytest.raises(subprocess.TimeoutExpired):
        watchdog.wait(0.3)
    assert process.poll() is None
    assert end_starter(watchdog, process) == -signal.SIGTERM


def _ignores(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(mask >> (number - 1) & 1)
