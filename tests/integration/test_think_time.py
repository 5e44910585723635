"""Time of thought: drawn once for a request, the same in every arm, and no part of any latency."""

import asyncio

import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load import request_runner as performing
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink
from draftproof.workload.arrivals import think_time_ns
from draftproof.workload.items import FollowUp

QUICK = LoadSettings(stagger_s=0.0, failure_pause_s=0.0)
MORE = (FollowUp(content="and then?"), FollowUp(content="and last?"))
ITEMS = {name: build_item(name, follow_ups=MORE) for name in ("a", "b", "c")}
THINK_S = 0.05


def run(url, arm, *, concurrency=None, due_ns=()):
    period = Period(
        block=3, load="readers", concurrency=concurrency, repeat=1, arm=arm, order=0,
        item_ids=tuple(ITEMS), due_ns=due_ns, think_s=THINK_S,
    )  # fmt: skip
    sink = MemorySink()

    async def main():
        transport = HttpTransport()
        endpoint = Endpoint(url=url, served_model="scripted", engine="generic")
        try:
            await run_period(period, endpoint, ITEMS, transport=transport, sink=sink, settings=QUICK)
        finally:
            await transport.close()

    asyncio.run(main())
    return {(one.item_id, one.conversation_turn): one for one in sink.records if one.phase == "measure"}


@pytest.fixture
def thoughts(monkeypatch):
    """Every time of thought that was asked for, by what it was asked for."""
    asked: dict[tuple[str | int, ...], list[int]] = {}

    def note(mean_s, *parts):
        drawn = think_time_ns(mean_s, *parts)
        asked.setdefault(parts, []).append(drawn)
        return drawn

    monkeypatch.setattr(performing, "think_time_ns", note)
    return asked


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"due_ns": (0, 100_000_000, 200_000_000)}])
def test_two_arms_think_alike(thoughts, load):
    """Each request of each conversation waits for the same time in both arms, a fast and a slow one."""
    with ScriptedServer(Script()) as fast, ScriptedServer(Script(ttft_s=0.05)) as slow:
        arms = [run(fast.url, "baseline", **load), run(slow.url, "candidate", **load)]
    assert [len(arm) for arm in arms] == [9, 9]
    first = 0 if "concurrency" in load else 1
    assert set(thoughts) == {("readers", 1, name, period) for name in ITEMS for period in range(first, 3)}
    # A fill behind the counted requests thinks as long as the one that it repeats.
    assert all(len(times) >= 2 and len(set(times)) == 1 for times in thoughts.values())


def test_a_thought_lies_between_an_answer_and_the_schedule_of_the_next_request():
    """The next period is scheduled a thought after the last answer, so its latency has no thought in it."""
    with ScriptedServer(Script()) as server:
        records = run(server.url, "baseline", due_ns=(0, 100_000_000, 200_000_000))
    for name in ITEMS:
        for period in (1, 2):
            before, now = records[name, period - 1], records[name, period]
            thought_ns = think_time_ns(THINK_S, "readers", 1, name, period)
            assert now.scheduled_ns - before.end_ns >= thought_ns
            assert now.scheduled_ns - before.end_ns - thought_ns < 1_000_000_000
            assert now.sent_ns >= now.scheduled_ns


def test_the_opening_of_a_recorded_conversation_is_due_when_it_came():
    """Only later turns wait for answers: the openings keep the distances of the recording."""
    due_ns = (0, 60_000_000, 200_000_000)
    with ScriptedServer(Script(ttft_s=0.1)) as server:
        records = run(server.url, "baseline", due_ns=due_ns)
    openings = [records[name, 0].scheduled_ns for name in ITEMS]
    assert [one - openings[0] for one in openings] == list(due_ns)
    assert all(records[name, 1].scheduled_ns > records[name, 0].end_ns for name in ITEMS)
