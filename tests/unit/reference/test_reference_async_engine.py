"""The engine behind an event loop: streams end, slots come back, failures are told, stop joins."""

import asyncio
import threading

import pytest
from tiny_engine import FakeFailure, make_engine, make_request, run_all, tiny_target, token_ids_of

from draftproof.core.errors import EngineError, UsageError
from draftproof.reference.async_engine import AsyncEngine
from draftproof.reference.scheduler import QueueFullError

PROMPT = [65, 66, 67, 65, 66]


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture
def backend(target):
    """Return a started engine for two sequences and one in the queue."""
    running = AsyncEngine(make_engine(target, max_num_seqs=2, max_queue=1))
    running.start()
    yield running
    running.stop()


async def collect(backend, request):
    return [output async for output in backend.generate(request)]


async def until_idle(backend):
    while backend.stats().running or backend.stats().waiting:  # noqa: ASYNC110 - a snapshot has no event
        await asyncio.sleep(0.001)


def test_streams_deliver_what_the_engine_does(target, backend) -> None:
    """Concurrent streams carry the tokens of synchronous runs, each to its own reader."""
    expected = {
        drafts: token_ids_of(run_all(make_engine(target), [make_request("x", PROMPT, drafts=drafts)])["x"])
        for drafts in (0, 3)
    }

    async def both():
        return await asyncio.gather(
            collect(backend, make_request("a", PROMPT)), collect(backend, make_request("b", PROMPT, drafts=3))
        )

    plain, drafted = asyncio.run(both())
    assert token_ids_of(plain) == expected[0]
    assert token_ids_of(drafted) == expected[3]
    assert plain[-1].finish_reason == drafted[-1].finish_reason is not None
    assert all(output.queue_ns >= 0 and output.prefill_ns > 0 for output in plain)


def test_closing_a_stream_frees_its_slot(backend) -> None:
    """A reader that leaves gives slot and cache back before its request would have ended."""

    async def leave():
        stream = backend.generate(make_request("a", PROMPT, max_tokens=500))
        await anext(stream)
        await stream.aclose()
        await stream.aclose()
        await until_idle(backend)
        return [output async for output in stream]

    assert asyncio.run(leave()) == []
    assert backend.stats().kv_bytes == 0
    assert backend.stats().finished == {"cancelled": 1}


def test_cancelling_the_reading_task_frees_the_slot(backend) -> None:
    """A cancelled task takes its request with it; reused at once, the id gets none of the old outputs."""

    async def cancel():
        has_begun = asyncio.Event()

        async def read():
            async for _ in backend.generate(make_request("a", PROMPT, max_tokens=1500)):
                has_begun.set()

        task = asyncio.create_task(read())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return await collect(backend, make_request("a", PROMPT, max_tokens=3))

    assert len(token_ids_of(asyncio.run(cancel()))) == 3


def test_a_full_queue_refuses_at_once_and_recovers(backend) -> None:
    """The fourth request is refused while two run and one waits; when all have left there is room."""

    async def overfill():
        streams = [backend.generate(make_request(f"r{i}", PROMPT, max_tokens=400)) for i in range(3)]
        with pytest.raises(QueueFullError):
            backend.generate(make_request("r3", PROMPT))
        for stream in streams:
            await stream.aclose()
        return await collect(backend, make_request("r3", PROMPT, max_tokens=2))

    assert len(token_ids_of(asyncio.run(overfill()))) == 2


def test_bad_requests_are_refused_at_once(backend) -> None:
    """A request that cannot run and an id in use never reach the thread."""

    async def ask():
        with pytest.raises(UsageError):
            backend.generate(make_request("bad", []))
        stream = backend.generate(make_request("a", PROMPT, max_tokens=400))
        with pytest.raises(UsageError, match="in use"):
            backend.generate(make_request("a", PROMPT))
        await stream.aclose()

    asyncio.run(ask())


def test_a_step_that_raises_ends_its_requests_and_serving_goes_on(backend, monkeypatch) -> None:
    """Readers get finish_reason error with the cause; the next request is served."""
    forward = backend.engine.target.forward

    def fail_once(*_arguments):
        monkeypatch.setattr(backend.engine.target, "forward", forward)
        raise FakeFailure("device lost")

    async def crash():
        monkeypatch.setattr(backend.engine.target, "forward", fail_once)
        ended = await collect(backend, make_request("a", PROMPT))
        return ended, await collect(backend, make_request("b", PROMPT, max_tokens=3))

    ended, served = asyncio.run(crash())
    assert [output.finish_reason for output in ended] == ["error"]
    assert ended[0].error == "FakeFailure: device lost"
    assert token_ids_of(served) == token_ids_of(served)[:3]
    assert served[-1].finish_reason == "length"
    assert backend.stats().finished == {"error": 1, "length": 1}


def test_a_prompt_in_the_step_that_runs_has_a_slot_and_waits_no_more(backend, monkeypatch) -> None:
    """In the middle of its first step a request counts as running: nothing is queued on an idle engine."""
    forward, seen = backend.engine.target.forward, []

    def look(*arguments):
        seen.append((backend.stats().running, backend.stats().waiting))
        return forward(*arguments)

    monkeypatch.setattr(backend.engine.target, "forward", look)
    asyncio.run(collect(backend, make_request("a", PROMPT, max_tokens=2)))
    assert seen == [(1, 0), (1, 0)]


def test_a_step_that_fails_before_it_begins_ends_the_waiting(backend, monkeypatch) -> None:
    """A fault while nothing runs yet does not leave requests waiting for ever."""

    def fail(*_arguments):
        raise FakeFailure("no plan")

    monkeypatch.setattr(backend.engine, "_plan", fail)
    ended = asyncio.run(collect(backend, make_request("a", PROMPT)))
    assert [output.finish_reason for output in ended] == ["error"]


def test_stop_ends_streams_and_joins(target) -> None:
    """Stopping tells every reader, refuses newcomers, and leaves no thread."""
    backend = AsyncEngine(make_engine(target))
    backend.start()

    async def stop_midway():
        stream = backend.generate(make_request("a", PROMPT, max_tokens=500))
        await anext(stream)
        await asyncio.to_thread(backend.stop)
        with pytest.raises(EngineError, match="stopping"):
            backend.generate(make_request("b", PROMPT))
        return [output async for output in stream]

    assert asyncio.run(stop_midway())[-1].finish_reason == "cancelled"
    assert not any(thread.name == "draftproof-engine" for thread in threading.enumerate())
    assert backend.stats().running == 0
