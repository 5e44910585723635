"""Fetching a service's metrics, stamped with the client's clock."""

import aiohttp
import msgspec

from draftproof.clock import Clock, monotonic_ns
from draftproof.errors import EngineError
from draftproof.telemetry.prometheus import Exposition, parse_exposition


class TelemetrySample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of telemetry/<arm>.jsonl: every series of one scrape at one time of the client's clock."""

    arm: str
    at_ns: int
    values: dict[str, float]


async def fetch_exposition(
    session: aiohttp.ClientSession, url: str, *, path: str = "/metrics", timeout_s: float = 5.0
) -> Exposition:
    """Return one scrape of a service.

    Raises:
        EngineError: the service does not answer, has no metrics there, or answers something else.
    """
    address = url.rstrip("/") + path
    try:
        async with session.get(address, timeout=aiohttp.ClientTimeout(total=timeout_s)) as response:
            text = await response.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"no metrics could be read ({type(error).__name__}).", place=address) from error
    if response.status != 200:
        raise EngineError(f"no metrics could be read (status {response.status}).", place=address)
    try:
        return parse_exposition(text)
    except ValueError as error:
        raise EngineError(f"these are no Prometheus metrics ({error}).", place=address) from error


async def fetch_sample(
    session: aiohttp.ClientSession, arm: str, url: str, *, clock: Clock = monotonic_ns
) -> TelemetrySample:
    """Return one scrape of an arm as a line to keep.

    Raises:
        EngineError: as `fetch_exposition`.
    """
    exposition = await fetch_exposition(session, url)
    return TelemetrySample(arm=arm, at_ns=clock(), values=exposition.values)
