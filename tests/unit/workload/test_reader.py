"""Claims about loading workloads: formats, hash, and one clear error with place and fix for each fault."""

import json
from pathlib import Path

import pytest

from draftproof.core.errors import WorkloadError
from draftproof.workload.faults import encloses_repeat
from draftproof.workload.reader import load_workload

ITEM: dict[str, object] = {
    "id": "a",
    "messages": [{"role": "user", "content": "Hi"}],
    "segments": {"task": "chat"},
}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "w.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def fault_of(path: Path | str) -> WorkloadError:
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    return caught.value


def test_items_are_read_in_file_order(tmp_path):
    """Items keep the order of the file, and blank lines do not count."""
    workload = load_workload(write(tmp_path, ITEM | {"id": "b"}, "", ITEM))
    assert [item.id for item in workload.items] == ["b", "a"]


def test_byte_order_mark_is_skipped(tmp_path):
    """A file saved with a byte-order mark loads like one without."""
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ITEM).encode() + b"\r\n")
    assert load_workload(path).items[0].id == "a"


def test_hash_ignores_white_space_and_key_order(tmp_path):
    """The hash depends on what items say, not on how the file is laid out."""
    one = load_workload(write(tmp_path, ITEM)).sha256
    turned = {key: ITEM[key] for key in reversed(ITEM)}
    assert load_workload(write(tmp_path, "", json.dumps(turned, indent=None) + "   ")).sha256 == one


def test_hash_ignores_defaults_that_are_written_out(tmp_path):
    """Stating a default changes nothing."""
    one = load_workload(write(tmp_path, ITEM)).sha256
    assert load_workload(write(tmp_path, ITEM | {"max_tokens": 64, "stop": []})).sha256 == one


@pytest.mark.parametrize(
    "change",
    [
        {"id": "z"},
        {"max_tokens": 65},
        {"messages": [{"role": "user", "content": "Hi "}]},
        {"segments": {"task": "code"}},
        {"sampling": {"temperature": 0.5}},
        {"checks": [{"type": "length"}]},
    ],
)
def test_hash_sees_every_change_of_content(tmp_path, change):
    """Any change of an item gives another hash."""
    one = load_workload(write(tmp_path, ITEM)).sha256
    assert load_workload(write(tmp_path, ITEM | change)).sha256 != one


def test_hash_sees_the_order_of_items(tmp_path):
    """Two files with the same items in another order are two workloads."""
    other = ITEM | {"id": "b"}
    one = load_workload(write(tmp_path, ITEM, other)).sha256
    assert load_workload(write(tmp_path, other, ITEM)).sha256 != one


FAULTS: list[tuple[dict[str, object] | str, str]] = [
    ("{not json", "not JSON"),
    (json.dumps(ITEM)[:-1] + ', "max_tokens": 5, "max_tokens": 9}', "'max_tokens' stands twice"),
    (json.dumps(ITEM)[:-1] + ', "request": {"a": {"b": 1, "b": 1}}}', "'b' stands twice"),
    (json.dumps(ITEM)[:-1] + ",}", "not JSON"),
    ("\ufeff" + json.dumps(ITEM), "not JSON"),
    ("[1]x", "not JSON"),
    ("17", "expected `object`"),
    (ITEM | {"weight": 1}, "unknown field `weight`"),
    (ITEM | {"max_tokens": "many"}, "$.max_tokens"),
    (ITEM | {"max_tokens": 0}, "max_tokens must be 1 or more"),
    (ITEM | {"messages": []}, "messages is empty"),
    (ITEM | {"messages": [{"role": "user", "content": " "}]}, "last message is empty"),
    (ITEM | {"messages": [{"role": "boss", "content": "x"}]}, "$.messages[0].role"),
    (ITEM | {"id": " "}, "id is empty"),
    (ITEM | {"checks": [{"type": "vibe"}]}, "$.checks[0]"),
    (ITEM | {"checks": [{"type": "regex", "pattern": "("}]}, "not a regular expression"),
    (ITEM | {"checks": [{"type": "regex", "pattern": "(a+)+$"}]}, "may never end"),
    (ITEM | {"checks": [{"type": "json_schema", "schema": {"type": "objekt"}}]}, "JSON schema is not valid"),
    (ITEM | {"checks": [{"type": "json_schema", "schema": {"$ref": "http://x/y"}}]}, "refers to"),
    (ITEM | {"checks": [{"type": "json_schema", "schema": {"anyOf": [{"$ref": "y"}]}}]}, "refers to"),
    (ITEM | {"checks": [{"type": "contains"}]}, "contains needs"),
    (ITEM | {"checks": [{"type": "numeric", "value": 1, "tolerance": -1}]}, "tolerance"),
    (ITEM | {"checks": [{"type": "length", "min_chars": 9, "max_chars": 3}]}, "below min_chars"),
    (ITEM | {"checks": [{"type": "json_schema", "schema": {"pattern": "("}}]}, "JSON schema is not valid"),
    ('{"id": "\\ud800"}', "cannot be sent"),
    ('{"max_tokens": NaN}', "NaN is not JSON"),
    (f'{{"max_tokens": {"9" * 5000}}}', "cannot be sent"),
    (json.dumps(ITEM)[:-1] + ', "sampling": {"temperature": 1e999}}', "1e999 is too large"),
    (json.dumps(ITEM)[:-1] + ', "request": {"logit_bias": {"5": -1e999}}}', "-1e999 is too large"),
    (json.dumps(ITEM)[:-1] + f', "sampling": {{"seed": {1 << 64}}}}}', "more than 64 bits"),
    (ITEM | {"response_schema": {"type": 5}}, "response_schema"),
    (ITEM | {"sampling": {"temperature": -1}}, "temperature"),
    (ITEM | {"sampling": {"top_p": 0}}, "top_p"),
    (ITEM | {"sampling": {"top_k": -2}}, "top_k"),
]


@pytest.mark.parametrize(("line", "words"), FAULTS)
def test_fault_names_file_line_and_fix(tmp_path, line, words):
    """Each bad line ends in one sentence with file, line number and a fix."""
    error = fault_of(write(tmp_path, ITEM | {"id": "first"}, line))
    assert words in error.message
    assert error.place is not None
    assert error.place.endswith("w.jsonl:2")
    assert error.fix
    assert "\n" not in str(error)


def test_duplicate_ids_name_both_lines(tmp_path):
    """The error of a duplicate id names the line and the earlier one."""
    error = fault_of(write(tmp_path, ITEM, "", ITEM))
    assert error.place is not None
    assert error.place.endswith(":3")
    assert "w.jsonl:1" in error.message


@pytest.mark.parametrize("other", ["a+1", "a#fill3", "a#measure12.1", "a~2", "a+1#fill3"])
def test_an_id_that_a_run_makes_itself_is_refused(tmp_path, other):
    """A later turn of a conversation, a request that does not count and a copy have such names."""
    error = fault_of(write(tmp_path, ITEM, ITEM | {"id": other}))
    assert repr(other) in error.message
    assert "'a'" in error.message
    assert load_workload(write(tmp_path, ITEM | {"id": other}, ITEM | {"id": "a+b"})).items


def test_invalid_utf8_names_the_line(tmp_path):
    """A byte that is not UTF-8 is reported with its line."""
    path = tmp_path / "w.jsonl"
    path.write_bytes(json.dumps(ITEM).encode() + b'\n{"id": "\xff"}\n')
    error = fault_of(path)
    assert "not valid UTF-8" in error.message
    assert str(error.place).endswith(":2")


@pytest.mark.parametrize("content", ["", "\n  \n", "[]"])
def test_empty_file_is_an_error(tmp_path, content):
    """A file without an item is refused."""
    assert "no item" in fault_of(write(tmp_path, content)).message


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_file_that_cannot_be_read_is_an_error(tmp_path, name):
    """A missing file or a folder ends in one sentence, not in an operating-system error."""
    assert "cannot be read" in fault_of(tmp_path / name).message


def test_deep_nesting_is_an_error(tmp_path):
    """JSON nested beyond the parser's depth is a fault of the line."""
    assert "nested" in fault_of(write(tmp_path, '{"id":' + "[" * 200_000)).message


def test_unknown_builtin_lists_the_known_ones():
    """A wrong builtin name is answered with the names that exist."""
    assert "builtin:starter" in str(fault_of("builtin:nope").fix)


def test_header_is_read(tmp_path):
    """The file beside the workload states name, version, licence and evidence."""
    (tmp_path / "w.meta.toml").write_text(
        'name = "n"\nversion = "2"\nlicence = "CC0-1.0"\nevidence = "representative"\n'
    )
    workload = load_workload(write(tmp_path, ITEM))
    assert (workload.name, workload.version, workload.evidence) == ("n", "2", "representative")


def test_without_header_only_a_smoke_test_is_claimed(tmp_path):
    """Evidence that nobody stated is the weakest."""
    workload = load_workload(write(tmp_path, ITEM))
    assert (workload.name, workload.evidence) == ("w", "smoke")


@pytest.mark.parametrize("text", ["name = ", 'name = "n"\nevidence = "sure"', 'name = "n"\nowner = "x"'])
def test_bad_header_is_an_error(tmp_path, text):
    """A header that is not TOML or not of the known shape is refused by name."""
    (tmp_path / "w.meta.toml").write_text(text)
    assert str(fault_of(write(tmp_path, ITEM)).place).endswith("w.meta.toml")


def test_sharegpt_is_read(tmp_path):
    """A ShareGPT conversation becomes an item that ends with the person's last turn."""
    turns = [("human", "One?"), ("gpt", "1"), ("human", "Two?"), ("gpt", "2")]
    conversation = {"id": 7, "conversations": [{"from": who, "value": said} for who, said in turns]}
    (item,) = load_workload(write(tmp_path, json.dumps([conversation]))).items
    assert [message.role for message in item.messages] == ["user", "assistant", "user"]
    assert item.segments == {"task": "unlabelled"}


def test_openai_batch_is_read(tmp_path):
    """An OpenAI batch line keeps messages, limits, sampling, stop strings, tools and schema."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "max_tokens": 9,
        "temperature": 0.5,
        "stop": "END",
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    }
    line = {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": body}
    (item,) = load_workload(write(tmp_path, line)).items
    assert (item.id, item.max_tokens, item.sampling.temperature, item.stop) == ("q", 9, 0.5, ("END",))
    assert item.messages[0].content == "Hi"
    assert item.response_schema == {"type": "object"}
    assert len(item.tools) == 1


@pytest.mark.parametrize(
    "line",
    [
        {"custom_id": "q", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "q", "url": "/v1/chat/completions", "body": {"messages": [5]}},
        {
            "custom_id": "q",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        },
        {"custom_id": "q", "url": "/v1/chat/completions", "body": {"response_format": 3}},
        {"id": "s", "conversations": [{"from": "alien", "value": "x"}]},
        {"id": "s", "conversations": "x"},
    ],
)
def test_foreign_line_with_a_fault_is_an_error(tmp_path, line):
    """A ShareGPT or batch line that cannot become an item is refused with its place."""
    assert str(fault_of(write(tmp_path, line)).place).endswith("w.jsonl:1")


@pytest.mark.parametrize(
    ("pattern", "dangerous"),
    [
        ("(a+)+", True),
        ("(?:x*y)*", True),
        ("(a{2,}b)+", True),
        ("(a+)?", False),
        ("(ab)+c*", False),
        (r"[(+]+\(a+\)+", False),
        (r"([*+]a)+", False),
        (r"\d+(,\d{3})*", False),
    ],
)
def test_nested_repeats_are_recognised(pattern, dangerous):
    """Only a live repeat around a live repeat is dangerous; escapes and classes are not."""
    assert encloses_repeat(pattern) is dangerous
