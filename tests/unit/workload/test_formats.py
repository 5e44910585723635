"""Lines of other tools: what is sent as it stands, what is said not to be, and what is refused by name."""

import json
from pathlib import Path

import pytest

from draftproof.core.errors import WorkloadError
from draftproof.services.engines import ADAPTERS, adapter_for
from draftproof.workload.formats import PROTOCOL_KEYS
from draftproof.workload.items import Sampling
from draftproof.workload.reader import load_workload

FILES = Path(__file__).parents[2] / "fixtures" / "files"
ASK = [{"role": "user", "content": "Hi"}]
PARAMETERS = json.loads((FILES / "batch-parameters.jsonl").read_text().splitlines()[0])["body"]
SENT = {key: value for key, value in PARAMETERS.items() if key not in {"model", "messages", "n"}}


def batch(**body):
    return {
        "custom_id": "q",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": ASK} | body,
    }


def sharegpt(*turns, **columns):
    return {"id": "s", "conversations": [{"from": who, "value": said} for who, said in turns]} | columns


def load(folder, *lines):
    path = folder / "w.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return load_workload(path)


def payload_of(folder, line, engine="vllm"):
    (item,) = load(folder, line).items
    return adapter_for(engine).build_payload(item, seed=item.sampling.seed, served_model="m")


def refusal_of(folder, line):
    with pytest.raises(WorkloadError) as caught:
        load(folder, line)
    assert str(caught.value.place).endswith("w.jsonl:1")
    return str(caught.value)


@pytest.mark.parametrize("engine", sorted(ADAPTERS))
@pytest.mark.parametrize("field", SENT)
def test_every_field_of_a_batch_request_is_sent_as_given(tmp_path, engine, field):
    """Penalties, biases, templates and response formats reach each engine as the line has them."""
    sent = payload_of(tmp_path, batch(**{field: SENT[field]}), engine)
    assert sent[field] == SENT[field]


def test_a_field_that_nobody_knows_is_sent_as_given(tmp_path):
    """What a service of the user's own takes is not ours to drop."""
    assert payload_of(tmp_path, batch(house_rule={"a": [1, None]}))["house_rule"] == {"a": [1, None]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("best_of", 3),
        ("echo", True),
        ("use_beam_search", True),
        ("prompt", "x"),
        ("max_new_tokens", 9),
        ("n_predict", 9),
        ("num_speculative_tokens", 3),
        ("speculation", "off"),
        ("speculative.n_max", 4),
        ("api_key", "sk"),
    ],
)
def test_a_field_that_cannot_be_measured_is_refused_by_name(tmp_path, field, value):
    """One sentence names the field; a value that changes nothing passes."""
    assert f"request.{field}" in refusal_of(tmp_path, batch(**{field: value}))


def test_the_handed_batch_file_is_refused_for_its_two_choices():
    """Its other fields are sent; n = 2 is the one that is not."""
    with pytest.raises(WorkloadError, match=r"request\.n = 2"):
        load_workload(FILES / "batch-parameters.jsonl")


def test_one_choice_is_no_fault(tmp_path):
    """The protocol's own defaults are sent like any other value."""
    assert payload_of(tmp_path, batch(n=1, echo=False))["n"] == 1


def test_a_native_line_may_have_further_fields(tmp_path):
    """`request` holds them, and what has a key of its own is refused there."""
    line = {"messages": ASK, "request": {"min_p": 0.1}}
    assert payload_of(tmp_path, line)["min_p"] == 0.1
    for field, key in (("temperature", "sampling.temperature"), ("model", "plan"), ("stream", "streamed")):
        assert key in refusal_of(tmp_path, line | {"request": {field: 1}})


def test_a_null_limit_is_an_absent_one():
    """The handed file states 300 beside a null under the newer name."""
    assert {item.max_tokens for item in load_workload(FILES / "batch-null-limit.jsonl").items} == {300}


def test_two_limits_are_refused(tmp_path):
    """Neither is chosen in silence; the same limit twice is one."""
    assert "two limits" in refusal_of(tmp_path, batch(max_tokens=5, max_completion_tokens=6))
    assert payload_of(tmp_path, batch(max_tokens=5, max_completion_tokens=5))["max_tokens"] == 5


LOGGED = {"messages": ASK, "model": "prod-7b", "stream": True, "max_tokens": 48}


def test_a_logged_request_is_read_like_a_batch_body(tmp_path):
    """What it says of the answer is sent; model, stream and user are the plan's, and each is said once."""
    first = LOGGED | {"temperature": 0.7, "top_p": 0.9, "seed": 3, "stop": "END", "user": "u1", "min_p": 0.1}
    second = {"messages": ASK, "model": "prod-7b", "tools": [{"type": "function", "function": {"name": "f"}}]}
    loaded = load(tmp_path, first, second)
    one, other = loaded.items
    assert (one.max_tokens, one.sampling, one.stop) == (
        48, Sampling(temperature=0.7, top_p=0.9, seed=3), ("END",),
    )  # fmt: skip
    assert (one.request, other.request, len(other.tools)) == ({"min_p": 0.1}, {}, 1)
    assert loaded.notes == (
        "in 2 of 2 lines `model` is left to the plan: the model that the plan names is asked.",
        "in 1 of 2 lines `stream` is left to the plan: every answer is streamed.",
        "in 1 of 2 lines `user` is left to the plan: it changes no answer; arms.NAME.request may state it.",
        "in 1 of 2 lines no limit is stated, and max_tokens = 64 is sent.",
        "in 1 of 2 lines no temperature is stated, and 0 (greedy) is sent.",
    )


@pytest.mark.parametrize("field", ["user", "safety_identifier", "metadata", "store"])
def test_a_batch_line_does_not_say_who_asked(tmp_path, field):
    """A name of a person is no part of the question; in our own form it is sent, as it always was."""
    (item,) = load(tmp_path, batch(**{field: "u1"})).items
    assert item.request == {}
    (item,) = load(tmp_path, {"messages": ASK, "request": {field: "u1"}}).items
    assert item.request == {field: "u1"}


@pytest.mark.parametrize("field", sorted(PROTOCOL_KEYS - {"messages"}))
def test_any_field_of_the_protocol_makes_a_line_a_request(tmp_path, field):
    """It is sent, left to the plan or refused by what it is, and never for its name alone."""
    values = {"max_tokens": 5, "max_completion_tokens": 5, "tools": [], "n": 1, "best_of": 1, "stop": "x"}
    values |= {"echo": False, "use_beam_search": False, "temperature": 1, "top_p": 1, "top_k": 1, "seed": 1}
    line = {"messages": ASK, field: values.get(field, "auto")}
    if field in {"prompt", "input", "max_new_tokens", "max_output_tokens", "n_predict"}:
        assert f"request.{field} = " in refusal_of(tmp_path, line)
    else:
        assert len(load(tmp_path, line).items) == 1


def test_a_logged_request_may_have_our_own_keys_beside_it(tmp_path):
    """Labels and checks are ours; a key of neither, or a field stated twice, ends the reading."""
    line = LOGGED | {"id": "q7", "segments": {"task": "x"}, "checks": [{"type": "length"}]}
    (item,) = load(tmp_path, line | {"sampling": {"temperature": 0.5}}).items
    assert (item.id, item.segments, len(item.checks), item.sampling.temperature) == (
        "q7",
        {"task": "x"},
        1,
        0.5,
    )
    assert "unknown field `chekcs`" in refusal_of(tmp_path, line | {"chekcs": []})
    assert "unknown field `heat`" in refusal_of(tmp_path, line | {"sampling": {"heat": 1}})
    twice = refusal_of(tmp_path, line | {"temperature": 1, "sampling": {"temperature": 0.5}})
    assert "`temperature` is stated twice" in twice


NATIVE = {
    "id": "a",
    "messages": [{"role": "user", "content": "Hi"}],
    "segments": {"task": "x"},
    "sampling": {"temperature": 0.5},
    "checks": [{"type": "length"}],
    "follow_ups": [{"content": "More", "checks": [{"type": "exact", "value": "y"}]}],
}
NULLABLE = [
    (NATIVE, ()),
    (NATIVE, ("messages", 0)),
    (NATIVE, ("sampling",)),
    (NATIVE, ("segments",)),
    (NATIVE, ("checks", 0)),
    (NATIVE, ("follow_ups", 0)),
    (NATIVE, ("follow_ups", 0, "checks", 0)),
    (batch(), ()),
    (batch(), ("body",)),
    (batch(), ("body", "messages", 0)),
    (LOGGED, ()),
    (sharegpt(("human", "Hi")), ()),
    (sharegpt(("human", "Hi")), ("conversations", 0)),
    (NATIVE | {"at_s": 1.0}, ()),
]
KEYS = (
    *("name", "tool_calls", "stop", "tools", "tool_choice", "response_schema", "max_tokens", "temperature"),
    *("top_k", "seed", "min_chars", "critical", "system", "timestamp", "class", "response_format", "images"),
    *("max_completion_tokens", "stream", "refusal", "weight", "request", "due_ns", "logit_bias"),
)


@pytest.mark.parametrize(("line", "path"), NULLABLE)
def test_a_null_is_an_absent_key(tmp_path, line, path):
    """In every object of every form, whatever the key is."""
    turned = json.loads(json.dumps(line))
    node = turned
    for step in path:
        node = node[step]
    node |= {key: None for key in KEYS if key not in node}
    plain, nulled = load(tmp_path, line), load(tmp_path, turned)
    assert (nulled.items, nulled.notes) == (plain.items, plain.notes)


def test_an_assistant_that_calls_tools_says_nothing():
    """The protocol's null content is read and sent as null."""
    (item, *_) = load_workload(FILES / "batch-null-content.jsonl").items
    sent = adapter_for("vllm").build_payload(item, seed=None, served_model="m")["messages"]
    assert [message["content"] for message in sent] == ["Weather in Oslo?", None, "12 degrees"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "c1"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": "Hi"},
        {"role": "function", "name": "get", "content": "12"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
)
def test_a_message_of_the_protocol_is_sent_as_given(tmp_path, message):
    """Roles, names and several text parts: how a service joins parts is its own."""
    for line in (batch(messages=[message, *ASK]), {"messages": [message, *ASK]}):
        sent = payload_of(tmp_path, line)["messages"][0]
        assert json.loads(json.dumps(sent)) == message


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "'image_url'"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}, "cache_control"),
        ({"role": "user"}, "messages[0] has no content"),
        ({"role": "assistant", "content": None}, "messages[0] has no content"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio"),
        ({"role": "tool"}, "messages[0] has no content"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused_by_name(tmp_path, message, named):
    """Pictures, sound, unknown keys and messages that say nothing."""
    for line in (batch(messages=[message, *ASK]), {"messages": [message, *ASK]}):
        assert named in refusal_of(tmp_path, line)


def test_an_answer_at_the_end_is_refused():
    """Nothing would be asked; the sentence says what to do."""
    with pytest.raises(WorkloadError, match="end with the question"):
        load_workload(FILES / "assistant-last.jsonl")


def test_a_sharegpt_system_text_comes_first():
    """The column is the first message, and that the answers are left out is said."""
    workload = load_workload(FILES / "sharegpt-system.json")
    assert [[m.role for m in item.messages] for item in workload.items] == [["system", "user"]] * 3
    assert workload.items[0].messages[0].text == "Answer in French only."
    assert "in 3 of 3 lines the answer after the last question is left out." in workload.notes


@pytest.mark.parametrize("column", ["system", "system_prompt", "system_message"])
def test_every_name_of_a_system_text_is_read(tmp_path, column):
    """The column comes first, beside a turn of the same text once, and two texts are refused."""
    for turns in ([("human", "Hi")], [("system", "Be brief."), ("human", "Hi")]):
        sent = payload_of(tmp_path, sharegpt(*turns, **{column: "Be brief."}))["messages"]
        assert [(m["role"], m["content"]) for m in sent] == [("system", "Be brief."), ("user", "Hi")]
    turns = [("system", "Rhyme."), ("human", "Hi")]
    assert "two system messages" in refusal_of(tmp_path, sharegpt(*turns, **{column: "Be brief."}))


def test_two_columns_of_system_text_are_refused(tmp_path):
    """Neither is chosen in silence, and neither are the older names of tools dropped."""
    line = sharegpt(("human", "Hi"), system="A", system_prompt="B")
    assert "`system` and system_prompt are two system messages" in refusal_of(tmp_path, line)
    assert "request.functions" in refusal_of(tmp_path, sharegpt(("human", "Hi"), functions=[{"name": "f"}]))


@pytest.mark.parametrize(
    ("speaker", "role"),
    [
        ("human", "user"), ("user", "user"), ("system", "system"), ("developer", "developer"),
        ("tool", "tool"), ("observation", "tool"),
        ("gpt", "assistant"), ("assistant", "assistant"),
    ],
)  # fmt: skip
def test_every_dialect_of_sharegpt_is_read(tmp_path, speaker, role):
    """Names of speakers, and the keys of the protocol in the place of `from` and `value`."""
    turns = [(speaker, "One"), ("human", "Two")]
    one, other = load(
        tmp_path,
        sharegpt(*turns),
        {"id": "t", "conversations": [{"role": who, "content": said} for who, said in turns]},
    ).items
    assert one.messages == other.messages
    assert one.messages[0].role == role


@pytest.mark.parametrize("tools", ['[{"name": "f", "parameters": {}}]', [{"name": "f", "parameters": {}}]])
def test_sharegpt_tools_are_sent(tmp_path, tools):
    """The column is a list or its JSON as text; a bare function is a tool of this type."""
    sent = payload_of(tmp_path, sharegpt(("human", "Hi"), tools=tools))["tools"]
    assert sent == [{"type": "function", "function": {"name": "f", "parameters": {}}}]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"images": ["a.png"]}, "images"),
        ({"tools": "[{"}, "tools"),
        ({"system": ["x"]}, "system"),
        ({"id": [1]}, "id = [1]"),
        ({"temperature": 0.7}, "state it as sampling.temperature"),
        ({"max_completion_tokens": 5}, "state it as max_tokens"),
        ({"logit_bias": {"5": 1}}, "state it as request.logit_bias"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, "'function_call'"),
        ({"conversations": [{"from": "human", "role": "system", "value": "x"}]}, "`from` and `role`"),
        ({"conversations": [{"from": "system", "value": "A"}], "system": "B"}, "two system messages"),
    ],
)
def test_a_sharegpt_line_that_cannot_be_sent_is_refused_by_name(tmp_path, columns, named):
    """Pictures, tools that are no JSON, and speakers of which nothing is known."""
    assert named in refusal_of(tmp_path, sharegpt(("human", "Hi")) | columns)


def test_a_sharegpt_line_may_have_keys_of_our_own(tmp_path):
    """Labels, limits, sampling, checks and further fields are those of an item."""
    own = {"max_tokens": 5, "sampling": {"top_p": 0.5}, "segments": {"task": "x"}, "request": {"min_p": 0.1}}
    workload = load(tmp_path, sharegpt(("human", "Hi"), **own, stop=["END"], checks=[{"type": "length"}]))
    (item,) = workload.items
    assert (item.max_tokens, item.sampling.top_p, item.segments) == (5, 0.5, {"task": "x"})
    assert (item.request, item.stop, len(item.checks)) == ({"min_p": 0.1}, ("END",), 1)
    assert workload.notes == ()


def test_what_is_not_sent_is_said(tmp_path):
    """Each kind once, with the number of lines."""
    turns = [{"from": "human", "value": "Hi", "weight": 0.0}]
    notes = load(
        tmp_path,
        sharegpt() | {"conversations": turns, "source": "web"},
        batch(model="m", stream=False, max_tokens=3, temperature=0),
    ).notes
    assert notes == (
        "in 1 of 2 lines no limit is stated, and max_tokens = 64 is sent.",
        "in 1 of 2 lines `source` is not used.",
        "in 1 of 2 lines `weight` of a turn is not used.",
        "in 1 of 2 lines `model` is left to the plan: the model that the plan names is asked.",
        "in 1 of 2 lines `stream` is left to the plan: every answer is streamed.",
    )


def test_messages_alone_are_an_item(tmp_path):
    """A line needs neither id nor labels; its name is its place and a hash of what it says."""
    lines = [{"messages": ASK}, {"messages": ASK}, {"messages": ASK, "max_tokens": 5}]
    first, second, third = load(tmp_path, *lines).items
    assert first.id == "i000001-c690133a"
    assert (second.id, third.id[:8]) == ("i000002-c690133a", "i000003-")
    assert first.segments == {"task": "unlabelled"}
    path = tmp_path / "blank.jsonl"
    path.write_text("\n\n" + json.dumps(lines[0], indent=None, separators=(",", ":")) + "\n")
    assert load_workload(path).items[0].id == first.id


@pytest.mark.parametrize("line", [batch() | {"custom_id": None}, sharegpt(("human", "Hi")) | {"id": None}])
def test_other_forms_need_no_id_either(tmp_path, line):
    """A batch line is told by url and body, a conversation by its turns."""
    assert load(tmp_path, line).items[0].id.startswith("i000001-")


def test_ids_that_agree_as_text_are_duplicates(tmp_path):
    """The whole number 7 and the text "7" are one name."""
    with pytest.raises(WorkloadError, match="'7' is already used"):
        load(tmp_path, sharegpt(("human", "a"), id=7), sharegpt(("human", "b"), id="7"))


@pytest.mark.parametrize(
    "change",
    [{"url": "/v1/embeddings"}, {"method": "GET"}, {"body": 5}, {"priority": 3}],
)
def test_a_batch_line_of_another_kind_is_refused(tmp_path, change):
    """Only chat requests, and no key beside those of the form."""
    assert "batch line" in refusal_of(tmp_path, batch() | change)
