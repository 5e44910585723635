"""The request fields beyond temperature and length: each arrives at the engine, each bad value is refused."""

import json
from typing import Any

import pytest
from scripted_server import Client, ScriptedBackend

from draftproof.core.errors import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "required": ["b"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}},
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


def in_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


ACCEPTED: list[tuple[dict[str, Any], str, Any]] = [
    ({"min_p": 0.1}, "min_p", 0.1),
    ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
    ({"presence_penalty": -0.5}, "presence_penalty", -0.5),
    ({"frequency_penalty": 2}, "frequency_penalty", 2.0),
    ({"logit_bias": {"7": -100, "3": 1.5}}, "logit_bias", ((3, 1.5), (7, -100.0))),
    ({"min_tokens": 16}, "min_tokens", 16),
    ({"stop_token_ids": [4, 9, 4]}, "stop_token_ids", (4, 9)),
    ({"logprobs": True}, "logprobs", 0),
    ({"logprobs": True, "top_logprobs": 20}, "logprobs", 20),
    ({"logprobs": False, "top_logprobs": 0}, "logprobs", None),
    ({"response_format": {"type": "text"}}, "json_schema", None),
    ({"response_format": in_format(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
    ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
    ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA)),
    ({"guided_json": json.dumps(SCHEMA)}, "json_schema", json.dumps(SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", json.dumps(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type": "object"}'),
    ({"tools": TOOLS, "tool_choice": "auto"}, "json_schema", None),
    ({"tools": TOOLS, "tool_choice": "none"}, "json_schema", None),
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"min_p": 1.5}, "min_p"),
    ({"min_p": True}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 11}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": "much"}, "frequency_penalty"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": {"1": 1, "01": 2}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"stop_token_ids": 4}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stop_token_ids": ["4"]}, "stop_token_ids"),
    ({"stop_token_ids": [True]}, "stop_token_ids"),
    ({"stop_token_ids": list(range(65))}, "stop_token_ids"),
    ({"logprobs": 3}, "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"prompt_logprobs": 0}, "prompt_logprobs"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": True}, "n"),
    ({"n": 2, "best_of": 3}, "best_of"),
    ({"best_of": 2}, "best_of"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": "json_schema"}, "response_format"),
    ({"response_format": "json_object"}, "response_format"),
    ({"response_format": {"type": "structural_tag"}}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": in_format("x")}, "response_format"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_json": [1]}, "guided_json"),
    ({"guided_regex": "a+"}, "guided_regex"),
    ({"structured_outputs": {"regex": "a+"}}, "structured_outputs"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"guided_json": SCHEMA, "response_format": {"type": "json_object"}}, "guided_json"),
    ({"tools": TOOLS, "tool_choice": "required", "guided_json": SCHEMA}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"function": {"name": "subtract"}}}, "tool_choice"),
    ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, "tools[0]"),
    (
        {"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}], "tool_choice": "required"},
        "tools",
    ),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"bad_words": ["x"]}, "bad_words"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"speculation": {"method": "medusa"}}, "speculation.method"),
    ({"speculation": {"method": ["ngram"]}}, "speculation.method"),
    ({"speculation": {"policy": "clever"}}, "speculation.policy"),
    ({"speculation": {"num_spec_tokens": 65}}, "speculation.num_spec_tokens"),
    ({"speculation": {"stop_below": 2}}, "speculation.stop_below"),
]


def same(value: Any, other: Any) -> bool:
    """Compare schemas as values with their keys in order, all else as it is."""
    if isinstance(value, str):
        return isinstance(other, str) and json.dumps(json.loads(value)) == json.dumps(json.loads(other))
    return type(value) is type(other) and bool(value == other)


@pytest.mark.parametrize(
    ("fields", "name", "value"), ACCEPTED, ids=[f"{n}-{i}" for i, (_, n, _) in enumerate(ACCEPTED)]
)
def test_a_field_reaches_the_engine(
    shared_client: tuple[Client, ScriptedBackend], fields: dict[str, Any], name: str, value: Any
) -> None:
    """What a request asks for is what the engine is asked; schemas keep their order of keys."""
    client, backend = shared_client
    assert client.chat(**fields).status == 200
    assert same(getattr(backend.requests[-1].sampling, name), value)


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{p}-{i}" for i, (_, p) in enumerate(REFUSED)])
def test_a_bad_value_is_refused_by_name(
    shared_client: tuple[Client, ScriptedBackend], fields: dict[str, Any], param: str
) -> None:
    """A value that cannot be honoured gets 400 and the name of its field, and reaches no engine."""
    client, backend = shared_client
    before = len(backend.requests)
    reply = client.chat(**fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert param.removeprefix("speculation.").split("[")[0] in reply.json["error"]["message"]
    assert len(backend.requests) == before


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ('{"x": "\\ud83d\\ude00"}', 200),
        ('{"x": "\\ud800"}', 400),
        ("9" * 5000, 400),
        ("{", 400),
        ("NaN", 400),
    ],
)
def test_arguments_of_an_earlier_call_are_json_that_a_tokenizer_takes(
    shared_client: tuple[Client, ScriptedBackend], arguments: str, status: int
) -> None:
    """Half a surrogate pair or a number past all bounds in a call's arguments gets 400 and its place."""
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    reply = shared_client[0].chat(messages=messages)
    assert reply.status == status
    assert status == 200 or reply.json["error"]["param"] == "messages[1].tool_calls[0]"


@pytest.mark.parametrize("field", ["model", "n", "temperature", "stream", "echo", "response_format"])
def test_a_refusal_is_short_however_long_the_value(
    shared_client: tuple[Client, ScriptedBackend], field: str
) -> None:
    """A message names the value at fault and does not send back all of it."""
    message = shared_client[0].chat(**{field: "x" * 100_000}).json["error"]["message"]
    assert field in message
    assert "xxx" in message
    assert len(message) < 400


@pytest.mark.parametrize("value", [True, -1, 21, "x"])
def test_logprobs_of_a_plain_completion_are_a_number(
    shared_client: tuple[Client, ScriptedBackend], value: Any
) -> None:
    """The plain form takes 0 to 20 for `logprobs` and has no `top_logprobs`."""
    client, backend = shared_client
    assert client.post("/v1/completions", {"prompt": "a", "logprobs": 5}).status == 200
    assert backend.requests[-1].sampling.logprobs == 5
    refused = client.post("/v1/completions", {"prompt": "a", "logprobs": value})
    assert (refused.status, refused.json["error"]["param"]) == (400, "logprobs")
    refused = client.post("/v1/completions", {"prompt": "a", "top_logprobs": 2})
    assert (refused.status, refused.json["error"]["param"]) == (400, "top_logprobs")


def test_a_forced_call_asks_for_the_tools_parameters(
    shared_client: tuple[Client, ScriptedBackend],
) -> None:
    """Any tool may be called under `required`, one alone when named; local references follow the schema."""
    client, backend = shared_client
    client.chat(tools=TOOLS, tool_choice="required")
    both = json.loads(backend.requests[-1].sampling.json_schema or "")
    assert [one["properties"]["name"]["const"] for one in both["anyOf"]] == ["add", "stop"]
    argument = both["anyOf"][0]["properties"]["arguments"]["properties"]["x"]
    assert argument == {"$ref": "#/anyOf/0/properties/arguments/$defs/n"}
    assert both["anyOf"][1]["properties"]["arguments"]["additionalProperties"] is False
    client.chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "add"}})
    one = json.loads(backend.requests[-1].sampling.json_schema or "")
    assert list(one["properties"]) == one["required"] == ["name", "arguments"]
    assert one["properties"]["name"] == {"const": "add"}
    assert one["properties"]["arguments"]["properties"]["x"]["$ref"] == "#/properties/arguments/$defs/n"


@pytest.mark.parametrize("method", ["off", "ngram", "draft_model", "attached", "self"])
@pytest.mark.parametrize("policy", ["fixed", "adaptive", "batch", "auto"])
def test_every_method_and_policy_reaches_the_engine(
    shared_client: tuple[Client, ScriptedBackend], method: str, policy: str
) -> None:
    """Which methods are loaded is the engine's matter; the request hands every known one on."""
    client, backend = shared_client
    reply = client.chat(speculation={"method": method, "num_spec_tokens": 3, "policy": policy})
    asked = backend.requests[-1].speculation
    assert (asked.method, asked.num_spec_tokens, asked.policy) == (method, 3, policy)
    assert reply.json["metrics"]["speculation"].items() >= {"method": method, "policy": policy}.items()


def test_null_within_speculation_is_the_servers_own_setting(
    shared_client: tuple[Client, ScriptedBackend],
) -> None:
    """A null setting says what leaving it out says, as it does for every other field."""
    client, backend = shared_client
    client.chat()
    default = backend.requests[-1].speculation
    nulls = dict.fromkeys(("method", "num_spec_tokens", "policy", "stop_below"))
    assert client.chat(speculation=nulls).status == 200
    assert backend.requests[-1].speculation == default


@pytest.mark.parametrize(
    ("place", "fields", "param"),
    [
        ("speculation.method", {"speculation": {"method": "self"}}, "speculation.method"),
        ("logit_bias", {"logit_bias": {"99999": 1}}, "logit_bias"),
        ("json_schema", {"guided_json": {"type": "nonsense"}}, "guided_json"),
        ("json_schema", {"response_format": in_format({"type": "nonsense"})}, "response_format"),
    ],
)
def test_what_the_engine_refuses_is_named_as_the_client_named_it(
    client: Client, backend: ScriptedBackend, place: str, fields: dict[str, Any], param: str
) -> None:
    """A refusal by the engine is a 400 with the request's own field, and no queue is blamed."""
    backend.refusal = UsageError("this cannot be done", place=place, fix="ask for something else")
    reply = client.chat(**fields)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)
    assert "retry-after" not in reply.headers
