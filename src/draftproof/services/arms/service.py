"""A service as it is spoken to: address, headers, adapter, metrics; is it ready, and if not, why not.

What waiting cannot mend ends the wait at once: a refused key, a redirect, a certificate that is not trusted.
"""

import socket
import ssl
from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec

from draftproof.core.errors import EngineError, PlanError
from draftproof.core.secrets import is_secret_name
from draftproof.plan.schema import Arm
from draftproof.services.arms.launch import LOOPBACK, plan_section
from draftproof.services.engines.adapter import EngineAdapter
from draftproof.services.telemetry.scrape import describe_failure, fetch_exposition

_PROBE_TIMEOUT_S = 2.0
_ABSENT_STATUSES = (404, 405)
REFUSED_STATUSES = (401, 403)
# A service that sends without end must not fill the memory.
LARGEST_REPLY_BYTES = 1 << 20
# A key in an address would be stored with the run; a query or a fragment would stand before the path.
_KEY_PARTS, _TAIL_PARTS = ("username", "password"), ("query", "fragment")


class ReadyProbe(msgspec.Struct, frozen=True, kw_only=True):
    """How a service is asked whether it is ready: paths in order until one exists, and request headers."""

    paths: tuple[str, ...] = ("/health", "/v1/models")
    headers: tuple[tuple[str, str], ...] = ()


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe's addresses said: `why` says what is missing, "" when ready.

    `absent` is a service that answers and has none of these addresses; `silent` is nobody who speaks HTTP.
    """

    state: Literal["ready", "not_yet", "absent", "silent"]
    why: str = ""


def find_free_port() -> int:
    """Return a port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def check_address(url: str, name: str, *, is_base: bool = True) -> None:
    """Do nothing if `url` can be the base address of arm `name`, or else one of its metrics addresses.

    Raises PlanError: it is no http address, or it has parts that would be stored with the run or lost.
    """
    place = f"arms.{plan_section(name)}.{'url' if is_base else 'metrics_urls'}"
    forbidden = _KEY_PARTS + (_TAIL_PARTS if is_base else ())
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        fits = fits and "${" not in url  # only commands, their environment and headers take such names
        unfit = [part for part in forbidden if getattr(parts, part)]
        unfit += [f"{key} in its query" for key, _ in parse_qsl(parts.query) if is_secret_name(key)]
    except ValueError:
        fits, unfit = False, []
    if unfit:
        raise PlanError(
            f"an address may hold no {unfit[0]}, because it is stored with the run.",
            place=place,
            fix="end it before that part, and give a key with the arm's headers.",
        )
    if not fits:
        raise PlanError(f"{url!r} is no address.", place=place, fix="write it as http://127.0.0.1:8000.")


async def answers(session: aiohttp.ClientSession, url: str, probe: ReadyProbe, name: str) -> Heard:
    """Ask the probe's addresses in order; the first that the service has says whether it is ready.

    An address that refuses or redirects may be one that the service lacks: the next one is asked, and only if
    none says more is the arm given up. Raises EngineError: waiting cannot help; says what to change for arm
    `name`.
    """
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
    base, hopeless, absent = url.removesuffix("/v1"), None, []
    for path in probe.paths:
        try:
            async with session.get(
                base + path, timeout=timeout, headers=dict(probe.headers), allow_redirects=False
            ) as response:
                status, location = response.status, response.headers.get("Location")
        except aiohttp.ClientSSLError as error:
            raise explain_tls(error, base, name) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Heard(state="silent", why=describe_failure(error, _PROBE_TIMEOUT_S))
        said = f"{path} has status {status}"
        refusal = explain_status(status, location, base + path, name, has_headers=bool(probe.headers))
        if refusal is None and status not in _ABSENT_STATUSES:
            return Heard(state="ready") if status == 200 else Heard(state="not_yet", why=said)
        hopeless = hopeless or refusal
        absent.append(said)
    if hopeless is not None:
        raise hopeless
    return Heard(state="absent", why=", ".join(absent))


def explain_status(
    status: int, location: str | None, address: str, name: str, *, has_headers: bool
) -> EngineError | None:
    """Return what a status says that no waiting mends: a refused key or a redirect. None for any other."""
    if status in REFUSED_STATUSES:
        return EngineError(
            f"arm {name} refuses the key (status {status})."
            if has_headers
            else f"arm {name} asks for a key (status {status}).",
            place=address,
            fix=describe_key_fix(name),
        )
    if 300 <= status < 400:
        return EngineError(
            f"arm {name} redirects (status {status}) to {location or 'an address it does not name'}, which "
            "is not followed.",
            place=address,
            fix=f"write the address that answers itself as arms.{plan_section(name)}.url.",
        )
    return None


def describe_key_fix(name: str) -> str:
    """Return how to give an arm's service its key."""
    return f'give its key: [arms.{plan_section(name)}.headers] Authorization = "Bearer ${{NAME}}".'


def explain_tls(error: BaseException, address: str, name: str) -> EngineError:
    """Return why no secure connection could be made, with what mends it."""
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    section = plan_section(name)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return EngineError(
            f"the certificate of arm {name} is not trusted ({cause.verify_message}).",
            place=address,
            fix="export SSL_CERT_FILE=... with the certificate of who signed it.",
        )
    reason = str(getattr(cause, "reason", "") or cause).replace("_", " ").lower()
    return EngineError(
        f"arm {name} does not speak TLS as it must ({reason}).",
        place=address,
        fix=f"if it is a plain service, write arms.{section}.url with http://.",
    )


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

    Raises PlanError: an address of metrics cannot be used.
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

    Raises EngineError: the service does not answer.
    """
    response, body = await _fetch(session, url, headers, timeout_s)
    return response.status, body


async def explain_no_model(
    session: aiohttp.ClientSession, service: Service, path: str, timeout_s: float
) -> EngineError:
    """Return why the list of models at `path` names none, asked once more for the reason.

    Raises EngineError: the service does not answer.
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

    Raises EngineError: one replica cannot be read; the others alone would be too few.
    """
    if not service.metrics_urls:
        return None
    totals: dict[str, float] = {}
    for url in service.metrics_urls:
        found = await fetch_exposition(session, url, headers=service.headers)
        for series, value in found.items():
            totals[series] = totals.get(series, 0.0) + value
    return totals


class _Part(msgspec.Struct, frozen=True):
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | tuple[_Part, ...] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Completion(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()


async def fetch_completion(
    session: aiohttp.ClientSession,
    url: str,
    payload: Mapping[str, object],
    headers: tuple[tuple[str, str], ...] = (),
) -> str | None:
    """Return the text of a chat completion that is not streamed; parts that are no text say nothing.

    Raises EngineError: the service does not answer, or not with a chat completion.
    """
    body = bytearray()
    try:
        async with session.post(
            url,
            data=msgspec.json.encode(payload),
            headers={"Content-Type": "application/json", **dict(headers)},
            allow_redirects=False,
        ) as response:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > LARGEST_REPLY_BYTES:
                    raise EngineError(f"its reply is larger than {LARGEST_REPLY_BYTES:,} bytes")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise EngineError(f"{type(error).__name__}: {error}") from error
    if response.status != 200:
        raise EngineError(f"HTTP {response.status}")
    try:
        content = msgspec.json.decode(bytes(body), type=_Completion).choices[0].message.content
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
        raise EngineError("its reply is not that of a chat completion") from error
    return "".join(part.text or "" for part in content) if isinstance(content, tuple) else content
