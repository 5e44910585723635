"""Each probe of behaviour, asked of a real socket: a right service passes, one with one fault fails there."""

import asyncio

import aiohttp
import msgspec
import pytest
from tests.builders.behaving import BehavingService, Behaviour
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.judge.decide.behaviour import PROBES
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint
from draftproof.services.arms import behaviour_judging as cancelling
from draftproof.services.arms.behaviour_asking import KeepingFold, Line
from draftproof.services.arms.behaviour_judging import Load, choose_stop, fetch_whole, judge_promptness
from draftproof.services.arms.behaviour_probes import Bench, run_probes
from draftproof.services.engines import GENERIC

CANCELLING = ("cancel_stops_work", "cancel_frees_slots")
SHAPES = tuple(name for name in PROBES if name not in CANCELLING)


async def nothing_told() -> Load | None:
    return None


@pytest.mark.parametrize("odd", [b'"\xff"', b"1e999"])
def test_what_a_measured_answer_may_hold_ends_no_probe(odd):
    """Text that is not UTF-8, or a number without end, in a field that nobody reads: the answer is whole."""
    fold = KeepingFold(GENERIC.start_fold())
    frame = b'{"choices":[{"index":0,"delta":{"content":"a"}}],"note":%s}'
    fold.add(frame % odd, 1)
    fold.add_all([frame % odd, frame % b"0"], [2, 3])
    assert (fold.finish().text, len(fold.frames)) == ("aaa", 1)


def probe(service, *, only=SHAPES, read_load=None, concurrency=2):
    """Ask the named probes of a service and return name -> probe."""
    skip = [name for name in PROBES if name not in only]

    async def run(url):
        transport = HttpTransport()
        line = Line(
            endpoint=Endpoint(url=url, served_model="m", engine="generic"), transport=transport, timeout_s=5.0
        )
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            bench = Bench(
                line=line,
                read_load=read_load(server) if read_load else nothing_told,
                fetch_whole=lambda item: fetch_whole(session, line, item),
                concurrency=concurrency,
            )
            found = [one async for one in run_probes("candidate", bench, skip=skip)]
        await transport.close()
        return {one.probe: one for one in found}

    with ScriptedServer(service) as server:
        return asyncio.run(run(server.url))


def test_a_service_that_behaves_passes_every_probe_of_shape():
    """Streaming, limit, stop string, tool call, schema, seed and characters: all of them pass."""
    found = probe(BehavingService())
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(SHAPES, "passed")
    assert {one.http_status for one in found.values()} == {200}


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ("leaks_stop", "stop_string", "is in the answer"),
        ("ignores_limit", "max_tokens", "asked for 8 tokens at most, got 80"),
        ("calls_wrongly", "tool_call", "not called: get_weather"),
        ("ignores_schema", "json_schema", "not JSON"),
        ("forgets_seed", "seed_repeats", "differ from character"),
        ("tears_characters", "unicode", "torn that are whole without a stream"),
        ("names_no_role", "streaming_shape", "no event names the role"),
        ("speaks_after_end", "streaming_shape", "content follows the finish reason"),
    ],
)
def test_a_service_with_one_fault_fails_the_probe_of_it(fault, name, said):
    """One broken rule is found by its own probe, twice asked, and said in words."""
    found = probe(BehavingService(msgspec.structs.replace(Behaviour(), **{fault: True})), only=(name,))[name]
    assert (found.status, said in found.detail) == ("failed", True), found


def test_a_request_that_is_refused_is_unsupported_and_not_failed():
    """A service that takes no tools and no schema says so by its status, which is kept."""
    service = BehavingService(Behaviour(refuses=("tools", "response_format")))
    found = probe(service, only=("tool_call", "json_schema", "max_tokens"))
    assert {name: (one.status, one.http_status) for name, one in found.items()} == {
        "max_tokens": ("passed", 200),
        "tool_call": ("unsupported", 400),
        "json_schema": ("unsupported", 400),
    }


def test_an_answer_that_is_broken_off_is_a_failure_and_a_busy_service_is_not():
    """A stream cut inside a tool call fails the probe; 503 says nothing about tools."""
    cut = probe(Script(cut_before=1), only=("tool_call",))["tool_call"]
    busy = probe(Script(status=503), only=("tool_call",))["tool_call"]
    assert (cut.status, busy.status) == ("failed", "unknown")


def test_what_fails_once_of_two_times_is_not_known():
    """A fault that does not come back is no property of the service."""
    asked = []

    def service(payload):
        asked.append(payload)
        wrong = "tools" in payload and sum("tools" in one for one in asked) == 1
        return BehavingService(Behaviour(calls_wrongly=wrong))(payload)

    found = probe(service, only=("tool_call",))["tool_call"]
    assert found.status == "unknown"
    assert found.detail.startswith("failed once of two times")


def test_an_answer_that_ends_by_itself_tells_nothing_of_limit_and_stop_string():
    """A model that says five words kept its limit by chance."""
    found = probe(BehavingService(Behaviour(natural_tokens=5)), only=("max_tokens",))["max_tokens"]
    assert (found.status, "ended by itself after 5 of 8" in found.detail) == ("unknown", True)


def count_by(server, *, goes_on):
    """Read a load like an engine that stops at once, or one that writes every answer to its end."""

    async def read() -> Load:
        written = sum(len(one.writes) for one in server.served)
        left = sum(one.disconnected for one in server.served)
        return Load(busy=server.in_flight, generated=written + 64 * left * goes_on)

    return read


@pytest.mark.parametrize(("goes_on", "status"), [(False, "passed"), (True, "failed")])
def test_a_cancelled_request_must_not_be_written_to_its_end(monkeypatch, goes_on, status):
    """The engine's own count of tokens tells whether it worked on for nobody."""
    monkeypatch.setattr(cancelling, "POLL_S", 0.02)
    found = probe(
        BehavingService(Behaviour(gap_s=0.005)),
        only=("cancel_stops_work",),
        read_load=lambda server: count_by(server, goes_on=goes_on),
    )["cancel_stops_work"]
    assert found.status == status, found


def test_a_request_that_stays_busy_after_it_was_cancelled_fails(monkeypatch):
    """A gauge that never falls back is work for nobody."""
    monkeypatch.setattr(cancelling, "POLL_S", 0.01)
    monkeypatch.setattr(cancelling, "SETTLE_S", 0.05)

    def stuck(server):
        async def read() -> Load:
            return Load(busy=float(len(server.served)), generated=None)

        return read

    service = BehavingService(Behaviour(gap_s=0.005))
    found = probe(service, only=("cancel_stops_work",), read_load=stuck)["cancel_stops_work"]
    assert (found.status, "still being worked on" in found.detail) == ("failed", True)


def test_without_metrics_nothing_is_said_of_work_and_places_are_probed_all_the_same():
    """A managed service that tells nothing of itself still shows whether its places come free."""
    found = probe(BehavingService(Behaviour(gap_s=0.005)), only=CANCELLING, concurrency=4)
    assert found["cancel_stops_work"].status == "unknown"
    assert found["cancel_frees_slots"].status == "passed"


@pytest.mark.parametrize(
    ("alone_s", "beside_s", "status"),
    [
        (0.1, 0.9, "passed"),
        (0.1, 1.1, "failed"),
        (1.0, 2.9, "passed"),
        (1.0, 3.1, "failed"),
        (None, 1, "unknown"),
    ],
)
def test_a_place_is_free_if_the_next_request_is_served_about_as_soon_as_alone(alone_s, beside_s, status):
    """Up to a second or three times the time alone, whichever is more."""
    assert judge_promptness(alone_s, beside_s, 4)[0] == status


@pytest.mark.parametrize("text", ["", "short", "\N{REPLACEMENT CHARACTER}" * 40])
def test_no_stop_string_is_taken_from_an_answer_without_a_place_for_it(text):
    """Too short an answer, or one of broken characters, gives none."""
    assert choose_stop(text) is None


def test_a_stop_string_spans_a_border_of_words():
    """It comes from the middle of the answer and holds a space, so that it is no single token."""
    text = "The captain looked at the dark sea and said nothing for a long time."
    stop = choose_stop(text)
    assert stop is not None
    assert stop in text
    assert " " in stop
