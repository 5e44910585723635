"""Items and plans that ask for what an engine refuses, ignores or serves otherwise are found before a run."""

from itertools import chain
from typing import Any

import pytest
from arm_builders import item, manifest

from draftproof.plan.loading import load_builtin_plan
from draftproof.services.arms.request_fit import (
    find_replaced_fields,
    find_unknown_fields,
    find_unsupported_items,
    list_unsupported,
)
from draftproof.services.engines import ADAPTERS, REFERENCE, adapter_for
from draftproof.workload.items import FollowUp, Sampling
from draftproof.workload.reader import load_workload
from draftproof.workload.segments import select

# What an item asks for by a part of its own; every other field is asked for by the plan's `request`.
ASKING: dict[str, dict[str, Any]] = {
    "top_k": {"sampling": Sampling(top_k=5)},
    "tools": {"tools": ({"type": "function"},)},
    "response_format": {"response_schema": {"type": "object"}},
    "stop": {"stop": ("a", "b", "c", "d", "e")},
}


def found(engine, method, *, items=(), request=None, **settings):
    """What is found of an arm of this engine and method, as text -> ids."""
    made = manifest("candidate", {"speculation.method": method, **settings})
    features = find_unsupported_items(items, request or {}, made, adapter_for(engine))
    return {feature.text: ids for feature, ids in features.items()}


def every_field():
    """Every field of every feature that an adapter knows, with a method at which it holds."""
    for engine, adapter in ADAPTERS.items():
        for feature in chain(adapter.facts.lacks, adapter.facts.refuses):
            method = next(iter(feature.methods or adapter.facts.families), "off")
            yield from ((engine, method, feature, field) for field in feature.fields)


@pytest.mark.parametrize(
    ("engine", "method", "feature", "field"),
    [pytest.param(*row, id=f"{row[0]}-{row[3]}-{row[1]}") for row in every_field()],
)
def test_every_feature_of_every_engine_can_be_found(engine, method, feature, field):
    """An item or a plan that asks by this field is found; one that asks for nothing is not."""
    asking = item("b", **ASKING.get(field, {}))
    request = {} if field in ASKING else {f"{field}n_max" if field.endswith(".") else field: 2}
    plain = item("a")
    assert feature.text not in found(engine, method, items=[plain])
    seen = found(engine, method, items=[asking], request=request)
    assert seen[feature.text] == ("b",)


def test_what_only_drafting_refuses_is_no_matter_to_a_baseline():
    """VLLM refuses min_p while it drafts; without speculation it serves it."""
    asked = {"items": [item("a")], "request": {"min_p": 0.1}}
    assert found("vllm", "ngram", **asked)
    assert found("vllm", "off", **asked) == {}


def test_a_feature_of_some_methods_is_found_at_these_alone():
    """UNO refuses penalties, every other method of SGLang serves them inexactly."""
    asked = {"items": [item("a")], "request": {"presence_penalty": 0.5}}
    assert any("refused by UNO" in text for text in found("sglang", "UNO", **asked))
    assert not any("refused by UNO" in text for text in found("sglang", "NGRAM", **asked))


@pytest.mark.parametrize(
    "request_fields", [{"min_p": 0.0}, {"repetition_penalty": 1.0}, {"logit_bias": ""}, {"top_logprobs": 0}]
)
def test_a_neutral_value_asks_for_nothing(request_fields):
    """A field that changes nothing is no reason to stop."""
    for engine in ADAPTERS:
        family = next(iter(adapter_for(engine).facts.families), "off")
        assert found(engine, family, items=[item("a")], request=request_fields) == {}


def test_stop_strings_are_counted_over_a_conversation():
    """TGI takes four, or as many as it states; a later turn's strings count as well."""
    four, five = ("a", "b", "c", "d"), ("a", "b", "c", "d", "e")
    later = item("late", follow_ups=(FollowUp(content="go on", stop=five),))
    items = [item("four", stop=four), item("five", stop=five), later]
    assert list(found("tgi", "off", items=items).values()) == [("five", "late")]
    assert found("tgi", "off", items=items, max_stop_sequences=8) == {}


def test_demo_asks_for_nothing_that_its_engine_lacks():
    """The demo's own items pass its own preflight, nine of each of four tasks."""
    made, _ = load_builtin_plan("demo")
    choice = made.workload
    items = select(
        load_workload(choice.path), choice.where, choice.items_per_segment, choice.segment_by, made.seed
    )
    assert len(items) == 4 * 9
    assert find_unsupported_items(items, {}, manifest("candidate"), REFERENCE) == {}


def test_an_arm_that_does_not_draft_has_the_engines_own_gaps_only():
    """Off or undisclosed: what speculation refuses is not listed."""
    vllm = adapter_for("vllm")
    assert list_unsupported(manifest(), vllm) == vllm.facts.lacks
    assert list_unsupported(manifest(settings={}), vllm) == vllm.facts.lacks
    drafting = list_unsupported(manifest(settings={"speculation.method": "ngram"}), vllm)
    assert drafting == vllm.facts.lacks + vllm.facts.refuses


def test_a_field_of_an_item_asks_for_a_feature():
    """A line's further fields count as those of the plan do; a text format asks for nothing."""
    asking = item("a", request={"min_p": 0.1})
    plain = item("b", request={"response_format": {"type": "text"}})
    assert found("sglang", "EAGLE3", items=[asking, plain])["min_p is ignored in silence"] == ("a",)
    assert find_unsupported_items([plain], {}, manifest("candidate"), adapter_for("tensorrt-llm")) == {}


def test_a_field_that_an_arm_is_sent_otherwise_is_found():
    """The plan's request and what the engine is asked for stand above an item's own fields."""
    items = [item("a", request={"min_p": 0.1, "return_token_ids": False}), item("b")]
    assert find_replaced_fields(items, {"min_p": 0.2}, adapter_for("vllm")) == {
        "min_p": ("a",), "return_token_ids": ("a",),
    }  # fmt: skip
    assert find_replaced_fields(items, {"temperature": 0.8}, adapter_for("generic")) == {
        "temperature": ("a", "b")
    }


def test_a_schema_in_the_words_of_an_engine_is_not_replaced():
    """TGI takes the same schema under other names."""
    schema = {"type": "object"}
    given = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    items = [item("a", response_schema=schema, request=given)]
    assert find_replaced_fields(items, {}, adapter_for("tgi")) == {}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi"])
def test_a_field_that_an_engine_ignores_in_silence_is_found(engine):
    """Of an item and of the plan; fields of its own protocol, and engines that say so themselves, are not."""
    items = [item("a", request={"house_rule": 1, "frequency_penalty": 0.5}), item("b")]
    found = find_unknown_fields(items, {"guess": True, "temperature": 1.0}, adapter_for(engine))
    assert found == {"guess": ("a", "b"), "house_rule": ("a",)}
    assert find_unknown_fields(items, {"guess": True}, adapter_for("tensorrt-llm")) == {}


def test_what_every_handed_parameter_becomes_is_said_for_tgi():
    """TGI's chat requests have few fields, and every other one is named."""
    request = {"min_p": 0.1, "logit_bias": {"5": -100}, "ignore_eos": True, "repetition_penalty": 1.3}
    found = find_unknown_fields([item("a", request=request)], {}, adapter_for("tgi"))
    assert set(found) == set(request)
