"""A service as it is spoken to: address, headers, adapter, and where its metrics lie."""

import aiohttp
import msgspec

from draftproof.engines.adapter import EngineAdapter
from draftproof.errors import EngineError
from draftproof.plan.schema import Arm


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One running service of an arm. `url` is its base address without /v1; headers are resolved."""

    arm: str
    url: str
    adapter: EngineAdapter
    headers: tuple[tuple[str, str], ...] = ()
    metrics_urls: tuple[str, ...] = ()

    def path(self, path: str) -> str:
        """Return the address of a path below the base."""
        return self.url + path


def locate_service(
    name: str, arm: Arm, url: str, adapter: EngineAdapter, headers: tuple[tuple[str, str], ...] = ()
) -> Service:
    """Return an arm's service; its metrics lie where the plan says, else at the engine's usual path."""
    base, usual = url.rstrip("/").removesuffix("/v1"), adapter.facts.metrics_path
    return Service(
        arm=name,
        url=base,
        adapter=adapter,
        headers=headers,
        metrics_urls=arm.metrics_urls or ((base + usual,) if usual else ()),
    )


async def fetch_body(
    session: aiohttp.ClientSession, url: str, headers: tuple[tuple[str, str], ...], timeout_s: float
) -> bytes | None:
    """Return the body of an address, None where the service answers other than 200.

    Raises:
        EngineError: the service does not answer.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(url, timeout=timeout, headers=dict(headers)) as response:
            body = await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"the service does not answer ({type(error).__name__}).", place=url) from error
    return body if response.status == 200 else None
