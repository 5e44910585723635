"""Claims about checks of what a program acts upon: tool calls, finish reasons, stop strings, judgements."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.records import build_item

from draftproof.core.records import Judgement, ToolCall
from draftproof.workload.checks import evaluate_check, evaluate_checks, is_equal
from draftproof.workload.conversation import AnswerView
from draftproof.workload.faults import find_faults
from draftproof.workload.items import (
    FinishReasonCheck,
    FollowUp,
    JudgeCheck,
    PythonCheck,
    StopCheck,
    ToolCallCheck,
)

SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["city"]}
BERGEN = ToolCall("get_weather", '{"city": "Bergen", "days": 2}')
MAIL = ToolCall("send_mail", '{"to": "x"}')


@pytest.mark.parametrize(
    ("check", "calls", "passed", "said"),
    [
        (ToolCallCheck(), (BERGEN,), True, "called: get_weather"),
        (ToolCallCheck(), (), False, "wanted a call, called: none"),
        (ToolCallCheck(calls=0), (), True, "called: none"),
        (ToolCallCheck(calls=0), (MAIL,), False, "wanted 0 calls, called: send_mail"),
        (ToolCallCheck(calls=2), (BERGEN,), False, "wanted 2 calls"),
        (ToolCallCheck(names=("get_weather", "send_mail")), (MAIL, BERGEN), True, "called"),
        (ToolCallCheck(names=("get_weather",)), (MAIL,), False, "not called: get_weather"),
        (ToolCallCheck(names=("get_weather",), schema=SCHEMA), (BERGEN, MAIL), True, "called"),
        (ToolCallCheck(schema=SCHEMA), (BERGEN, MAIL), False, "send_mail: $: 'city'"),
        (ToolCallCheck(), (ToolCall("f", '{"city": '),), False, "no JSON object"),
        (ToolCallCheck(), (ToolCall("f", "[1]"),), False, "no JSON object"),
        (ToolCallCheck(), (ToolCall("f", ""),), True, "called"),
        (ToolCallCheck(arguments={"city": "Bergen"}), (BERGEN,), True, "called"),
        (ToolCallCheck(arguments={"city": "Oslo"}), (BERGEN,), False, "argument city is 'Bergen'"),
        (ToolCallCheck(arguments={"hour": 1}), (BERGEN,), False, "argument hour is missing"),
        (ToolCallCheck(arguments={"city": "Bergen"}, match="exact"), (BERGEN,), False, "its arguments are"),
        (ToolCallCheck(arguments={"city": "Bergen", "days": 2.0}, match="exact"), (BERGEN,), True, "called"),
        (ToolCallCheck(arguments={"days": True}), (BERGEN,), False, "argument days"),
    ],
)
def test_a_tool_call_check_judges_names_number_and_arguments(check, calls, passed, said):
    """Each part of the check fails for its own reason and passes where all is as wanted."""
    result = evaluate_check(check, AnswerView(tool_calls=calls))
    assert (result.passed, said in result.detail) == (passed, True), result


def test_arguments_under_a_schema_that_cannot_be_applied_are_undecided():
    """A reference that leads nowhere is no fault of the answer."""
    check = ToolCallCheck(schema={"$ref": "#/$defs/missing"})
    assert evaluate_check(check, AnswerView(tool_calls=(BERGEN,))).passed is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, VALUES)
def test_two_json_values_are_equal_exactly_if_they_are_written_the_same(one, other):
    """True is not 1 at any depth; the order of keys does not matter."""
    written = [msgspec.json.encode(value, order="deterministic") for value in (one, other)]
    assert is_equal(one, other) is (written[0] == written[1])


@pytest.mark.parametrize(
    ("reason", "passed"), [("stop", True), ("tool_calls", True), ("length", False), (None, None)]
)
def test_a_finish_reason_is_one_of_those_wanted(reason, passed):
    """A service that gives none leaves the check undecided."""
    check = FinishReasonCheck(any_of=("stop", "tool_calls"))
    assert evaluate_check(check, AnswerView(finish_reason=reason)).passed is passed


@pytest.mark.parametrize(
    ("check", "text", "reason", "passed"),
    [
        (StopCheck(), "all is well", "stop", True),
        (StopCheck(), "all is well END", "stop", False),
        (StopCheck(), "all is well", "length", False),
        (StopCheck(), "all is well", None, None),
        (StopCheck(ended=False), "all is well", "length", True),
        (StopCheck(strings=("well",)), "all is well", "stop", False),
    ],
)
def test_a_stop_string_ends_the_answer_and_is_not_in_it(check, text, reason, passed):
    """The strings are those the item sends, unless the check names its own."""
    answer = AnswerView(text=text, finish_reason=reason)
    assert evaluate_check(check, answer, stop=("END",)).passed is passed


def test_a_stop_check_of_an_item_without_stop_strings_is_undecided():
    """There is nothing that could have been honoured."""
    assert evaluate_check(StopCheck(), AnswerView(text="x", finish_reason="stop")).passed is None


def test_checks_and_stop_strings_are_those_of_the_turn():
    """A follow-up is judged by its own checks, with the item's stop strings unless it has its own."""
    later = (
        FollowUp(content="and?", checks=(StopCheck(critical=True),)),
        FollowUp(content="so?", checks=(StopCheck(),), stop=("B",)),
    )
    item = build_item(stop=("A",), checks=(FinishReasonCheck(any_of=("stop",)),), follow_ups=later)
    answer = AnswerView(text="xA", finish_reason="stop")
    judged = [evaluate_checks(item, answer, turn) for turn in range(3)]
    assert [[one.kind for one in own] for own in judged] == [["finish_reason"], ["stop"], ["stop"]]
    assert [own[0].passed for own in judged] == [True, False, True]
    assert judged[1][0].critical


def judgement(answer, *, passed=True, attempt=0, check=0):
    return Judgement(
        request_id="r",
        item_id="i",
        check=check,
        kind="judge",
        passed=passed,
        detail="said so",
        by="m",
        source_sha256="0",
        answer_sha256=answer.sha256,
        attempt=attempt,
    )


JUDGE = JudgeCheck(rubric="Is it polite?", critical=True)


@pytest.mark.parametrize(
    ("passes", "passed", "said"),
    [
        ((), None, "not judged"),
        ((True,), True, "said so"),
        ((False, False), False, "said so"),
        ((True, False), None, "do not agree"),
        ((True, None), None, "do not agree"),
    ],
)
def test_a_judge_passes_an_answer_only_if_all_its_passes_do(passes, passed, said):
    """No judgement and judgements that differ are both undecided, never a pass."""
    answer = AnswerView(text="Good day.")
    found = tuple(judgement(answer, passed=one, attempt=n) for n, one in enumerate(passes))
    result = evaluate_check(JUDGE, answer, judgements=found)
    assert (result.passed, result.kind, result.critical) == (passed, "judge", True)
    assert said in result.detail


def test_a_judgement_of_another_answer_does_not_count():
    """An answer that was changed after it was judged is not judged."""
    stored = judgement(AnswerView(text="Good day."))
    result = evaluate_check(JUDGE, AnswerView(text="Go away."), judgements=(stored,))
    assert (result.passed, result.detail) == (None, "judged for another answer")


def test_judgements_are_found_by_the_index_of_their_check():
    """The second check of an item takes the second check's judgement."""
    item = build_item(checks=(PythonCheck(function="a.py:f"), JUDGE))
    answer = AnswerView(text="x")
    results = evaluate_checks(item, answer, 0, {1: (judgement(answer, check=1),)})
    assert [one.passed for one in results] == [None, True]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"checks": (ToolCallCheck(calls=-1),)}, "calls must be 0 or more"),
        ({"checks": (ToolCallCheck(calls=0, names=("f",)),)}, "wants no call"),
        ({"checks": (ToolCallCheck(schema={"type": "nonsense"}),)}, "JSON schema is not valid"),
        ({"checks": (FinishReasonCheck(any_of=()),)}, "needs any_of"),
        ({"checks": (PythonCheck(function="judge.py"),)}, "function must be"),
        ({"checks": (PythonCheck(function="a.py:f", timeout_s=0),)}, "timeout_s must be"),
        ({"checks": (JudgeCheck(rubric="r", verdicts=("yes",)),)}, "two different words"),
        ({"checks": (JudgeCheck(rubric="r", expected="maybe"),)}, "none of verdicts"),
        (
            {"checks": (JudgeCheck(rubric="r", verdicts=("good", "not good"), expected="good"),)},
            "stands in another verdict",
        ),
        ({"checks": (JudgeCheck(rubric="r", prompt="{question}"),)}, "must hold {answer}"),
        ({"checks": (JudgeCheck(rubric="r", prompt="{answer} {arm}"),)}, "prompt holds {arm}"),
        ({"follow_ups": (FollowUp(),)}, "follow_ups[0] needs content"),
        ({"follow_ups": (FollowUp(content="x", max_tokens=0),)}, "follow_ups[0].max_tokens"),
        (
            {"follow_ups": (FollowUp(content="x", checks=(FinishReasonCheck(any_of=()),)),)},
            "follow_ups[0].checks[0]",
        ),
    ],
)
def test_an_unusable_check_is_named_before_anything_is_asked(fields, said):
    """One sentence names the key at fault."""
    assert said in next(find_faults(build_item(**fields)))
