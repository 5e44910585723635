"""The memory of a load client does not grow with the requests that it has asked."""

import asyncio
import gc

import psutil
import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item

from draftproof.measure.client.exchange import Ending, Listener, WireRequest
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings
from draftproof.store.journal import Journal
from draftproof.store.lines import LineFile

MIB = 1 << 20
TOKENS = b"".join(b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n' for _ in range(8))
ANSWER = TOKENS + b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Prompt:
    """A service that has answered before anybody waits; nothing of a request is kept."""

    async def send(self, request: WireRequest, listener: Listener) -> Ending:
        del request
        await asyncio.sleep(0)
        listener.on_sent(1)
        listener.on_headers(200, "text/event-stream", 2)
        listener.on_body(ANSWER, 3)
        return Ending(kind="complete", at_ns=4)

    async def close(self) -> None:
        """Nothing to let go of."""


def resident_mib() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / MIB


@pytest.mark.slow
def test_memory_is_flat_while_periods_go_on(tmp_path):
    """After a fifth of 60,000 requests through loop, fold and journal, the rest adds next to nothing."""
    items = {f"item-{number}": build_item(f"item-{number}") for number in range(600)}
    endpoint = Endpoint(url="http://127.0.0.1", served_model="m", engine="generic")
    journal = Journal(LineFile(tmp_path / "records.jsonl"))
    seen = []

    async def run():
        for block in range(100):
            period = Period(
                block=block, load="l", concurrency=8, repeat=0, arm="baseline", order=0, item_ids=tuple(items)
            )
            done = await run_period(
                period,
                endpoint,
                items,
                transport=Prompt(),
                sink=journal,
                settings=LoadSettings(stagger_s=0.0),
            )
            assert done.completed
            journal.append(done)
            if block in (19, 99):
                seen.append(resident_mib())

    asyncio.run(run())
    journal.close()
    # 48,000 records would be more than 50 MiB: a client that kept a twentieth of each would be seen.
    assert seen[1] - seen[0] < 8
