"""Claims about what functions and judge models are asked, and what a judge's words mean."""

import pytest
from tests.builders.records import build_failure, build_item, build_record

from draftproof.core.records import ToolCall
from draftproof.workload.checks import (
    hash_judge,
    list_tasks,
    make_judgement,
    read_verdict,
    render_prompt,
)
from draftproof.workload.conversation import AnswerView
from draftproof.workload.items import ExactCheck, FollowUp, JudgeCheck, PythonCheck

JUDGE = JudgeCheck(rubric="Polite?")
PYTHON = PythonCheck(function="f.py:f")
ITEM = build_item("a", checks=(ExactCheck(value="x"), PYTHON, JUDGE))


def tasks(*records, known=(), seed=1, items=(ITEM,)):
    return list_tasks(records, items, known, seed)


def records(count, arm="baseline"):
    return [build_record(item_id="a", arm=arm, block=n, text=f"text {n}") for n in range(count)]


def test_every_answered_request_is_judged_once_by_a_function_and_twice_by_a_judge():
    """Checks that the text itself settles need nobody."""
    found = tasks(*records(1))
    assert [(one.check_index, one.kind, one.attempt) for one in found] == [
        (1, "python", 0),
        (2, "judge", 0),
        (2, "judge", 1),
    ]


def test_failed_and_uncounted_requests_are_not_judged():
    """There is no answer, or none that counts."""
    assert tasks(build_failure(item_id="a"), build_record(item_id="a", phase="warmup")) == ()


def test_what_is_judged_is_not_asked_again_unless_the_answer_is_another():
    """A journal that was judged in part is judged to its end, no further."""
    (record,) = records(1)
    first = tasks(record)
    known = [make_judgement(one, (True, "ok"), by="m", source_sha256="0") for one in first]
    assert tasks(record, known=known) == ()
    other = build_record(item_id="a", text="changed")
    assert len(tasks(other, known=known)) == 3


def test_the_order_is_drawn_by_the_seed_and_mixes_the_arms():
    """A judge that drifts meets both arms alike; the same seed gives the same order."""
    both = [*records(20), *records(20, "candidate")]
    one, again, other = tasks(*both), tasks(*reversed(both)), tasks(*both, seed=2)
    assert [task.request_id for task in one] == [task.request_id for task in again]
    assert [task.request_id for task in one] != [task.request_id for task in other]
    first = [task.request_id for task in one if task.attempt == 0 and task.kind == "judge"]
    assert 5 <= sum("candidate" in name for name in first[:20]) <= 15
    attempts = [task.attempt for task in one]
    assert attempts == sorted(attempts)


def test_of_two_records_of_one_request_the_one_that_the_verdict_keeps_is_judged():
    """It is the one that ended first, whatever the order on disk."""
    early, late = build_record(item_id="a", text="early", end_ns=5), build_record(item_id="a", end_ns=9)
    assert {task.answer.text for task in tasks(late, early)} == {"early"}


def test_a_judge_sees_question_answer_and_rubric_and_not_the_arm():
    """Text in braces inside an answer is left as it is."""
    record = build_record(item_id="a", arm="candidate", text="Hello {rubric}")
    (task, *_) = [one for one in tasks(record) if one.kind == "judge"]
    prompt = render_prompt(task, JUDGE)
    assert "Say something about a." in prompt
    assert "Hello {rubric}" in prompt
    assert "Polite?" in prompt
    assert "yes, no" in prompt
    assert "candidate" not in prompt


def test_a_later_turn_is_judged_with_all_that_was_asked_before_it():
    """The question of a turn holds the person's messages up to it; its checks are its own."""
    item = build_item("a", follow_ups=(FollowUp(content="Why?", checks=(JUDGE,)),))
    record = build_record(item_id="a", conversation_turn=1, text="Because.")
    task = tasks(record, items=(item,))[0]
    assert (task.turn, task.check_index) == (1, 0)
    assert task.question == "Say something about a.\n\nWhy?"


def test_a_prompt_of_ones_own_takes_the_same_places():
    """Only the four names are filled in."""
    check = JudgeCheck(
        rubric="R", prompt="A={answer} {x} W={words}", verdicts=("good", "bad"), expected="good"
    )
    record = build_record(item_id="a", text="", tool_calls=(ToolCall("f", "{}"),))
    task = tasks(record, items=(build_item("a", checks=(check,)),))[0]
    assert render_prompt(task, check) == "A=[calls f with {}] {x} W=good, bad"


@pytest.mark.parametrize(
    ("reply", "passed"),
    [
        ("yes", True),
        ("No.", False),
        ("**YES**\n", True),
        ("Verdict: no", False),
        ("yes and no", None),
        ("I cannot tell", None),
        ("yesterday", None),
        ("not a yes", None),
        ("This isn't **yes**.", None),
        ("Not at all clear, but yes", True),
        ("", None),
    ],
)
def test_a_reply_counts_only_with_exactly_one_verdict_word(reply, passed):
    """Words inside words do not count; both words, or none, tell nothing."""
    assert read_verdict(reply, JUDGE)[0] is passed


def test_the_hash_of_a_judge_depends_on_all_that_it_is():
    """Another model, rubric, prompt, word or field is another judge."""
    variants = [
        hash_judge("m", JUDGE, {}),
        hash_judge("n", JUDGE, {}),
        hash_judge("m", JUDGE, {"seed": 1}),
        hash_judge("m", JudgeCheck(rubric="Kind?"), {}),
        hash_judge("m", JudgeCheck(rubric="Polite?", expected="no"), {}),
        hash_judge("m", JudgeCheck(rubric="Polite?", prompt="{answer}"), {}),
    ]
    assert len(set(variants)) == len(variants)


def test_a_function_sees_the_answer_and_which_turn_of_which_item_it_is():
    """Times and the arm are not in its view."""
    (task, *_) = tasks(build_record(item_id="a", text="t", finish_reason="stop", output_tokens=3))
    view = task.view
    assert (view.text, view.finish_reason, view.output_tokens) == ("t", "stop", 3)
    assert (view.item_id, view.conversation_turn, len(view.messages)) == ("a", 0, 1)
    assert not {"arm", "load", "sent_ns"} & set(view.__struct_fields__)
    assert view.sha256 != AnswerView(text="t").sha256
