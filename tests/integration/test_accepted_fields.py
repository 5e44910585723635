"""Counts beyond the protocol are asked of a generic service where it accepts that, and of no other."""

import asyncio

import aiohttp
import pytest
from tests.builders.records import build_arm_manifest, build_item
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.core.errors import EngineError
from draftproof.core.manifests import Counting
from draftproof.measure.client.transport import HttpTransport
from draftproof.measure.load.period import Endpoint
from draftproof.plan.schema import Arm
from draftproof.services.arms.probe import probe_service
from draftproof.services.arms.service import locate_service
from draftproof.services.engines import ADAPTERS, GENERIC

USAGE, IDS = "stream_options.continuous_usage_stats", "return_token_ids"
PLAIN = {"include_usage": True}


def asks_usage(payload):
    return bool(payload["stream_options"].get("continuous_usage_stats"))


def answering(*, takes_usage=True, takes_ids=True, status=400, honours=True):
    """Return the script of a service that refuses some fields by this status, and gives what is asked."""

    def choose(payload):
        refused = (asks_usage(payload) and not takes_usage) or (bool(payload.get(IDS)) and not takes_ids)
        if refused and status == 200:
            return Script(error_before=0, error_text="unknown field", token_ids=False, usage="final")
        if refused:
            return Script(status=status, refusal="unknown field")
        is_running = asks_usage(payload) and honours
        return Script(
            usage="continuous" if is_running else "final", token_ids=bool(payload.get(IDS)) and honours
        )

    return choose


def probe(server, adapter=GENERIC, request=None):
    async def scenario():
        service = locate_service("candidate", Arm(engine=adapter.name, url=server.url), server.url, adapter)
        endpoint = Endpoint(url=server.url, served_model="m", engine=adapter.name, request=request or {})

        async def describe():
            return build_arm_manifest(arm="candidate")

        transport = HttpTransport()
        async with aiohttp.ClientSession() as session:
            try:
                return await probe_service(
                    service, endpoint, describe, session=session, transport=transport, timeout_s=5
                )
            finally:
                await transport.close()

    return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "accepted", "source", "requests"),
    [
        ({}, (USAGE, IDS), "token_ids", 1),
        ({"takes_ids": False}, (USAGE,), "continuous_usage", 3),
        ({"takes_ids": False, "status": 422}, (USAGE,), "continuous_usage", 3),
        ({"takes_ids": False, "status": 200}, (USAGE,), "continuous_usage", 3),
        ({"takes_ids": False, "status": 500}, (USAGE,), "continuous_usage", 3),
        ({"takes_usage": False}, (IDS,), "token_ids", 4),
        ({"takes_usage": False, "takes_ids": False}, (), None, 4),
        ({"honours": False}, (USAGE, IDS), None, 1),
    ],
)
def test_what_a_service_accepts_is_found_before_the_run(fields, accepted, source, requests):
    """A refusal, as a status or inside a stream, takes a field away; the run asks for what is left."""
    with ScriptedServer(answering(**fields)) as server:
        found = probe(server)
        assert (found.accepted, found.exchange.answer.token_source) == (accepted, source)
        assert (found.exchange.outcome, found.exchange.answer.output_tokens) == ("ok", 6)
        assert len(server.served) == requests


def test_what_was_accepted_is_asked_in_every_request():
    """The fields travel with each payload, and those of the plan come last."""
    endpoint = Endpoint(url="http://h", served_model="m", engine="generic", accepted=(USAGE, IDS))
    body = endpoint.build_payload(build_item("i"), seed=None)
    assert (body["stream_options"], body[IDS]) == (PLAIN | {"continuous_usage_stats": True}, True)
    plain = Endpoint(url="http://h", served_model="m", engine="generic").build_payload(
        build_item("i"), seed=None
    )
    assert plain["stream_options"] == PLAIN
    assert IDS not in plain


def test_a_field_that_the_plan_states_is_not_tried():
    """The plan's word on a field stands."""
    with ScriptedServer(answering(takes_ids=False)) as server:
        found = probe(server, request={IDS: False})
    assert found.accepted == (USAGE,)


def test_a_service_that_refuses_everything_is_asked_twice():
    """Once with the fields and once without them."""
    with ScriptedServer(Script(status=400)) as server:
        with pytest.raises(EngineError):
            probe(server)
        assert len(server.served) == 2


@pytest.mark.parametrize("status", [302, 401, 404, 429])
def test_a_refusal_of_another_kind_is_not_asked_again(status):
    """A key, an address and a moment are no matter of fields."""
    with ScriptedServer(Script(status=status)) as server:
        with pytest.raises(EngineError):
            probe(server)
        assert len(server.served) == 1


def test_an_engine_that_is_known_is_asked_once():
    """What vLLM takes is known; nothing is tried on it."""
    with ScriptedServer(answering()) as server:
        assert probe(server, ADAPTERS["vllm"]).accepted == ()
        assert len(server.served) == 1


@pytest.mark.parametrize(
    ("counting", "said"),
    [
        (
            Counting(asked=(USAGE,), token_source="continuous_usage", has_total=True),  # noqa: S106
            f"usage at every chunk (accepted: {USAGE})",
        ),
        (Counting(token_source="tokenizer"), "the target's tokenizer, after the run"),  # noqa: S106
        (Counting(has_total=True), "the closing usage alone"),
        (Counting(), "nothing"),
    ],
)
def test_how_tokens_are_counted_is_said(counting, said):
    """The manifest says in words what counts and what was accepted."""
    assert counting.text == said
