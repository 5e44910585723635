"""Quality where nobody wrote a check: greedy answers are held to the answers of the baseline."""

import json

import msgspec
import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.workload.items import JsonSchemaCheck

ALL = ("baseline", "candidate", "alternative", "baseline_null")


def faster(case):
    return 12.0 if case.arm == "candidate" else 20.0


def differing(**every):
    """Answers that differ from the baseline's for every so many prompts, by arm."""

    def text(case):
        step = every.get(case.arm)
        return f"{case.arm} says otherwise" if step and case.number % step == 0 else "yes"

    return text


def make(world, **changes):
    settings = {"arms": ALL, "has_checks": False, "tpot_ms": faster, "items_per_segment": 40} | changes
    return world(loads=(("low", 1),), **settings).run()


def decide(world, **changes):
    return decide_run(make(world, **changes))


def test_answers_like_the_baselines_are_as_good(world):
    """Without any check a faster candidate that says the same is adopted."""
    assert decide(world).decision == "adopt"


@pytest.mark.parametrize("arm", ["candidate", "baseline_null"])
def test_what_equal_arms_do_is_no_fault(world, arm):
    """A candidate that differs as often as the null arm does is adopted; alone it is not."""
    together = decide(world, text=differing(candidate=4, baseline_null=4))
    assert together.decision == "adopt"
    alone = decide(world, text=differing(**{arm: 4}))
    assert (alone.decision == "adopt") is (arm == "baseline_null")


def test_the_difference_is_the_candidates_beyond_the_nulls(world):
    """A quarter of the answers against a tenth: fifteen points, in every row that shows it."""
    results = decide(world, text=differing(candidate=4, baseline_null=10))
    (row,) = [
        one
        for one in results.evidence.differences
        if (one.quantity, one.arm, one.versus, one.segment, one.load)
        == ("passed_share", "candidate", "baseline", "all", "low")
    ]
    assert row.difference.value == pytest.approx(-0.15)
    assert row.difference.n == 80
    assert any(reason.code == "guardrail_checks" for cell in results.cells for reason in cell.reasons)


def test_without_a_null_arm_every_changed_answer_counts(world):
    """Nothing shows then what two equal arms would do."""
    arms = ("baseline", "candidate")
    assert decide(world, arms=arms).decision == "adopt"
    assert decide(world, arms=arms, text=differing(candidate=4)).decision != "adopt"


def test_an_item_with_checks_is_held_to_them_alone(world):
    """Another answer that passes its check is as good."""
    changed = decide(world, has_checks=True, text=lambda case: f"yes, {case.arm}")
    assert changed.decision == "adopt"


@pytest.mark.parametrize(("quality", "temperature"), [("checks", 0.0), ("agreement", 1.0)])
def test_answers_of_chance_and_a_plan_of_checks_alone_show_nothing(world, quality, temperature):
    """Then no gain is claimed, and the first reason says what would help."""
    results = compute_results(make(world, temperature=temperature, comparison={"quality": quality}))
    assert results.verdict.decision == "inconclusive"
    assert "quality cannot be compared" in results.verdict.sentence


def test_a_question_of_latency_alone_says_so_first(world):
    """It can be answered, and neither the sentence nor the answer of the first page hides what it is."""
    from draftproof.tell.report.summary import answer

    results = compute_results(
        make(world, text=differing(candidate=2), comparison={"quality": "latency_only"})
    )
    assert results.verdict.decision == "adopt"
    assert results.verdict.sentence.startswith("Latency only, quality was not compared. Adopt")
    assert answer(results).startswith("Latency only. Adopt")
    assert any("Quality: the plan asks of latency alone." in text for text in results.not_measured)


def test_a_failed_answer_does_not_agree(world):
    """A candidate that fails where the baseline answers has not given its answer."""
    results = decide(
        world,
        outcome=lambda case: "http_error" if case.arm == "candidate" and case.number % 4 == 0 else "ok",
    )
    (row,) = [
        one
        for one in results.evidence.differences
        if (one.quantity, one.arm, one.versus, one.segment, one.load)
        == ("passed_share", "candidate", "baseline", "all", "low")
    ]
    assert row.difference.value == pytest.approx(-0.25)


def test_a_check_of_form_alone_does_not_stand_for_the_answer(world):
    """JSON of the right form with every value wrong is no good answer: the baseline's counts beside it."""
    schema = JsonSchemaCheck(schema={"type": "object"})

    def run(**answers):
        made = make(world, text=lambda case: json.dumps({"total": answers.get(case.arm, 1)}).ljust(40))
        items = tuple(msgspec.structs.replace(item, checks=(schema,)) for item in made.items)
        return decide_run(msgspec.structs.replace(made, items=items))

    assert run().decision == "adopt"
    assert run(candidate=2).decision != "adopt"


@pytest.mark.parametrize("segments", [("chat",), ("chat", "rewriting")])
def test_where_equal_arms_never_answer_alike_agreement_shows_nothing(world, segments):
    """A null arm that differs everywhere would hide a candidate that is wrong everywhere."""

    def text(case):
        return f"{case.arm} {case.number}" if case.segment in segments and case.arm != "baseline" else "yes"

    decided = decide(world, text=text)
    for cell in decided.cells:
        is_open = cell.segment.removeprefix("task=") in segments
        assert ("low_agreement" in {reason.code for reason in cell.reasons}) is is_open
        assert (cell.status == "gain") is not is_open
