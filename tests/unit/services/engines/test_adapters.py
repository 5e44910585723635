"""Adapters: what is asked, and that every arm is asked alike."""

import pytest
from tests.builders.records import build_item

from draftproof.core.errors import PlanError
from draftproof.plan.faults import schema_at
from draftproof.services.engines import ADAPTERS, GENERIC, REFERENCE, adapter_for
from draftproof.services.engines.protocol import SpeculationSwitch
from draftproof.workload.items import Message, Sampling


def test_the_payload_carries_the_item():
    """Messages, limits, sampling, seed, stop strings and tools arrive as the item has them."""
    tool = {"type": "function", "function": {"name": "find"}}
    item = build_item(
        messages=(Message(role="system", content="s"), Message(role="user", content="u")),
        sampling=Sampling(temperature=0.7, top_p=0.9, top_k=20),
        stop=("\n",),
        tools=(tool,),
        max_tokens=64,
    )
    payload = GENERIC.build_payload(item, seed=3, served_model="m", max_tokens=32)
    assert payload == {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 32,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 3,
        "top_k": 20,
        "stop": ["\n"],
        "tools": [tool],
    }


def test_what_an_item_does_not_say_is_not_sent():
    """No seed, top_k, stop strings, tools or schema are invented, and a cap never raises the item's limit."""
    payload = GENERIC.build_payload(build_item(max_tokens=16), seed=None, served_model="m", max_tokens=99)
    assert set(payload) == {
        "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p",
    }  # fmt: skip
    assert (payload["max_tokens"], payload["temperature"]) == (16, 0.0)


def test_a_response_schema_is_asked_for_in_the_same_words_everywhere():
    """Both adapters send an item's schema as response_format, and none where the item has none."""
    item = build_item(response_schema={"type": "object"})
    generic = GENERIC.build_payload(item, seed=1, served_model="m")
    reference = REFERENCE.build_payload(item, seed=1, served_model="m")
    assert generic["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert reference["response_format"] == generic["response_format"]
    assert "response_format" not in REFERENCE.build_payload(build_item(), seed=1, served_model="m")


def test_the_reference_engine_is_asked_for_rounds_and_can_be_switched():
    """The switch is sent when given and absent when the service's own setting stands."""
    adapter = REFERENCE

    def payload(switch):
        return adapter.build_payload(build_item(), seed=1, served_model="m", speculation=switch)

    assert payload(None)["return_round_metrics"] is True
    assert "speculation" not in payload(None)
    assert payload("off")["speculation"] == "off"
    switch = SpeculationSwitch(method="ngram", num_spec_tokens=3)
    assert payload(switch)["speculation"] == {"method": "ngram", "num_spec_tokens": 3}


def test_an_engine_without_switch_refuses_it():
    """A switch that the service would ignore in silence is an error before anything is sent."""
    with pytest.raises(PlanError, match="cannot switch speculation"):
        GENERIC.build_payload(build_item(), seed=1, served_model="m", speculation="off")


def test_a_service_of_which_nothing_is_known_is_asked_in_the_protocol_s_words_alone():
    """A strict service refuses a field it does not know, so none beyond the protocol is sent."""
    payload = GENERIC.build_payload(build_item(), seed=1, served_model="m")
    assert set(payload) <= {
        "model", "messages", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed",
    }  # fmt: skip
    assert payload["stream_options"] == {"include_usage": True}


def test_every_engine_of_a_plan_has_an_adapter_and_no_other():
    """The plan's list of engines and the adapters agree."""
    known = schema_at(("arms", "baseline", "engine"))["enum"]
    assert sorted(known) == sorted(ADAPTERS)


def test_adapters_are_found_by_the_plan_s_names():
    """The engines of a plan have an adapter, any other name is an error that lists them."""
    assert adapter_for("reference").name == "reference"
    assert adapter_for("generic").name == "generic"
    with pytest.raises(PlanError, match=r"'generic', 'llamacpp', 'reference'"):
        adapter_for("nonesuch")
