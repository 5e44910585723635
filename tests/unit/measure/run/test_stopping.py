"""Work that a stop request ends, and work that it comes too late for."""

import asyncio
import os
import signal
import threading

import pytest

from draftproof.core.errors import EngineError
from draftproof.measure.run.progress import Interrupted, stop_on_signal, unless_stopped


async def _return(value):
    return value


async def _fail():
    raise EngineError("it broke")


def test_work_that_is_not_stopped_gives_its_value_or_its_error():
    """Without a stop request the work's own outcome is passed on."""

    async def scenario():
        stop = asyncio.Event()
        assert await unless_stopped(_return(7), stop) == 7
        with pytest.raises(EngineError, match="it broke"):
            await unless_stopped(_fail(), stop)

    asyncio.run(scenario())


def test_work_is_cancelled_when_the_user_wants_to_leave():
    """A stop request cancels the work, lets it clean up, and is told apart from its end."""
    seen = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    async def scenario():
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, stop.set)
        with pytest.raises(Interrupted):
            await unless_stopped(work(), stop)

    asyncio.run(scenario())
    assert seen == ["cleaned up"]


def test_cancelling_from_outside_cancels_the_work_too():
    """Whoever cancels the caller leaves no work behind."""
    ended = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def scenario():
        task = asyncio.create_task(unless_stopped(work(), asyncio.Event()))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert ended == [True]


def test_the_first_signal_is_a_request_and_the_second_has_its_usual_effect():
    """SIGINT once sets the event; SIGINT twice is a KeyboardInterrupt."""
    seen = []

    async def scenario():
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.wait_for(stop.wait(), 5)
            seen.append("asked")
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(5)
            seen.append("never")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(scenario())
    assert seen == ["asked"]


def test_a_closed_terminal_asks_once_however_often_it_says_so():
    """A shell sends SIGHUP beside the kernel's own: two of them are one request for an end in order."""

    async def scenario():
        with stop_on_signal() as stop:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.wait_for(stop.wait(), 5)
                await asyncio.sleep(0.01)
        return "in order"

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as it is where nohup does not run the tests
    try:
        assert asyncio.run(scenario()) == "in order"
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_ignores_the_end_of_the_terminal_goes_on():
    """Under nohup SIGHUP is ignored, and stays so."""

    async def scenario():
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.05)
            return stop.is_set()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert not asyncio.run(scenario())
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_job_in_another_thread_runs_without_signals():
    """The library can be used outside the main thread, where no signal handler can be set."""
    seen = []

    async def scenario():
        with stop_on_signal() as stop:
            seen.append(stop.is_set())

    thread = threading.Thread(target=lambda: asyncio.run(scenario()))
    thread.start()
    thread.join()
    assert seen == [False]
