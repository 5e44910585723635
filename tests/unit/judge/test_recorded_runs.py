"""Runs that real engines left behind, read and judged again.

They lie in tests/fixtures/runs, compacted by scripts/keep_run.py from what scripts/live-engines measured.
After a change of the method that is meant, `draftproof report tests/fixtures/runs/NAME` writes their results
anew.
"""

from pathlib import Path

import msgspec
import pytest
from tests.builders.references import list_references

from draftproof.judge.decide.wording import name_reason
from draftproof.judge.inform.evidence import find_evidence
from draftproof.judge.inform.questions import answer_questions
from draftproof.judge.inform.rollback import list_triggers
from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import Results
from draftproof.measure.run.reporting import recompute
from draftproof.services.engines import adapter_for
from draftproof.store import RunDirectory
from draftproof.tell.monitoring import watch_run

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"
NAMES = sorted(path.name for path in RUNS.glob("*") if path.is_dir())


@pytest.fixture(scope="module", params=NAMES)
def judged(request) -> tuple[RunDirectory, Results]:
    """A recorded run and what is computed from it now."""
    folder = RUNS / request.param
    return RunDirectory.open(folder), recompute(folder, write=False)


def test_there_are_runs_of_both_live_engines():
    """n-gram lookup on vLLM and on llama.cpp, and a draft model on vLLM."""
    assert NAMES == ["llamacpp-ngram", "vllm-draft-model", "vllm-ngram"]


def test_a_recorded_run_is_judged_to_the_same_bytes(judged):
    """Another machine, another day: the same results."""
    run, results = judged
    kept = (run.path / "results.json").read_bytes()
    assert (
        msgspec.json.format(msgspec.json.encode(results, order="sorted", enc_hook=str), indent=1) + b"\n"
        == kept
    )


def test_the_candidate_drafted_and_the_baseline_did_not(judged):
    """What the check before the run proved holds for every record of it."""
    run, _ = judged
    records = [one for one in run.load().records if one.outcome == "ok"]
    drafted = dict.fromkeys(("baseline", "candidate"), 0)
    for one in records:
        if one.arm in drafted and one.speculation is not None:
            drafted[one.arm] += one.speculation.num_draft_tokens
    assert drafted["baseline"] == 0
    assert drafted["candidate"] > 0


def test_client_and_service_agree_or_the_difference_is_explained(judged):
    """Tokens, drafts and steps of both sides: equal, close, or explained by what was broken off or cut."""
    _, results = judged
    rows = results.service_agreements
    assert rows
    assert [(row.arm, row.load, row.quantity) for row in rows if row.standing == "differs"] == []


def test_the_release_was_checked(judged):
    """The manifest names a release that the adapter knows."""
    run, _ = judged
    for arm in run.load_manifest().arms:
        assert adapter_for(arm.engine).facts.find_release(arm.engine_version) is not None


def test_greedy_agreement_is_told_beside_the_null(judged):
    """Neither equal nor a fault: how often outputs differ is told, and whether equal arms do as well."""
    _, results = judged
    against = {(one.arm, one.load): one for one in results.agreements if one.versus == "baseline"}
    for load, _ in results.loads:
        assert against["candidate", load].compared > 0
        assert against["baseline_null", load].compared > 0
        assert against["candidate", load].statement


def test_every_reference_leads_to_a_row(judged):
    """Reasons, guardrails and answers to the review questions rest on rows that the run has."""
    run, results = judged
    contents = run.load()
    for reference in set(list_references(results)):
        assert find_evidence(results, reference, manifest=contents.manifest, plan=contents.plan), reference


@pytest.fixture(scope="module")
def answers(judged):
    """The twelve answers of a recorded run, by key."""
    _, results = judged
    return {one.key: one for one in results.questions}


def percent(share):
    return f"{100 * share:.0f} %"


def test_the_answers_on_acceptance_give_the_share_that_the_run_shows(judged, answers):
    """Every label's share is in its row; nothing is undisclosed that a row or a counter discloses."""
    _, results = judged
    cells = [one for one in results.arm_cells if (one.arm, one.segment) == ("candidate", "all")]
    shown = {one.load: one.acceptance.draft_acceptance_rate for one in cells if one.acceptance is not None}
    assert shown
    assert answers["acceptance"].standing != "open"
    load = next(load for load in shown if f"at load {load}" in answers["acceptance"].answer)
    assert answers["acceptance"].answer.startswith(f"{percent(shown[load])} of drafted tokens")


def test_without_a_count_in_the_answers_the_counters_share_is_given(judged):
    """The service's counters tell the acceptance that the report shows; only the labels are missing."""
    run, results = judged
    bare = msgspec.structs.replace(results, label_acceptance=())
    asked = answer_questions(bare, run.load().plan, run.load_manifest())
    found = next(one for one in asked if one.key == "acceptance")
    counted = {
        one.load: one.draft_acceptance_rate
        for one in results.services
        if one.arm == "candidate" and one.draft_acceptance_rate is not None
    }
    assert bool(counted) is (found.standing == "partly")
    for load, share in counted.items():
        assert f"{percent(share)} of drafted tokens are accepted at load {load}" in found.answer
        assert find_evidence(results, Reference("counters", "candidate", at=load))


def test_the_answers_on_time_are_those_of_the_diagnosis(judged, answers):
    """Shares of decoding, bounds and ceilings are the rows' own."""
    _, results = judged
    for row in results.diagnosis:
        if f"load {row.load}" in answers["delay"].answer:
            assert f"{percent(row.decode_share)} of a request's time is decoding at load {row.load}" in (
                answers["delay"].answer
            )
        if f"load {row.load}" in answers["bound"].answer:
            assert f"{row.bound} at load {row.load}" in answers["bound"].answer


def test_the_answer_on_the_highest_load_is_that_of_its_cells(judged, answers):
    """Statuses are counted from the cells, the ratio is the effect's, what is open is in their reasons."""
    _, results = judged
    last = results.loads[-1][0]
    cells = [one for one in results.cells if one.load == last]
    for status in {one.status for one in cells}:
        count = sum(one.status == status for one in cells)
        assert f"{count} {status}" in answers["high_batch"].answer
    (effect,) = [
        one
        for one in results.effects
        if (one.metric, one.arm, one.versus, one.segment, one.load)
        == (results.metric, "candidate", "baseline", "all", last)
    ]
    assert f"{effect.ratio.value:.2f} ({effect.ratio.low:.2f}" in answers["high_batch"].answer
    asked = " ".join(answers["high_batch"].missing)
    still = [cell for cell in cells if cell.status == "inconclusive"]
    codes = {reason.code for cell in still for reason in cell.reasons}
    assert "more prompts" not in asked
    if still:
        words = {name_reason(code) for code in codes if not code.startswith("step_")}
        assert all(word in asked for word in words)


def test_the_answers_on_the_pair_are_those_of_the_contract(judged, answers):
    """Algorithm, runtime, licences and the way of switching off are the contract's words."""
    run, _ = judged
    contract = next(one for one in run.load_manifest().contracts if one.arm == "candidate")
    assert contract.algorithm in answers["method"].answer
    assert f"{contract.runtime} {contract.runtime_version}" in answers["method"].answer
    assert str(contract.target_licence) in answers["compatible"].answer
    assert contract.fallback in answers["disable"].answer


def test_the_answer_on_rollback_says_of_each_trigger_what_the_rules_do(judged):
    """What it calls watched is an alert of `rules`; what it calls unwatched is none."""
    run, results = judged
    contents = run.load()
    plan = type(contents.plan).model_validate(
        contents.plan.model_dump(mode="json") | {"rollback": {"holdout_share": 0.05, "max_ttft_ms": 500.0}}
    )
    watch = watch_run(results, plan, run.load_manifest())
    alerts = {alert.name for alert in watch.alerts}
    for one in list_triggers(plan):
        assert (ALERTS[one.limit] in alerts) is (one.unwatched is None), one.words


ALERTS = {
    "tail_ttft_s": "DraftproofFirstTokenTail",
    "tail_tpot_s": "DraftproofTokenTail",
    "slowdown": "DraftproofNetSlowdown",
    "failed_share": "DraftproofFailures",
    "failed_excess": "DraftproofFailures",
    "cache_usage": "DraftproofCachePressure",
    "preemptions": "DraftproofPreemptions",
    "acceptance_length": "DraftproofLowAcceptance",
    "critical_errors": "none",
}
