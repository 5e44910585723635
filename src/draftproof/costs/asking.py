"""Sends a wave: so many requests at once, each answered to its end."""

import asyncio

import msgspec

from draftproof.client.exchange import Exchange, ExchangeFold
from draftproof.client.wire import Ending, WireRequest
from draftproof.clock import monotonic_ns
from draftproof.costs.prompts import build_items
from draftproof.costs.schedule import Start
from draftproof.costs.station import ARM, Station
from draftproof.costs.waves import Wave
from draftproof.load.turn import Job, Turn, make_record
from draftproof.plan.environment import mask_struct
from draftproof.records import Phase, RequestRecord


async def send_wave(
    station: Station,
    start: Start,
    number: int,
    batch: int,
    *,
    answer_tokens: int,
    synthetic: bool,
    timeout_s: float,
    phase: Phase = "measure",
) -> Wave:
    """Send `batch` requests at once and return what was heard, with the counters before and after."""
    items = build_items(batch, answer_tokens)
    turn = Turn(
        block=start.index,
        load=f"{start.draft_length}-{start.drafting}",
        concurrency=batch,
        repeat=number,
        arm=ARM,
        order=number,
        item_ids=tuple(item.id for item in items),
    )
    jobs = [
        Job(request_id=f"{turn.key}/{item.id}", item=item, phase=phase, order_in_block=slot, seed=slot + 1)
        for slot, item in enumerate(items)
    ]
    before = await station.scrape()
    records = await asyncio.gather(*(_ask(station, turn, job, timeout_s) for job in jobs))
    return Wave(
        start=start.index,
        draft_length=start.draft_length,
        batch=batch,
        synthetic=synthetic,
        records=tuple(records),
        before=before,
        after=await station.scrape(),
    )


async def _ask(station: Station, turn: Turn, job: Job, timeout_s: float) -> RequestRecord:
    scheduled_ns = monotonic_ns()
    record = make_record(turn, job, scheduled_ns, await _exchange(station, job, timeout_s))
    return mask_struct(record, station.secrets) if station.secrets else record


async def _exchange(station: Station, job: Job, timeout_s: float) -> Exchange:
    endpoint = station.endpoint
    request = WireRequest(
        url=endpoint.chat_url,
        body=msgspec.json.encode(endpoint.build_payload(job.item, seed=job.seed)),
        headers=endpoint.headers,
    )
    fold = ExchangeFold(endpoint.adapter.start_fold())
    try:
        async with asyncio.timeout(timeout_s):
            return fold.close(await station.transport.send(request, fold))
    except TimeoutError:
        return fold.close(
            Ending(kind="timeout", at_ns=monotonic_ns(), detail=f"no end within {timeout_s:g} s")
        )
