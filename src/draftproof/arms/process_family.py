"""What the system says of processes and groups: who runs, who is dead, how much memory, how one ended."""

import os
import signal

import psutil


def list_family(leader: int | None) -> list[psutil.Process]:
    """Return a process and all it has started, empty where it is gone or None."""
    if leader is None:
        return []
    try:
        process = psutil.Process(leader)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def group_exists(group: int) -> bool:
    """Tell whether a process of the group still runs; a group of nothing but dead ones does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return any(_is_member(process, group) for process in psutil.process_iter())


def _is_member(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False


def runs(process: psutil.Process) -> bool:
    """Tell whether a process still runs; a dead one that nobody has asked for its exit code does not."""
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill(process: psutil.Process) -> None:
    """End a process at once; one that is gone needs nothing."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def resident_bytes(process: psutil.Process) -> int | None:
    """Return a process's resident memory, None where it cannot be read."""
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return None


def describe_exit(code: int) -> str:
    """Return how a process ended, in words; a negative code is the signal that ended it."""
    if code < 0:
        known = -code in {one.value for one in signal.Signals}
        return f"was killed by signal {signal.Signals(-code).name if known else -code}"
    return f"ended with exit code {code}"
