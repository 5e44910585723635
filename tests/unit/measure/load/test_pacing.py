"""Loops in a time of their own, which passes only where the client waits or is held up: pacing exactly."""

import asyncio
import itertools
import selectors
from typing import Any

import pytest
from tests.builders.load import run_period
from tests.builders.records import build_item

from draftproof.measure.client.exchange import Ending
from draftproof.measure.load.period import Endpoint, Period
from draftproof.measure.load.request_runner import LoadSettings, MemorySink
from draftproof.measure.load.schedule import Part, Share
from draftproof.measure.load.workers.messages import Done, PeriodOrder, Start
from draftproof.measure.load.workers.process import LoadWorker
from draftproof.workload.arrivals import OpenLoop, Spacing, Steady

MS = 1_000_000
ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class OwnTime(selectors.DefaultSelector):
    """A selector that waits for nothing: the time that a loop would wait has passed at once."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout=None):
        self.now_s += max(timeout or 0.0, 0.0)
        return super().select(0)

    def clock(self):
        return round(self.now_s * 1e9)


class OwnTimeLoop(asyncio.SelectorEventLoop):
    """A loop in its selector's time."""

    def __init__(self):
        self.own = OwnTime()
        super().__init__(self.own)

    def time(self):
        return self.own.now_s


class Service:
    """A transport that connects in `connect_s` and answers `answer_s` later, however late the client sees it.

    Sending the n-th request holds the whole client up for `held_s(n)`, cancelling one for `cancel_s`.
    """

    def __init__(self, own, *, answer_s=0.0, connect_s=0.0, held_s=lambda _: 0.0, cancel_s=0.0, status=200):
        self._own, self._answer_s, self._held_s, self._cancel_s = own, answer_s, held_s, cancel_s
        self._connect_s, self._status = connect_s, status
        self.begun_ns = []

    async def send(self, request, listener):
        del request
        self.begun_ns.append(self._own.clock())
        self._own.now_s += self._held_s(len(self.begun_ns))
        if self._connect_s:
            await asyncio.sleep(self._connect_s)
        sent_ns = self._own.clock()
        listener.on_sent(sent_ns)
        try:
            await asyncio.sleep(self._answer_s)
        except asyncio.CancelledError:
            self._own.now_s += self._cancel_s
            await asyncio.sleep(0.05)
            raise
        answered_ns = sent_ns + round(self._answer_s * 1e9)
        listener.on_headers(self._status, "text/event-stream", answered_ns)
        listener.on_body(ANSWER, answered_ns)
        return Ending(kind="complete", at_ns=answered_ns, connect_ns=round(self._connect_s * 1e9) or None)

    async def close(self):
        """Nothing to let go of."""


def run(period, *, settings=None, share=None, start_ns=None, ends_at_s=None, **service):
    """Return the records, the block record, and when each request was begun.

    A part of a period begins at `start_ns` and is told at `ends_at_s` that all parts are over.
    """
    sink, items = MemorySink(), {name: build_item(name) for name in period.item_ids}
    endpoint = Endpoint(url="http://127.0.0.1", served_model="m", engine="generic")

    async def main():
        loop: Any = asyncio.get_running_loop()
        part = Part(share, start_ns)
        transport = Service(loop.own, **service)
        if ends_at_s is not None:
            loop.call_later(ends_at_s, part.period_over.set)
        block = await run_period(
            period, endpoint, items, transport=transport, sink=sink, settings=settings, clock=loop.own.clock,
            part=part,
        )  # fmt: skip
        return block, transport.begun_ns

    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        block, begun_ns = runner.run(main())
    return sink.records, block, begun_ns


def make_period(count, **fields):
    names = tuple(f"i{number}" for number in range(count))
    return Period(block=0, load="l", repeat=0, arm="baseline", order=0, item_ids=names, **fields)


def test_a_client_that_is_held_up_at_every_request_stays_with_its_schedule():
    """Gaps of 12 ms, of which sending takes 10: the hundredth request leaves when it is due, none drifts."""
    due_ns = tuple(12 * MS * number for number in range(100))
    _, block, begun_ns = run(make_period(100, concurrency=None, due_ns=due_ns), held_s=lambda _: 0.01)
    late_ns = [begun - block.started_ns - due for begun, due in zip(begun_ns, due_ns, strict=True)]
    assert min(late_ns) >= 0
    assert max(late_ns) <= MS


def test_after_a_stall_what_is_overdue_leaves_at_once_and_the_rest_on_time():
    """The client stands still for ten gaps: it is behind for that long, and does not stay behind."""
    due_ns = tuple(10 * MS * number for number in range(50))
    period = make_period(50, concurrency=None, due_ns=due_ns)
    _, block, begun_ns = run(period, held_s=lambda number: 0.1 if number == 11 else 0.0)
    late_ns = [begun - block.started_ns - due for begun, due in zip(begun_ns, due_ns, strict=True)]
    assert max(late_ns[:11]) <= MS
    assert late_ns[11:20] == pytest.approx([90 * MS - 10 * MS * number for number in range(9)], abs=MS)
    assert max(late_ns[21:]) <= MS


def test_what_a_stall_of_the_client_made_late_is_sent_at_once_and_counts_as_late():
    """Sending takes three gaps: requests pile up, each leaves as soon as it can, and the delay is told."""
    due_ns = tuple(10 * MS * number for number in range(20))
    records, block, begun_ns = run(make_period(20, concurrency=None, due_ns=due_ns), held_s=lambda _: 0.03)
    counted = [one for one in records if one.phase == "measure"]
    assert [one.scheduled_ns - block.started_ns for one in counted] == list(due_ns)
    assert begun_ns[19] - block.started_ns == pytest.approx(19 * 30 * MS, abs=MS)
    lag_ns = counted[-1].sent_ns - counted[-1].scheduled_ns
    assert lag_ns == pytest.approx(20 * 30 * MS - 190 * MS, abs=MS)
    assert block.send_lag_max_ns >= lag_ns


def test_what_follows_keeps_the_pace_of_the_last_counted_requests():
    """A burst at four times the pace of its lead is followed at that pace, not at the lead's."""
    ramp_up = OpenLoop(profile=Steady(rps=10.0), spacing=Spacing(kind="even"))
    due_ns = tuple(5 * MS * number for number in range(40))
    records, _, _ = run(make_period(40, concurrency=None, due_ns=due_ns, ramp_up=ramp_up), answer_s=2.0)
    counted = [one.scheduled_ns for one in records if one.phase == "measure"]
    behind = [one for one in records if one.phase == "fill" and one.scheduled_ns > max(counted)]
    assert 300 <= len(behind) <= 500  # 200 a second for the two seconds of the last answer


def test_what_follows_is_dealt_to_the_workers_like_everything_else():
    """Two parts send together what one process sends behind the counted requests, and nothing twice."""
    period = make_period(40, concurrency=None, due_ns=tuple(5 * MS * number for number in range(40)))

    def follow(share):
        records, block, _ = run(period, share=share, ends_at_s=1.0, answer_s=2.0)
        return [one.scheduled_ns - block.started_ns for one in records if one.phase == "fill"]

    alone, first, second = (follow(share) for share in (Share(), Share(0, 2), Share(1, 2)))
    assert len(alone) > 100
    assert sorted(first + second) == sorted(alone)
    assert abs(len(first) - len(second)) <= 1


@pytest.mark.parametrize("load", [{"concurrency": None, "due_ns": (0, MS)}, {"concurrency": 1}])
def test_a_worker_that_is_told_of_its_start_before_it_comes_counts_from_then(load):
    """Told 50 ms ahead, it neither begins nor counts before the time that all workers share."""
    records, block, begun_ns = run(make_period(2, **load), start_ns=50 * MS, answer_s=0.01)
    assert (block.started_ns, block.counted_from_ns) == (50 * MS, 50 * MS)
    assert min(begun_ns) >= 50 * MS
    assert min(one.scheduled_ns for one in records) == 50 * MS


def test_a_worker_tells_what_is_in_flight_and_what_has_ended():
    """Of ten requests 10 ms apart that take 45 ms each: at 62 ms five are open and two have ended."""
    period = make_period(10, concurrency=None, due_ns=tuple(10 * MS * number for number in range(10)))
    order = PeriodOrder(
        period=period, endpoint=Endpoint(engine="generic", url="http://h", served_model="m"),
        settings=LoadSettings(), share=Share(),
    )  # fmt: skip
    items = [build_item(name) for name in period.item_ids]

    async def main():
        loop: Any = asyncio.get_running_loop()
        replies: list[Any] = []
        worker = LoadWorker(
            items, transport=Service(loop.own, answer_s=0.045), sink=MemorySink(), reply=replies.append,
            clock=loop.own.clock,
        )  # fmt: skip
        worker.take(order)
        worker.take(Start(0))
        await asyncio.sleep(0.062)
        standing = worker.standing()
        await asyncio.sleep(0.5)
        assert isinstance(replies[-1], Done)
        return standing, worker.standing()

    with asyncio.Runner(loop_factory=OwnTimeLoop) as runner:
        amid, after = runner.run(main())
    assert (amid.ended, amid.in_flight, amid.is_over) == (2, 5, False)
    assert (after.in_flight, after.is_over) == (0, True)


def test_a_service_that_refuses_at_once_is_not_flooded():
    """After a failure a slot rests, and its next request is due when the rest is over."""
    records, _, _ = run(make_period(5, concurrency=1), status=503, settings=LoadSettings(failure_pause_s=0.1))
    assert {one.outcome for one in records} == {"rejected"}
    due_ns = [one.scheduled_ns for one in records]
    gaps_ns = [after - before for before, after in itertools.pairwise(due_ns)]
    assert gaps_ns == pytest.approx([100 * MS] * 4, abs=MS)


def test_connecting_is_no_lateness_of_the_client():
    """A service that takes 0.2 s to accept makes its requests late, and the client is not told of it."""
    period = make_period(5, concurrency=None, due_ns=tuple(50 * MS * number for number in range(5)))
    records, block, _ = run(period, connect_s=0.2)
    assert min(one.sent_ns - one.scheduled_ns for one in records if one.sent_ns) >= 200 * MS
    assert block.send_lag_max_ns <= MS


def test_nothing_that_counts_was_due_before_counting_began():
    """An answer came at 62 ms, counting began at 60: both are seen at 65, when the next is due."""
    records, block, _ = run(
        make_period(6, concurrency=3),
        answer_s=0.062,
        held_s=lambda number: 0.035 if number == 2 else 0.0,
        settings=LoadSettings(stagger_s=0.03),
    )
    assert block.counted_from_ns == pytest.approx(65 * MS, abs=MS)
    counted_ns = [one.scheduled_ns for one in records if one.phase == "measure"]
    assert min(counted_ns) == block.counted_from_ns


def test_what_ending_a_period_costs_the_client_is_lateness_of_nobody():
    """Cancelling what is still in flight takes a second in which nothing is measured: no lag is told."""
    _, block, _ = run(
        make_period(3, concurrency=2), answer_s=0.1, cancel_s=1.0, settings=LoadSettings(stagger_s=0.03)
    )
    assert block.event_loop_lag_max_ns < 500 * MS


def test_the_longest_hold_up_of_a_client_is_told_though_it_was_in_time_before_and_after():
    """Half a second at the tenth of forty requests: the period's lag is that, less the sampler's wait."""
    due_ns = tuple(20 * MS * number for number in range(40))
    period = make_period(40, concurrency=None, due_ns=due_ns)
    _, block, _ = run(period, answer_s=0.1, held_s=lambda number: 0.5 if number == 10 else 0.0)
    assert 480 * MS <= block.event_loop_lag_max_ns <= 500 * MS
    assert block.lag_p99_ns == block.event_loop_lag_max_ns
