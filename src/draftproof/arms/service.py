"""A service as it is spoken to: address, headers, adapter, and where its metrics lie."""

import aiohttp
import msgspec

from draftproof.arms.launch import plan_section
from draftproof.arms.readiness import check_address, explain_status
from draftproof.engines.adapter import EngineAdapter
from draftproof.errors import EngineError
from draftproof.plan.schema import Arm
from draftproof.telemetry.scrape import describe_failure, fetch_exposition


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One running service of an arm. `url` is its base address without /v1; headers are resolved.

    `secrets` are values that must not be seen in what is kept or shown of its answers.
    """

    arm: str
    url: str
    adapter: EngineAdapter
    headers: tuple[tuple[str, str], ...] = ()
    metrics_urls: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def path(self, path: str) -> str:
        """Return the address of a path below the base."""
        return self.url + path


def locate_service(
    name: str,
    arm: Arm,
    url: str,
    adapter: EngineAdapter,
    headers: tuple[tuple[str, str], ...] = (),
    *,
    secrets: tuple[str, ...] = (),
) -> Service:
    """Return an arm's service; its metrics lie where the plan says, else at the engine's usual path.

    Raises:
        PlanError: an address of metrics cannot be used.
    """
    for address in arm.metrics_urls:
        check_address(address, name, is_base=False)
    base, usual = url.rstrip("/").removesuffix("/v1"), adapter.facts.metrics_path
    return Service(
        arm=name,
        url=base,
        adapter=adapter,
        headers=headers,
        metrics_urls=arm.metrics_urls or ((base + usual,) if usual else ()),
        secrets=secrets,
    )


async def fetch_answer(
    session: aiohttp.ClientSession, url: str, headers: tuple[tuple[str, str], ...], timeout_s: float
) -> tuple[int, bytes]:
    """Return status and body of an address. Follows no redirect.

    Raises:
        EngineError: the service does not answer.
    """
    response, body = await _fetch(session, url, headers, timeout_s)
    return response.status, body


async def explain_no_model(
    session: aiohttp.ClientSession, service: Service, path: str, timeout_s: float
) -> EngineError:
    """Return why the list of models at `path` names none, asked once more for the reason.

    Raises:
        EngineError: the service does not answer.
    """
    address = service.path(path)
    response, body = await _fetch(session, address, service.headers, timeout_s)
    refusal = explain_status(
        response.status,
        response.headers.get("Location"),
        address,
        service.arm,
        has_headers=bool(service.headers),
    )
    if refusal is not None:
        return refusal
    why, url = f"status {response.status}", f"arms.{plan_section(service.arm)}.url"
    if response.status == 200:
        why = f"no list of models but {response.content_type}" if body else "an empty answer"
        if response.content_type.endswith("json"):
            why = "its list is empty"
    return EngineError(
        f"arm {service.arm} lists no model ({why}).",
        place=address,
        fix=f"correct {url}, or name the model with arms.{plan_section(service.arm)}.served_model.",
    )


async def _fetch(
    session: aiohttp.ClientSession, url: str, headers: tuple[tuple[str, str], ...], timeout_s: float
) -> tuple[aiohttp.ClientResponse, bytes]:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session.get(
            url, timeout=timeout, headers=dict(headers), allow_redirects=False
        ) as response:
            return response, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = describe_failure(error, timeout_s)
        raise EngineError(f"the service does not answer ({why}).", place=url) from error


async def fetch_totals(session: aiohttp.ClientSession, service: Service) -> dict[str, float] | None:
    """Return the service's metrics, summed by series over its replicas; None where no address is known.

    Raises:
        EngineError: one replica cannot be read; the others alone would be too few.
    """
    if not service.metrics_urls:
        return None
    totals: dict[str, float] = {}
    for url in service.metrics_urls:
        exposition = await fetch_exposition(session, url, headers=service.headers)
        for series, value in exposition.values.items():
            totals[series] = totals.get(series, 0.0) + value
    return totals
