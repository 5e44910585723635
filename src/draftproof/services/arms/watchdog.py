"""Ends an arm whose starter has died: a small process of its own that outlives the one it watches.

A starter that is killed cannot stop its services, and a service that nobody stops holds its port, memory and
accelerator for good. The kernel closes the starter's end of a pipe whatever ends it; that is the sign. The
kernel's own parent-death signal would reach only the process that was started and not what that has started.

Run as a file, with the standard library alone, so that it costs milliseconds. Arguments: seconds to wait for
a clean stop. Standard input: the number of a process group, one line; then nothing while the starter lives,
or a further line once it has stopped the group itself.
"""

import os
import signal
import sys
import time

_POLL_S = 0.05


def main() -> None:
    """Wait for the end of standard input, then end the group that its first line names."""
    # A terminal's stop signals are for the starter; this one leaves when the starter has left.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    group = sys.stdin.readline()
    if group[:-1].isdecimal() and not sys.stdin.readline():
        end_group(int(group), float(sys.argv[1]))


def end_group(group: int, wait_s: float) -> None:
    """Ask every process of a group to stop, wait, and kill what is left."""
    deadline_s = time.monotonic() + wait_s
    if not _signal(group, signal.SIGTERM):
        return
    while time.monotonic() < deadline_s:
        if not _signal(group, 0):
            return
        time.sleep(_POLL_S)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a group; tell whether there is anyone to get it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
