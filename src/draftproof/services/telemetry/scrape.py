"""A service's metrics: fetched over HTTP, parsed from Prometheus text, and what of them is kept.

A scrape of a busy engine has thousands of lines, most of them buckets of histograms. Parsing them all takes
tens of milliseconds of the very process that times the answers, so lines are chosen before they are parsed.
"""

import math
import os
import ssl
from collections.abc import Collection, Mapping

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from draftproof.core.errors import EngineError
from draftproof.judge.metrics.host_use import DCGM_PREFIX, DCGM_SERIES
from draftproof.judge.metrics.telemetry import START_TIME, list_counters
from draftproof.services.engines.facts import Series
from draftproof.services.engines.values import parse_series


def parse_exposition(text: str) -> dict[str, float]:
    """Return series -> value of a Prometheus text; timestamps and exemplars are dropped.

    A series is the sample's name with its labels in order, e.g. `requests_total{model="m",status="ok"}`.
    Raises ValueError: the text is not in the exposition format.
    """
    return {
        name_series(sample.name, sample.labels): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def name_series(name: str, labels: Mapping[str, str]) -> str:
    """Return the sample's name with its labels in alphabetical order."""
    if not labels:
        return name
    inner = ",".join(f"{key}={msgspec.json.encode(value).decode()}" for key, value in sorted(labels.items()))
    return f"{name}{{{inner}}}"


_SHOWN_CHARS = 80
_MOST_BYTES = 16 * 2**20
_NAME_FIX = "name the address with the arm's metrics_urls."
_FIXES = dict.fromkeys((401, 403), "the arm's headers are sent here as well: give the key there.")


async def fetch_text(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 5.0,
) -> str:
    """Return what an address answers, unpacked where it is compressed.

    No redirect is followed: the headers hold a key, which is for this address alone. Raises EngineError:
    nobody answers there in time, with status 200 and less than 16 MiB.
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
        said = f"status {response.status}"
        if "Location" in response.headers:
            said += f", a redirect to {response.headers['Location']}, which is not followed"
        fix = _FIXES.get(response.status, _NAME_FIX)
        raise EngineError(f"no metrics could be read ({said}).", place=address, fix=fix)
    return body.decode("utf-8", "replace")


async def fetch_exposition(
    session: aiohttp.ClientSession,
    address: str,
    *,
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 5.0,
) -> dict[str, float]:
    """Return one scrape of an address, see `parse_exposition`; a compressed answer is unpacked.

    Raises EngineError: nobody answers there, or what answers has no metrics in Prometheus's text format.
    """
    text = await fetch_text(session, address, headers=headers, timeout_s=timeout_s)
    try:
        return parse_exposition(text)
    except ValueError as error:
        head, why = (" ".join(said.split())[:_SHOWN_CHARS] for said in (text, str(error)))
        raise EngineError(
            f"these are no Prometheus metrics: {head!r} ({why}).", place=address, fix=_NAME_FIX
        ) from error


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


_GAUGES = ("running", "waiting", "cache_usage")
_SKIPPED_PREFIXES = ("python_", "process_", "http_", "go_", "promhttp_")
# Of an engine whose series nobody knows, as many as a person would look through.
MOST_UNKNOWN = 200


class Selection(msgspec.Struct, frozen=True):
    """What is kept of one scrape: the engine's own series, and those of its machine."""

    engine: dict[str, float]
    host: dict[str, float]


def name_series_of(series: Series) -> frozenset[str]:
    """Return the sample names that an engine's facts name, empty for one without known series."""
    gauges = {parse_series(name)[0] for field in _GAUGES for name in getattr(series, field)}
    counters = list_counters(series)
    # Without its TYPE line a counter keeps the name under which the service writes it.
    return frozenset(counters | {name.removesuffix("_total") for name in counters} | gauges)


def select_values(text: str, names: Collection[str]) -> Selection:
    """Return the finite values of the chosen series of an exposition.

    `names`: sample names to keep; empty: all but buckets and the runtime's own, at most `MOST_UNKNOWN`.
    Raises ValueError: nothing in the text is a sample, or a chosen line is not in the exposition format.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if not any(_is_sample(line) for line in lines):
        raise ValueError("no line of it is a sample")
    host = [line for line in lines if _name(line) in DCGM_SERIES]
    engine = [line for line in lines if _is_kept(_name(line), names)]
    return Selection(
        engine=_parse(engine if names else engine[:MOST_UNKNOWN]),
        host=_parse(host),
    )


def _parse(lines: Collection[str]) -> dict[str, float]:
    """Return the values that are numbers: an undefined ratio is not known, and JSON has no word for it."""
    found = parse_exposition("\n".join(lines) + "\n")
    return {series: value for series, value in found.items() if math.isfinite(value)}


def _is_kept(name: str, names: Collection[str]) -> bool:
    if names or name == START_TIME:
        return name in names or name == START_TIME
    return not (name.startswith((*_SKIPPED_PREFIXES, DCGM_PREFIX)) or name.endswith(("_bucket", "_created")))


def _name(line: str) -> str:
    """Return the sample name a line begins with."""
    return line.split("{", 1)[0].split(" ", 1)[0]


def _is_sample(line: str) -> bool:
    """Tell whether a line ends in a number after a name; a page of HTML has no such line."""
    name, _, rest = line.rpartition("}") if "}" in line else line.partition(" ")
    try:
        float(rest.split()[0])
    except (ValueError, IndexError):
        return False
    return bool(name) and not line.lstrip().startswith("<")
