"""Fetching a service's metrics over HTTP; what comes back is parsed elsewhere."""

import os
import ssl

import aiohttp

from draftproof.errors import EngineError
from draftproof.telemetry.prometheus import Exposition, parse_exposition

_SHOWN_CHARS = 80
_MOST_BYTES = 16 * 2**20
_KEY_STATUSES = (401, 403)
_NAME_FIX = "name the address with the arm's metrics_urls."
_FIXES = dict.fromkeys(_KEY_STATUSES, "the arm's headers are sent here as well: give the key there.")


async def fetch_text(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 5.0,
) -> str:
    """Return what an address answers, unpacked where it is compressed.

    No redirect is followed: the headers hold a key, which is for this address alone.

    Raises:
        EngineError: nobody answers there in time, with status 200 and less than 16 MiB.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(
            address, timeout=timeout, headers=dict(headers), allow_redirects=False
        ) as response:
            body = bytearray()
            async for part in response.content.iter_any():
                body += part
                if len(body) > _MOST_BYTES:
                    raise EngineError("no metrics could be read (the answer does not end).", place=address)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        why = describe_failure(error, timeout_s)
        raise EngineError(f"no metrics could be read ({why}).", place=address) from error
    if response.status != 200:
        raise _explain_status(response, address)
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
        head, why = (" ".join(said.split())[:_SHOWN_CHARS] for said in (text, str(error)))
        raise EngineError(
            f"these are no Prometheus metrics: {head!r} ({why}).", place=address, fix=_NAME_FIX
        ) from error


def _explain_status(response: aiohttp.ClientResponse, address: str) -> EngineError:
    said = f"status {response.status}"
    if "Location" in response.headers:
        said += f", a redirect to {response.headers['Location']}, which is not followed"
    return EngineError(
        f"no metrics could be read ({said}).", place=address, fix=_FIXES.get(response.status, _NAME_FIX)
    )


def describe_failure(error: BaseException, limit_s: float) -> str:
    """Return in words why no answer came within a limit; the client library's own change with its release."""
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:g} s"
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionResetError):
        return "the connection was closed without an answer"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        return f"its certificate is not trusted ({getattr(cause, 'verify_message', cause)})"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, ssl.SSLError):
        code = error.os_error.errno or 0
        return (os.strerror(code) if code > 0 else str(error.os_error.strerror or error.os_error)).lower()
    said = " ".join(str(error).split())
    if "content-encoding" in said.lower():
        return "it is compressed in a way that cannot be unpacked"
    return f"no HTTP answer: {said[:_SHOWN_CHARS]}" if said else type(error).__name__
