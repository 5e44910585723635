"""The processes behind a service's address, where it runs on this host and the system lets us see them.

A service that this program started is in its own tree, unless it was started through a daemon (containers):
then, as with one that somebody else runs, whoever listens at its port leads to it.
"""

import os
import socket
from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

import psutil

from draftproof.telemetry.host import find_family

# Whoever listens for a container is not its service.
_DAEMON_CLIENTS = ("docker", "podman", "nerdctl", "kubectl", "srun", "systemd-run", "ssh")
_FORWARDERS = ("docker-proxy", "rootlessport", "slirp4netns", "pasta", "conmon", "containerd-shim")


def is_by_daemon(command: Iterable[str]) -> bool:
    """Tell whether a command has somebody else start the service, so that it is in no tree of ours."""
    words = (word for part in command for word in part.split())
    return any(word.rpartition("/")[2] in _DAEMON_CLIENTS for word in words)


def find_processes(url: str) -> tuple[int, ...] | None:
    """Return the processes of a service, empty where it runs elsewhere; None where it cannot be told."""
    if not is_local_url(url):
        return ()
    parts = urlsplit(url)
    listeners = find_listeners(parts.port or (443 if parts.scheme == "https" else 80))
    if not listeners or any(_is_forwarder(pid) for pid in listeners):
        return None
    own = {process.pid for process in find_family(os.getpid())}
    return tuple(sorted({member for pid in listeners if pid not in own for member in list_group(pid)}))


def is_local_url(url: str) -> bool:
    """Tell whether an address is of this machine."""
    return is_local(urlsplit(url).hostname or "")


def is_local(name: str) -> bool:
    """Tell whether a host name is of this machine."""
    here = {"127.0.0.1", "::1"} | {
        one.address.partition("%")[0] for found in psutil.net_if_addrs().values() for one in found
    }
    try:
        return any(str(found[4][0]) in here for found in socket.getaddrinfo(name, None))
    except OSError:
        return False


def find_listeners(port: int) -> tuple[int, ...]:
    """Return the processes that listen at a port of this machine, as far as the system tells."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.Error:
        return ()
    return tuple(
        sorted(
            {
                one.pid
                for one in found
                if one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.pid is not None
            }
        )
    )


def list_group(pid: int) -> Collection[int]:
    """Return a process and those of its group: a launcher and its workers, where only one of them listens.

    A script without job control has one group for all that it starts, this program included: it says nothing.
    """
    group = _group_of(pid)
    if group is None or group == os.getpgid(0):
        return (pid,)
    return {pid, *(one for one in psutil.pids() if _group_of(one) == group)}


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def _is_forwarder(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).name().startswith(_FORWARDERS))
    except psutil.Error:
        return True
