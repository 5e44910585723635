"""Fetching a service's metrics over HTTP; what comes back is parsed elsewhere."""

import aiohttp

from draftproof.errors import EngineError
from draftproof.telemetry.prometheus import Exposition, parse_exposition

_SHOWN_CHARS = 80
_MOST_BYTES = 16 * 2**20


async def fetch_text(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 5.0,
) -> str:
    """Return what an address answers, unpacked where it is compressed.

    Raises:
        EngineError: nobody answers there in time, with status 200 and less than 16 MiB.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(address, timeout=timeout, headers=dict(headers)) as response:
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > _MOST_BYTES:
                    raise EngineError("no metrics could be read (the answer does not end).", place=address)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise EngineError(f"no metrics could be read ({type(error).__name__}).", place=address) from error
    if response.status != 200:
        raise EngineError(f"no metrics could be read (status {response.status}).", place=address)
    return body.decode("utf-8", "replace")


async def fetch_exposition(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 5.0,
) -> Exposition:
    """Return one scrape of an address; a compressed answer is unpacked.

    Raises:
        EngineError: nobody answers there, or what answers has no metrics in Prometheus's text format.
    """
    text = await fetch_text(session, address, headers=headers, timeout_s=timeout_s)
    try:
        return parse_exposition(text)
    except ValueError as error:
        head = " ".join(text[:_SHOWN_CHARS].split())
        raise EngineError(
            f"these are no Prometheus metrics: {head!r} ({error}).",
            place=address,
            fix="name the address with the arm's metrics_urls.",
        ) from error
