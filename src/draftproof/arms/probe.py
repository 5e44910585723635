"""One greedy request to a running service, sent and read exactly as the measured ones are.

It is an arm's first request after its start, and its answer copies its prompt, so that a drafter which works
at all has something to draft. What it shows is judged elsewhere.
"""

import asyncio

import aiohttp
import msgspec

from draftproof.arms.manifest import fetch_bodies
from draftproof.arms.service import Service
from draftproof.client.exchange import Exchange, ExchangeFold
from draftproof.client.wire import Ending, Transport, WireRequest
from draftproof.clock import Clock, monotonic_ns
from draftproof.engines.adapter import Evidence
from draftproof.engines.proof import Proof, prove_speculation
from draftproof.errors import EngineError
from draftproof.load.turn import Endpoint
from draftproof.records import ArmManifest, ColdStart
from draftproof.telemetry.scrape import fetch_exposition
from draftproof.workload.items import Item, Message

_TEXT = "The red lamp stands on the long table. The blue lamp stands on the long table. "
_PROMPT = f"Copy this text word for word, and then copy it once more.\n\n{_TEXT * 3}"
PROBE_ITEM = Item(id="probe", segments={}, messages=(Message(role="user", content=_PROMPT),), max_tokens=48)
_SHOWN_CHARS = 200


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The exchange of the probe, what it proves, and why metrics could not be read, None where they could."""

    exchange: Exchange
    proof: Proof
    metrics_error: str | None = None

    @property
    def cold(self) -> ColdStart:
        """The probe as the first request after a start."""
        sent, chunks = self.exchange.sent_ns, self.exchange.answer.chunks
        return ColdStart(
            outcome=self.exchange.outcome,
            ttft_ns=None if sent is None or not chunks else chunks[0].arrival_ns - sent,
            e2e_ns=None if sent is None else self.exchange.end_ns - sent,
        )


async def probe_service(
    service: Service,
    endpoint: Endpoint,
    manifest: ArmManifest,
    *,
    session: aiohttp.ClientSession,
    transport: Transport,
    timeout_s: float,
    log: str = "",
    clock: Clock = monotonic_ns,
) -> ProbeResult:
    """Send the probe between two scrapes. The counters are those of the whole service.

    Raises:
        EngineError: the service refuses the request, does not answer it, or answers something else.
    """
    before, error = await _scrape(session, service)
    exchange = await _send(endpoint, transport, timeout_s, clock)
    _check_answered(service, endpoint, exchange)
    after, _ = await _scrape(session, service)
    evidence = Evidence(
        settings=manifest.settings,
        answer=exchange.answer,
        before=before,
        after=after,
        bodies=await fetch_bodies(session, service),
        log=log,
    )
    proof = prove_speculation(service.adapter, evidence)
    return ProbeResult(exchange=exchange, proof=proof, metrics_error=error)


async def _send(endpoint: Endpoint, transport: Transport, timeout_s: float, clock: Clock) -> Exchange:
    payload = endpoint.build_payload(PROBE_ITEM, seed=None)
    request = WireRequest(url=endpoint.chat_url, body=msgspec.json.encode(payload), headers=endpoint.headers)
    fold = ExchangeFold(endpoint.adapter.start_fold())
    try:
        async with asyncio.timeout(timeout_s):
            return fold.close(await transport.send(request, fold))
    except TimeoutError:
        return fold.close(Ending(kind="timeout", at_ns=clock(), detail=f"no end within {timeout_s:g} s"))


def _check_answered(service: Service, endpoint: Endpoint, exchange: Exchange) -> None:
    if exchange.outcome == "ok":
        return
    said = (exchange.error or exchange.outcome)[:_SHOWN_CHARS]
    fix = None
    if exchange.http_status in {401, 403}:
        fix = f'give the key: [arms.{service.arm}.headers] Authorization = "Bearer ${{NAME}}".'
    elif exchange.http_status in {400, 422}:
        fix = f"the service refuses a field: see arms.{service.arm}.engine and arms.{service.arm}.request."
    raise EngineError(
        f"arm {service.arm} does not answer a test request ({exchange.outcome}: {said})",
        place=endpoint.chat_url,
        fix=fix,
    )


async def _scrape(
    session: aiohttp.ClientSession, service: Service
) -> tuple[dict[str, float] | None, str | None]:
    """Return the sum over all replicas by series; None where no address is known, or with why one failed."""
    if not service.metrics_urls:
        return None, None
    totals: dict[str, float] = {}
    for url in service.metrics_urls:
        try:
            exposition = await fetch_exposition(session, url, headers=service.headers)
        except EngineError as error:
            return None, str(error)
        for series, value in exposition.values.items():
            totals[series] = totals.get(series, 0.0) + value
    return totals, None
