"""A service's own account of its work, and an answer without a stream, for the probes that need them."""

from typing import Any

import aiohttp
import msgspec

from draftproof.arms.behaviour.asking import Line
from draftproof.arms.behaviour.cancelling import Load
from draftproof.arms.service import Service, fetch_totals
from draftproof.engines.reading.series import first_sum, sum_parts
from draftproof.errors import EngineError
from draftproof.workload.items import Item


async def read_load(session: aiohttp.ClientSession, service: Service) -> Load | None:
    """Return what a service says of its own work, None where its metrics cannot be read."""
    try:
        values = await fetch_totals(session, service)
    except EngineError:
        return None
    if values is None:
        return None
    series = service.adapter.facts.series
    return Load(
        busy=sum_parts(values, (*series.running[:1], *series.waiting[:1])) if series.running else None,
        generated=first_sum(values, series.generation_tokens),
    )


async def fetch_whole(session: aiohttp.ClientSession, line: Line, item: Item) -> str | None:
    """Return the text of an answer asked for without a stream, None where the service gives none."""
    payload = line.endpoint.build_payload(item, seed=None) | {"stream": False}
    payload.pop("stream_options", None)
    try:
        async with session.post(
            line.endpoint.chat_url,
            data=msgspec.json.encode(payload),
            headers={"Content-Type": "application/json", **dict(line.endpoint.headers)},
            timeout=aiohttp.ClientTimeout(total=line.timeout_s),
            allow_redirects=False,
        ) as response:
            return _read_text(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _read_text(body: bytes) -> str | None:
    try:
        return msgspec.json.decode(body, type=_Body).choices[0].message.content
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        return None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Body(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: Any = None
