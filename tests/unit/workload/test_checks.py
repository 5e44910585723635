"""Claims about judging answers and about finding numbers and JSON in them."""

import pytest

from draftproof.workload.checks import REGEX_MAX_CHARS, evaluate_check, evaluate_checks
from draftproof.workload.conversation import AnswerView, find_json, find_numbers
from draftproof.workload.items import (
    Check,
    ContainsCheck,
    ExactCheck,
    Item,
    JsonSchemaCheck,
    LengthCheck,
    Message,
    NumericCheck,
    RegexCheck,
)

OBJECT = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}

CASES: list[tuple[Check, str, bool]] = [
    (ExactCheck(value="Saturn"), " Saturn\n", True),
    (ExactCheck(value="Saturn"), "saturn", False),
    (ExactCheck(value="Saturn", ignore_case=True), "SATURN", True),
    (ContainsCheck(all_of=("red", "Blue")), "blue and RED", True),
    (ContainsCheck(all_of=("red", "blue")), "red only", False),
    (ContainsCheck(any_of=("cat", "dog")), "a dog", True),
    (ContainsCheck(any_of=("cat", "dog")), "a bird", False),
    (ContainsCheck(none_of=("Martin",)), "Oliver", True),
    (ContainsCheck(none_of=("Martin",)), "Oliver and martin", False),
    (ContainsCheck(all_of=("Blue",), ignore_case=False), "blue", False),
    (ContainsCheck(all_of=("باريس",)), "العاصمة هي باريس", True),
    (NumericCheck(value=1250), "about 1,250 pounds", True),
    (NumericCheck(value=3, tolerance=0.2), "3.14", True),
    (NumericCheck(value=3, tolerance=0.1), "3.14", False),
    (NumericCheck(value=42, pick="last"), "15 + 27 = 42", True),
    (NumericCheck(value=20), "الجواب ٢٠", True),
    (NumericCheck(value=0), "no number here", False),
    (RegexCheck(pattern=r"^2\. b"), "1. a\n2. b", True),
    (RegexCheck(pattern=r"a.b"), "a\nb", True),
    (RegexCheck(pattern=r"^b$"), "abc", False),
    (JsonSchemaCheck(schema=OBJECT), '{"age": 3}', True),
    (JsonSchemaCheck(schema=OBJECT), '{"age": "3"}', False),
    (JsonSchemaCheck(schema=OBJECT), "no object", False),
    (LengthCheck(min_chars=2, max_chars=3), "  abc ", True),
    (LengthCheck(min_chars=2, max_chars=3), "abcd", False),
    (LengthCheck(), "   ", False),
]


@pytest.mark.parametrize(("check", "text", "passed"), CASES)
def test_check_judges_the_text(check, text, passed):
    """Each kind of check passes what it describes and nothing else, and gives a reason."""
    result = evaluate_check(check, AnswerView(text=text))
    assert result.passed is passed
    assert result.detail


def test_results_follow_the_item():
    """Results come in the order of the checks, with kind and criticality."""
    item = Item(
        id="a",
        messages=(Message(role="user", content="?"),),
        segments={"task": "x"},
        checks=(LengthCheck(), JsonSchemaCheck(schema=OBJECT, critical=True)),
    )
    results = evaluate_checks(item, AnswerView(text='{"age": 1}'))
    assert [(result.kind, result.critical) for result in results] == [
        ("length", False),
        ("json_schema", True),
    ]


def test_regex_beyond_its_limit_is_undecided():
    """A pattern not found in the part that is searched is undecided, not failed, when more text follows."""
    text = "x" * REGEX_MAX_CHARS + "needle"
    assert evaluate_check(RegexCheck(pattern="needle"), AnswerView(text=text)).passed is None


def test_schema_that_cannot_be_applied_is_undecided():
    """A reference that leads nowhere never turns into a pass or a failure of the answer."""
    check = JsonSchemaCheck(schema={"$ref": "#/$defs/missing"})
    result = evaluate_check(check, AnswerView(text="{}"))
    assert result.passed is None
    assert "cannot be applied" in result.detail


def test_number_beyond_float_range_is_undecided():
    """An answer with an absurd number cannot stop the judging of the others."""
    check = JsonSchemaCheck(schema={"properties": {"a": {"multipleOf": 0.1}}})
    assert evaluate_check(check, AnswerView(text='{"a": 1e999}')).passed is None


def test_pattern_that_does_not_compile_is_undecided():
    """An item built without the reader may hold a bad pattern; it is undecided, with the reason."""
    assert evaluate_check(RegexCheck(pattern="("), AnswerView(text="text")).passed is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,234,567.5", [1234567.5]),
        ("1,5", [1, 5]),
        ("1,2345", [1, 2345]),
        ("12345,678", [12345, 678]),
        ("-19 and \N{MINUS SIGN}4", [-19, -4]),
        ("2019-2021", [2019, 2021]),
        ("١٬٢٥٠٫٥", [1250.5]),  # noqa: RUF001 - Arabic digits are the subject
        ("۱۲", [12]),
        ("４２", [42]),  # noqa: RUF001 - full-width digits are the subject
        ("共5个", [5]),
        ("1\u202f000 km", [1000]),
        ("none", []),
    ],
)
def test_numbers_are_found_in_every_digit_script(text, numbers):
    """Thousands separators, decimals, minus signs and foreign digits are read as one number each."""
    assert find_numbers(text) == numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('Here:\n```json\n{"a": 1}\n```\nDone {x}', {"a": 1}),
        ('Sure! {"a": "}{"} and {"b": 2}', {"a": "}{"}),
        ('Use {name} like {"a": "\\"}"}', {"a": '"}'}),
        ('```\nnot json\n```\n{"a": 1}', {"a": 1}),
        ("null", None),
    ],
)
def test_json_is_found(text, value):
    """The whole text, a fenced block or the first block that parses is the answer's JSON value."""
    found = find_json(text)
    assert found is not None
    assert found.value == value


@pytest.mark.parametrize("text", ['{"a": {"b": 1}, "c', "", "{x}", "NaN", '{"a": NaN}', "[" * 100_000])
def test_cut_or_broken_json_is_not_found(text):
    """A value that never closes does not count, not even by an object inside it."""
    assert find_json(text) is None


def test_array_is_found_in_prose():
    """With an array wanted, the first bracketed block is taken."""
    found = find_json("The list: [1, 2] and {}", "[")
    assert found is not None
    assert found.value == [1, 2]
