"""Ports and readiness of a service: is a port free, does somebody answer there."""

import socket

import aiohttp
import msgspec

from draftproof.arms.launch import LOOPBACK
from draftproof.errors import EngineError

_PROBE_TIMEOUT_S = 2.0
_ABSENT_STATUSES = (404, 405)


class ReadyProbe(msgspec.Struct, frozen=True, kw_only=True):
    """How a service is asked whether it is ready: paths in order until one exists, and request headers."""

    paths: tuple[str, ...] = ("/health", "/v1/models")
    headers: tuple[tuple[str, str], ...] = ()


def find_free_port() -> int:
    """Return a port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_port_is_free(port: int, name: str) -> None:
    """Do nothing if `port` can be listened on.

    Raises:
        EngineError: another program has it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EngineError(
                f"port {port} of arm {name} is in use.", fix="end the other program or choose another port."
            ) from error


async def answers(session: aiohttp.ClientSession, url: str, probe: ReadyProbe) -> bool:
    """Tell whether a service is ready: the first of the probe's addresses that it has says so."""
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
    base = url.removesuffix("/v1")
    for path in probe.paths:
        try:
            async with session.get(base + path, timeout=timeout, headers=dict(probe.headers)) as response:
                if response.status not in _ABSENT_STATUSES:
                    return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
    return False
