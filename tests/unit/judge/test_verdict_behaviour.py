"""What no speed makes good: lost behaviour, wrong tool calls, broken conversations."""

from typing import Any, cast

import msgspec
import pytest

from draftproof.core.records import BehaviourProbe, Judgement, ProbeStatus, ToolCall
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.behaviour import PROBES, evaluate_probes
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.inform.evidence import find_evidence
from draftproof.judge.observe.run_data import prepare_run
from draftproof.workload.conversation import view_answer
from draftproof.workload.items import FollowUp, JudgeCheck, ToolCallCheck

FAST = {"tpot_ms": lambda case: 10.0 if case.arm == "candidate" else 20.0, "round_ms": lambda _: 10.0}
SMALL = {"segments": ("tools",), "loads": (("low", 1),), "items_per_segment": 40}


def probes(**by_arm: Any):
    """One line for each probe and arm; an arm is a status for all probes, or statuses by probe."""
    return tuple(
        BehaviourProbe(
            arm=arm,
            probe=probe,
            status=cast("ProbeStatus", said if isinstance(said, str) else said.get(probe, "passed")),
            detail="as seen",
            at_ns=place,
            http_status=200,
        )
        for arm, said in by_arm.items()
        for place, probe in enumerate(PROBES)
    )


def judged(run, **changes):
    return compute_results(msgspec.structs.replace(run, **changes))


@pytest.fixture(scope="module")
def fast_run(world):
    return world(**FAST, **SMALL).run()


def test_a_candidate_that_behaves_as_the_baseline_is_adopted_for_its_speed(fast_run):
    """Probes that pass in both arms take nothing from a gain."""
    results = judged(fast_run, behaviours=probes(baseline="passed", candidate="passed"))
    assert results.verdict.decision == "adopt"
    assert len(results.behaviour) == 2 * len(PROBES)


@pytest.mark.parametrize("status", ["failed", "unsupported"])
@pytest.mark.parametrize("probe", ["stop_string", "tool_call", "cancel_stops_work"])
def test_what_the_baseline_passes_and_the_candidate_loses_blocks_whatever_the_speed(fast_run, probe, status):
    """Twice as fast and still harm in every cell, with the probe as the first reason and as evidence."""
    found = probes(baseline="passed", candidate={probe: status})
    results = judged(fast_run, behaviours=found)
    assert results.verdict.decision == "defer"
    assert {cell.status for cell in results.cells} == {"harm"}
    reasons = [one for one in results.verdict.reasons if one.code == "behaviour_regression"]
    assert len(reasons) == 1
    assert PROBES[probe] in reasons[0].text
    rows = find_evidence(results, reasons[0])
    assert [(row.row.arm, row.row.probe, row.row.status) for row in rows] == [("candidate", probe, status)]


@pytest.mark.parametrize(
    ("baseline", "candidate", "warned"),
    [
        ("failed", "failed", "both fail"),
        ("unsupported", "unsupported", None),
        ("unknown", "failed", "does not pass"),
        ("passed", "unknown", "it is not known"),
        ("failed", "passed", None),
    ],
)
def test_what_is_no_loss_does_not_block_and_is_said_where_it_is_a_fault(
    fast_run, baseline, candidate, warned
):
    """A fault of both arms, or one that was not there before, is a warning; a refusal by both is neither."""
    found = probes(baseline={"stop_string": baseline}, candidate={"stop_string": candidate})
    results = judged(fast_run, behaviours=found)
    assert results.verdict.decision == "adopt"
    said = [text for text in results.warnings if PROBES["stop_string"] in text]
    assert len(said) == (warned is not None)
    assert all(warned in text for text in said if warned)


def test_of_several_answers_to_a_probe_the_worst_counts(fast_run):
    """A resumed run that asked twice cannot turn a failure into a pass."""
    twice = (*probes(baseline="passed", candidate="failed"), *probes(candidate="passed"))
    run = msgspec.structs.replace(fast_run, behaviours=twice)
    assert len(evaluate_probes(prepare_run(run))) == len(PROBES)
    reverse = msgspec.structs.replace(fast_run, behaviours=tuple(reversed(twice)))
    assert evaluate_probes(prepare_run(reverse)) == evaluate_probes(prepare_run(run))


def test_a_run_without_probes_says_that_nothing_was_probed(fast_run):
    """Runs from before there were probes keep their verdict."""
    results = judged(fast_run)
    assert results.verdict.decision == "adopt"
    assert results.behaviour == ()
    assert any("not probed" in text for text in results.not_measured)


WEATHER = ToolCallCheck(names=("get_weather",), arguments={"city": "Bergen"}, critical=True)
RIGHT, WRONG = ToolCall("get_weather", '{"city": "Bergen"}'), ToolCall("get_weather", '{"city": "Oslo"}')


def with_calls(run, check, is_wrong):
    items = tuple(msgspec.structs.replace(item, checks=(check,)) for item in run.items)
    records = tuple(
        msgspec.structs.replace(one, tool_calls=(WRONG if is_wrong(one) else RIGHT,)) for one in run.records
    )
    return msgspec.structs.replace(run, items=items, records=records)


def test_one_new_critical_tool_call_blocks_a_candidate_twice_as_fast(fast_run):
    """One wrong argument of forty at a load is one too many where the plan allows none."""
    run = with_calls(fast_run, WEATHER, lambda one: one.arm == "candidate" and one.item_id == "tools-3")
    results = compute_results(run)
    assert results.verdict.decision == "defer"
    assert any(reason.code == "critical_errors" for reason in results.verdict.reasons)
    kinds = {(one.arm, one.kind): one for one in results.check_kinds}
    assert kinds["candidate", "tool_call"].critical_failed == 1
    assert kinds["baseline", "tool_call"].critical_failed == 0


def test_a_wrong_call_of_both_arms_is_no_loss(fast_run):
    """The candidate is held to what the baseline does."""
    results = decide_run(with_calls(fast_run, WEATHER, lambda one: one.item_id == "tools-3"))
    assert results.decision == "adopt"


def test_a_wrong_call_that_is_not_critical_is_weighed_by_the_margin(fast_run):
    """One of forty is within the margin of passed checks."""
    check = msgspec.structs.replace(WEATHER, critical=False)
    run = with_calls(fast_run, check, lambda one: one.arm == "candidate" and one.item_id == "tools-3")
    assert decide_run(run).decision == "adopt"


JUDGE = JudgeCheck(rubric="Polite?", critical=True)


def judgements(run, said):
    return tuple(
        Judgement(
            request_id=one.request_id,
            item_id=one.item_id,
            check=0,
            kind="judge",
            passed=said(one, attempt),
            detail="said so",
            by="m",
            source_sha256="0",
            answer_sha256=view_answer(one).sha256,
            attempt=attempt,
        )
        for one in run.records
        for attempt in (0, 1)
        if said(one, attempt) is not ...
    )


def with_judge(run, said):
    items = tuple(msgspec.structs.replace(item, checks=(JUDGE,)) for item in run.items)
    return msgspec.structs.replace(run, items=items, judgements=judgements(run, said))


def test_critical_answers_that_nobody_judged_withhold_the_gain(fast_run):
    """A missing judgement is never a pass, and the way to get it is said."""
    results = compute_results(with_judge(fast_run, lambda _one, _attempt: ...))
    assert results.verdict.decision == "inconclusive"
    (cell,) = results.cells
    assert "critical_unjudged" in {reason.code for reason in cell.reasons}
    assert any("draftproof judge" in text for text in results.warnings)


def test_judged_answers_count_and_the_order_of_judgements_does_not(fast_run):
    """All passes in agreement adopt; shuffled judgements give the same results."""
    run = with_judge(fast_run, lambda _one, _attempt: True)
    results = compute_results(run)
    assert results.verdict.decision == "adopt"
    assert [(one.answers, one.agreed) for one in results.judges] == [(80, 80)]
    backwards = msgspec.structs.replace(run, judgements=tuple(reversed(run.judgements)))
    assert compute_results(backwards) == results


def test_passes_that_do_not_agree_are_counted_and_not_taken_for_either(fast_run):
    """The share of agreement is told; what the passes differ on is not judged."""
    run = with_judge(fast_run, lambda one, attempt: not (attempt and one.item_id == "tools-1"))
    results = compute_results(run)
    assert [(one.answers, one.agreed) for one in results.judges] == [(80, 78)]
    assert sum(one.unjudged for one in results.check_kinds) == 2
    assert any("78 of 80" in text for text in results.warnings)


def converse(run, broken):
    """Give every item a second period, which is not answered where `broken` says so."""
    items = tuple(
        msgspec.structs.replace(item, follow_ups=(FollowUp(content="and?", checks=item.checks),))
        for item in run.items
    )
    later = [
        msgspec.structs.replace(one, request_id=f"{one.request_id}+1", conversation_turn=1)
        for one in run.records
    ]
    later = [
        msgspec.structs.replace(one, outcome="cancelled", chunks=(), rounds=None, speculation=None, text="")
        if broken(one)
        else one
        for one in later
    ]
    return msgspec.structs.replace(run, items=items, records=(*run.records, *later))


def test_every_period_of_a_conversation_is_paired_with_the_same_period(fast_run):
    """Twice the requests, twice the pairs, the same clusters; all conversations are completed."""
    results = compute_results(converse(fast_run, lambda _one: False))
    assert results.counts["pairs"] == 80
    assert results.counts["repeated"] == 0
    assert results.counts["prompts"] == 40
    assert results.verdict.decision == "adopt"
    rows = {one.arm: one for one in results.conversations}
    assert (rows["candidate"].conversations, rows["candidate"].multi_turn) == (40, 40)
    assert (rows["candidate"].requests, rows["candidate"].completed, rows["candidate"].good) == (80, 40, 40)


def test_conversations_that_break_off_are_counted_as_failures(fast_run):
    """Half of the candidate's second turns lost: half of its conversations, and no adoption."""
    results = compute_results(
        converse(fast_run, lambda one: one.arm == "candidate" and int(one.item_id.split("-")[1]) % 2 == 0)
    )
    rows = {one.arm: one for one in results.conversations}
    assert (rows["candidate"].completed, rows["baseline"].completed) == (20, 40)
    assert rows["candidate"].completed_share.value == pytest.approx(0.5)
    assert results.verdict.decision == "defer"


def test_a_conversation_whose_later_period_is_missing_is_neither_complete_nor_the_run(fast_run):
    """A period that was never asked is a gap of the run, not an answer."""
    run = converse(fast_run, lambda _one: False)
    cut = msgspec.structs.replace(
        run, records=tuple(one for one in run.records if one.request_id[-4:] != "te+1")
    )
    assert len(cut.records) < len(run.records)
    results = compute_results(cut)
    assert results.verdict.decision == "inconclusive"
    assert {one.arm: one.completed for one in results.conversations}["candidate"] == 0
