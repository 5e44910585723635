"""One greedy request to a running service, sent and read exactly as the measured ones are.

It is an arm's first request after its start, and its answer copies its prompt, so that a drafter which works
at all has something to draft. What it shows is judged elsewhere.
"""

from collections.abc import Awaitable, Callable

import aiohttp
import msgspec

from draftproof.core.clock import Clock, monotonic_ns
from draftproof.core.errors import EngineError
from draftproof.core.manifests import ArmManifest, ColdStart
from draftproof.measure.client.exchange import Exchange, Transport
from draftproof.measure.load.period import Endpoint
from draftproof.plan.environment import mask_struct, mask_values
from draftproof.services.arms.behaviour_asking import Line
from draftproof.services.arms.behaviour_asking import ask as ask_item
from draftproof.services.arms.launch import plan_section
from draftproof.services.arms.manifest import ask_identity
from draftproof.services.arms.service import REFUSED_STATUSES, Service, describe_key_fix, fetch_totals
from draftproof.services.engines.adapter import ProbeObservation
from draftproof.services.engines.proof import Proof, prove_speculation
from draftproof.workload.items import Item, Message

_TEXT = "The red lamp stands on the long table. The blue lamp stands on the long table. "
_PROMPT = f"Copy this text word for word, and then copy it once more.\n\n{_TEXT * 3}"
PROBE_ITEM = Item(id="probe", segments={}, messages=(Message(role="user", content=_PROMPT),), max_tokens=48)
_SHOWN_CHARS = 200
_OK_STATUS, _ERROR_STATUS = 200, 400
# Refusals of the caller, the address or the moment: another request would meet them too.
_NO_MATTER_OF_FIELDS = frozenset({401, 402, 403, 404, 405, 407, 408, 429, 502, 503, 504})


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The arm as it is now, the exchange of the probe, what it proves, and why metrics could not be read.

    The last is None where they could. `accepted` are the adapter's optional fields that the service takes.
    """

    manifest: ArmManifest
    exchange: Exchange
    proof: Proof
    metrics_error: str | None = None
    accepted: tuple[str, ...] = ()

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
    describe: Callable[[], Awaitable[ArmManifest]],
    *,
    session: aiohttp.ClientSession,
    transport: Transport,
    timeout_s: float,
    read_log: Callable[[], str] = lambda: "",
    clock: Clock = monotonic_ns,
) -> ProbeResult:
    """Send the probe between two scrapes, then ask the service what it is.

    It asks for the optional fields of the adapter that the service accepts, see `_find_accepted`. The
    counters are those of the whole service. A service writes the last of its settings into its log when it is
    about to serve, which is why it is described after its first answer. Raises EngineError: the service
    refuses the request, does not answer it, or answers something else.
    """
    before, error = await _scrape(session, service)

    async def ask(fields: tuple[str, ...]) -> Exchange:
        asked = msgspec.structs.replace(endpoint, accepted=fields)
        line = Line(endpoint=asked, transport=transport, timeout_s=timeout_s, clock=clock)
        return mask_struct((await ask_item(line, PROBE_ITEM)).exchange, service.secrets)

    accepted, exchange = await _find_accepted(_list_optional(endpoint), ask)
    _check_answered(service, endpoint, exchange)
    after, error_after = await _scrape(session, service)
    manifest = await describe()
    evidence = ProbeObservation(
        settings=manifest.settings,
        answer=exchange.answer,
        before=before,
        after=after,
        metrics_urls=service.metrics_urls,
        bodies=(await ask_identity(session, service)).bodies,
        log=read_log(),
    )
    proof = prove_speculation(service.adapter, evidence)
    return ProbeResult(
        manifest=manifest,
        exchange=exchange,
        proof=proof,
        metrics_error=error or error_after,
        accepted=accepted,
    )


def _list_optional(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the optional fields to try; what the plan states itself is left out."""
    optional = endpoint.adapter.optional
    return tuple(name for name in optional if not endpoint.request.keys() & optional[name].keys())


async def _find_accepted(
    names: tuple[str, ...], ask: Callable[[tuple[str, ...]], Awaitable[Exchange]]
) -> tuple[tuple[str, ...], Exchange]:
    """Return the optional fields that a service accepts, and its answer: all, else one that it takes alone.

    Between the two it is asked for none, so that one that refuses every request is not asked over and over.
    """
    exchange = await ask(names)
    if not names or not _may_refuse_fields(exchange):
        return names, exchange
    plain = await ask(())
    for name in names if plain.outcome == "ok" and len(names) > 1 else ():
        exchange = await ask((name,))
        if exchange.outcome == "ok":
            return (name,), exchange
    return (), plain


def _may_refuse_fields(exchange: Exchange) -> bool:
    """Tell whether an answer may be the refusal of a field, as a status or in a stream that began well."""
    status = exchange.http_status or 0
    is_error = status == _OK_STATUS or status >= _ERROR_STATUS
    return exchange.outcome == "http_error" and is_error and status not in _NO_MATTER_OF_FIELDS


def _check_answered(service: Service, endpoint: Endpoint, exchange: Exchange) -> None:
    if exchange.outcome == "ok":
        return
    beside = exchange.malformed_raw or "; ".join(exchange.warnings)
    said = (exchange.error or "") + (f": {beside}" if beside else "")
    # A service may answer with lines, and with signs that a terminal obeys.
    said = " ".join("".join(sign if sign.isprintable() else " " for sign in said).split())[:_SHOWN_CHARS]
    raise EngineError(
        f"arm {service.arm} does not answer a test request ({exchange.outcome}: {said})",
        place=endpoint.chat_url,
        fix=_find_fix(exchange, service.arm),
    )


def _find_fix(exchange: Exchange, arm: str) -> str | None:
    """Return which key of the plan most likely mends a test request that failed this way."""
    status, section, said = exchange.http_status or 0, f"arms.{plan_section(arm)}", exchange.error or ""
    is_stream_at_fault = exchange.outcome == "malformed"
    fixes = (
        (exchange.outcome == "timeout", "raise limits.request_s, or see what keeps the service."),
        (exchange.outcome == "rejected", "wait until the service takes requests, then start again."),
        (status in REFUSED_STATUSES, describe_key_fix(arm)),
        (
            status in {400, 422},
            (
                f"if it refuses a field, set {section}.engine to what runs there (generic asks for nothing "
                f"beyond the protocol), or correct {section}.request."
            ),
        ),
        (300 <= status < 400, f"write the address that answers itself as {section}.url."),
        (
            status in {404, 405},
            f"correct {section}.url, below which /v1/chat/completions must lie, or {section}.served_model.",
        ),
        (
            is_stream_at_fault and "compressed" in said,
            f"write the address behind the proxy as {section}.url, or switch its compression off.",
        ),
        (
            is_stream_at_fault and "not an event stream" in said,
            f"correct {section}.url: what answers there does not stream chat completions.",
        ),
    )
    return next((fix for applies, fix in fixes if applies), None)


async def _scrape(
    session: aiohttp.ClientSession, service: Service
) -> tuple[dict[str, float] | None, str | None]:
    """Return the service's metrics, or None and why they cannot be read; neither where none are known."""
    try:
        return await fetch_totals(session, service), None
    except EngineError as error:
        return None, mask_values(str(error), service.secrets)
