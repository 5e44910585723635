"""Logs of requests: what becomes an item, what is counted as refused, and that nothing private is quoted.

The forms, one by one, are pinned in tests/golden/logs.
"""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.errors import WorkloadError
from draftproof.tell.report.survey import MOST_LINES, render_log
from draftproof.workload.items import Item, JsonSchemaCheck, Message, ToolCallCheck
from draftproof.workload.labels import LEAST_PROMPTS, choose_split, tell_script, tell_task
from draftproof.workload.logs import Unreadable, propose_checks, survey_log
from draftproof.workload.moments import Units
from draftproof.workload.reader import load_workload, read_log, write_workload

LOGS = Path(__file__).parents[2] / "fixtures" / "files" / "logs"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "required": ["a"]}},
}
OTHER_TOOL = {"type": "function", "function": {"name": "g"}}
NO_MESSAGES_BUT_INPUT = "`input` instead of messages: an embeddings call, or one of the Responses API"
JSON_OBJECT = {"response_format": {"type": "json_object"}}
ARRAY_CHECK, OBJECT_CHECK = (
    JsonSchemaCheck(schema={"type": "array"}),
    JsonSchemaCheck(schema={"type": "object"}),
)
CALL_CHECK = ToolCallCheck(schema=TOOL["function"]["parameters"])
MARK = "Kq7-private-Zx"


def ask(text="Hi", **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 9} | more


def survey(*values, units=None):
    return survey_log(enumerate(values, start=1), units or Units(), "log")


def item(text="Hi", **more):
    return Item(id="i", messages=(Message(role="user", content=text),), segments={}, **more)


def reasons(*values):
    return [one.what for one in survey(ask(), *values).refused]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (Unreadable("not JSON"), "not JSON"),
        (7, "not a JSON object"),
        (ask(n=2), "`n`: of several answers none has a time per token of its own"),
        (ask(messages=[]), "no messages"),
        (ask(" "), "the last message is empty"),
        (ask(messages=[{"role": "assistant", "content": "Yes"}]), "only the assistant speaks"),
        (ask(messages=[{"role": "boss", "content": "Hi"}]), "a message of an unknown role"),
        (ask(messages=[{"role": "user"}]), "a message without content"),
        (ask([{"type": "file", "file": {}}]), "a part of a message that is no text (`file`)"),
        (ask([{"type": MARK}]), "a part of a message that is no text"),
        (ask(max_tokens=0), "`max_tokens` has a value that cannot be sent"),
        (ask(temperature="hot"), "`sampling` has a value that cannot be sent"),
        (ask(temperature=-1), "`sampling.temperature` has a value that cannot be sent"),
        (ask(max_completion_tokens=10), "a field cannot be sent"),
        ({"model": "e", "input": "text"}, NO_MESSAGES_BUT_INPUT),
        ({"request": {"prompt": "Once"}}, "a text prompt, not chat messages"),
        ({"request": ask(), "response": {"error": {"message": "no"}}}, "a call that failed"),
        ({"request": ask(), "status_code": 429}, "a call that failed"),
        (ask(system="Be brief."), "a request of Anthropic's Messages API (`system` beside messages)"),
        ({"resourceSpans": []}, "telemetry without a span"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_sent_is_counted_by_reason(line, reason):
    """The reading goes on, and no reason has a word of the line."""
    log = survey(ask(), line, line)
    assert [(one.what, one.count, one.first_lines) for one in log.refused] == [(reason, 2, (2, 3))]
    assert (len(log.items), log.lines) == (1, 3)


def test_a_log_without_a_usable_line_is_an_error(tmp_path):
    """The error counts the reasons and says what to do, for vLLM's request log in words of its own."""
    with pytest.raises(WorkloadError, match=r"none of its 2 lines can be sent: no messages \(2\)"):
        survey(ask(messages=[]), ask(messages=[]))
    with pytest.raises(WorkloadError, match="Fix: log the requests at the gateway"):
        read_log(LOGS / "vllm.log")
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"at_s": 0, "prompt_tokens": 5}\n')
    with pytest.raises(WorkloadError, match="Fix: give it as --trace"):
        read_log(trace)


def test_what_names_a_secret_or_drafts_is_left_out_and_not_stored():
    """Keys that an SDK was given, and switches of speculation, are no part of the request."""
    log = survey(
        {"kwargs": ask(api_key=MARK, num_speculative_tokens=3, timeout=5, extra_body={"min_p": 0.1})}
    )
    assert log.items[0].request == {"min_p": 0.1}
    assert MARK not in msgspec.json.encode(log).decode()


def test_the_answer_and_fields_of_an_answer_are_left_out():
    """A log has the answer in the messages, and reasoning and notes of a gateway beside them."""
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm", "annotations": []},
    ]
    log = survey(ask(messages=messages))
    assert log.items[0].messages == (Message(role="user", content="Hi"),)
    assert log.notes[0] == "in 1 of 1 requests the answer after the last question is left out."


@pytest.mark.parametrize(
    ("more", "limit"),
    [
        ({}, 9),
        ({"max_tokens": None}, 80),
        ({"max_tokens": None} | JSON_OBJECT, 80),
    ],
)
def test_twice_the_recorded_length_is_the_limit_where_none_is_stated(more, limit):
    """An answer of another run may be longer than the recorded one, and is to end by itself."""
    line = {"request": ask(**more), "response": {"usage": {"completion_tokens": 40}}}
    assert survey(line).items[0].max_tokens == limit
    if not more.get("max_tokens", True):
        assert survey(ask(**more)).items[0].max_tokens == 512


def test_times_are_used_where_every_request_has_one():
    """A log with holes is no load, and times that cannot be compared are not used."""
    timed = [ask("a", at_s=5), ask("b", at_s=9), ask("c", at_s=7)]
    log = survey(*timed)
    assert [(one.messages[0].text, one.due_ns) for one in log.items] == [
        ("a", 0),
        ("c", 2 * 10**9),
        ("b", 4 * 10**9),
    ]
    assert (log.span_s, log.mean_rps) == (4.0, 0.5)
    for other in (ask(), ask(timestamp="2026-01-01T00:00:00Z"), ask(timestamp=12), ask(timestamp="noon")):
        log = survey(*timed, other)
        assert [one.due_ns for one in log.items] == [None] * 4
        assert log.span_s is None
        assert any("the times are not used" in note for note in log.notes)
    assert survey(ask(timestamp=12), ask(timestamp=13), units=Units(timestamp="s")).span_s == 1


def test_a_workload_is_written_whole_and_never_over_another(tmp_path):
    """What is read again is what was surveyed: items, labels, checks and times."""
    log = read_log(LOGS / "chat.jsonl")
    path = tmp_path / "w.jsonl"
    write_workload(log, path)
    assert load_workload(path).items == log.items
    with pytest.raises(WorkloadError, match="the file exists"):
        write_workload(log, path)
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_workload(log, tmp_path / "no" / "w.jsonl")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["w.jsonl", "w.meta.toml"]


def test_an_array_and_a_document_over_many_lines_are_read(tmp_path):
    """Exports are often one JSON document."""
    path = tmp_path / "w.json"
    path.write_text(json.dumps([ask("a"), ask("b", n=2), ask("c")], indent=2))
    log = read_log(path)
    assert ([one.messages[0].text for one in log.items], log.refused[0].first_lines) == (["a", "c"], (2,))


@pytest.mark.parametrize(
    ("text", "more", "task"),
    [
        ("Hi", {"tools": (TOOL,)}, "tools"),
        ("Hi", {"tools": (TOOL,), "tool_choice": "none"}, "question"),
        ("Hi", {"response_schema": {}}, "schema"),
        ("Hi", {"request": {"response_format": {"type": "text"}}}, "question"),
        ("Hi", {"request": {"guided_regex": "a"}}, "schema"),
        ("```\na\n```", {}, "code"),
        ("import os\ndef f():\n  pass", {}, "code"),
        ("class is important to me", {}, "question"),
        ("Summarise this.\n\n" + "word " * 400, {}, "summary"),
        ("A long text.\n\nPlease summarize it in two lines", {}, "summary"),
        ("Translate to French: good night", {}, "translation"),
        ("Could you rewrite this politely?\n\nNo.", {}, "rewriting"),
        ("Make this shorter.\n\nA long text.", {}, "rewriting"),
        ("Extract every date.\n\nOn 1 May.", {}, "extraction"),
        ("CLASSIFY the ticket: no power", {}, "classification"),
        ("Make a list of rivers", {}, "question"),
        ("Correctness of a proof, what is it?", {}, "question"),
        ("How do I summarise a text?", {}, "question"),
        ("Summarise: ```\na\n```", {}, "code"),
        ("What is said here?\n\n" + "word " * 400, {}, "grounded"),
        ("word " * 400, {}, "question"),
    ],
)
def test_the_task_is_what_the_request_shows(text, more, task):
    """The first rule that fits names it; nothing is read into an answer."""
    assert tell_task(item(text, **more)) == task


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Good day 1", "latin"),
        ("صباح الخير ok", "arabic"),
        ("早上好", "han"),
        ("早上好おはよう", "japanese"),
        ("Добрый день", "cyrillic"),
        ("좋은 아침", "hangul"),
        ("12 + 3", "none"),
    ],
)
def test_the_language_is_the_script_of_most_letters(text, script):
    """Digits and signs belong to none."""
    assert tell_script(text) == script


def labelled(**counts):
    return [
        msgspec.structs.replace(item(f"{label} {at}"), segments={"task": label, "turns": "one"})
        for label, count in counts.items()
        for at in range(count)
    ]


def test_the_split_has_enough_different_prompts_in_every_segment():
    """Rare labels are joined where that helps; a log that is too small stays whole; copies do not count."""
    many, few = LEAST_PROMPTS, LEAST_PROMPTS - 1
    assert choose_split(labelled(chat=many, code=many)).segment_by == ("task",)
    joined = choose_split(labelled(chat=many, code=few, tools=few))
    assert joined.renamed == {"task": {"code": "other", "tools": "other"}}
    rare = choose_split(labelled(chat=many, code=many, tools=1))
    assert (rare.segment_by, rare.renamed) == (("task",), {"task": {"tools": "other"}})
    assert choose_split(labelled(chat=many, code=many, tools=few)).segment_by == ("log",)
    whole = choose_split(labelled(chat=many, code=few))
    assert (whole.segment_by, whole.renamed) == (("log",), {"log": {"": "whole"}})
    assert choose_split(labelled(chat=many)).segment_by == ("task",)
    assert choose_split(labelled(chat=many, code=few) + labelled(code=1)).segment_by == ("log",)


def test_joined_labels_are_those_of_the_items():
    """The workload that is written has the segments that are proposed."""
    lines = [ask(f"q {at}") for at in range(LEAST_PROMPTS)]
    lines += [ask(f"t {at}", tools=[TOOL]) for at in range(LEAST_PROMPTS - 1)] + [ask("import a\nimport b")]
    log = survey(*lines)
    assert log.proposed.segment_by == ("task",)
    assert log.dimensions["task"] == {"question": LEAST_PROMPTS, "other": LEAST_PROMPTS}


@pytest.mark.parametrize(
    ("more", "checks"),
    [
        ({}, ()),
        ({"request": JSON_OBJECT}, (OBJECT_CHECK,)),
        ({"response_schema": {"type": "array"}}, (ARRAY_CHECK,)),
        ({"request": {"structured_outputs": {"json": {"type": "array"}}}}, (ARRAY_CHECK,)),
        ({"request": {"guided_json": {"type": "nonsense"}}}, ()),
        ({"tools": (TOOL,)}, ()),
        ({"tools": (TOOL,), "tool_choice": "required"}, (CALL_CHECK,)),
        ({"tools": (TOOL, OTHER_TOOL), "tool_choice": "required"}, (ToolCallCheck(),)),
        (
            {"tools": (TOOL, OTHER_TOOL), "tool_choice": {"type": "function", "function": {"name": "f"}}},
            (msgspec.structs.replace(CALL_CHECK, names=("f",)),),
        ),
    ],
)  # fmt: skip
def test_checks_are_what_the_request_itself_asks_for(more, checks):
    """A form of the answer and a forced call; what a check could not apply is no check."""
    assert propose_checks(item(**more)) == checks


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("write to anna.k@example.org", "an e-mail address"),
        ("call +43 660 1234567", "a phone-like number"),
        ("call (415) 555-0123", "a phone-like number"),
        ("pay with 4111 1111 1111 1111", "a card-like number"),
        ("use sk-proj-abc123DEF456ghi789", "an API key"),
        ("pi is 3.14159265358979, 12345678 people, 2026-01-02, 4111 1111 1111 1112, a@b", None),
    ],
)
def test_what_looks_private_is_counted_by_kind(text, kind):
    """Counted with its line, also in the arguments of an earlier call; never quoted."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text})}}
    earlier = [{"role": "user", "content": "Hi"}, {"role": "assistant", "tool_calls": [call]}]
    called = ask(messages=[*earlier, {"role": "tool", "tool_call_id": "c", "content": "ok"}])
    log = survey(ask(), ask(text), called)
    assert [(one.what, one.count, one.first_lines) for one in log.private] == (
        [(kind, 2, (2, 3))] if kind else []
    )


def test_labels_of_a_log_are_offered_where_they_name_no_person():
    """Two labels to twelve, on half of the requests; users, addresses and single requests are none."""
    lines = [
        ask(f"q{at}", metadata={"team": "ab"[at % 2], "user_id": "uv"[at % 2], "mail": "x", "run": str(at)})
        for at in range(20)
    ]
    log = survey(*lines)
    assert log.dimensions["team"] == {"a": 10, "b": 10}
    assert not {"user_id", "mail", "run", "model"} & log.dimensions.keys()
    by_address = [ask(metadata={"route": f"{name}@example.org"}) for name in "ab"]
    assert "route" not in survey(*by_address).dimensions


def _lines_of_fixtures():
    for path in sorted(LOGS.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                yield Unreadable("not JSON")
    yield json.loads((LOGS / "otlp.json").read_text("utf-8"))


FIXTURES = tuple(_lines_of_fixtures())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([MARK, "", "{}"])
)
KEYS = st.sampled_from(["role", "content", "type", "text", "messages", "body", "key", "value", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def _places(value, place=()):
    yield place
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _places(part, (*place, key))
    elif isinstance(value, list):
        for at, part in enumerate(value):
            yield from _places(part, (*place, at))


@st.composite
def mixed_lines(draw):
    """Lines of the fixtures in which a value anywhere was replaced by another one."""
    line = copy.deepcopy(draw(st.sampled_from(FIXTURES)))
    if isinstance(line, Unreadable):
        return line
    place = draw(st.sampled_from(list(_places(line))))
    new = draw(VALUES)
    if not place:
        return new
    holder = line
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = new
    return line


@settings(max_examples=150)
@given(st.lists(mixed_lines(), max_size=6))
def test_every_line_is_an_item_or_is_counted_as_refused(lines):
    """Whatever a log has, the reading ends, every entry is accounted for, and no value is quoted."""
    log = survey(*lines, ask("whole"))
    assert len(log.items) + sum(one.count for one in log.refused) == log.lines >= len(lines)
    shown = [*log.notes, *(one.what for one in (*log.refused, *log.private)), log.proposed.why, log.form]
    assert MARK not in " ".join(shown)
    assert len(render_log(log).splitlines()) <= MOST_LINES
    with_labels = [one for counts in log.dimensions.values() for one in counts]
    assert all(len(label) <= 40 for label in with_labels)
    assert msgspec.json.decode(msgspec.json.encode(log.items), type=tuple[Item, ...]) == log.items
