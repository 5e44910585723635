"""The twelve review questions: answered from what a run holds, or left open with what would answer them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from draftproof.core.manifests import Contract
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.questions import QUESTIONS, answer_questions
from draftproof.judge.results.inform import ServiceUse
from draftproof.tell.report.configuration import render_questions

CONTRACT = Contract(
    arm="candidate",
    target_model="m",
    target_revision=None,
    target_precision="float32",
    target_licence="Apache-2.0",
    target_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    drafter_kind="draft_model",
    drafter_identity="small",
    drafter_provenance="us",
    drafter_licence="MIT",
    drafter_sha256="c" * 64,
    tokenizer_compatible=True,
    tokenizer_differences=(),
    runtime="vllm",
    runtime_version="0.32.0",
    algorithm="a smaller model drafts, verified by the target",
    equivalence="assumed",
    num_spec_tokens=4,
    draft_policy="at most 4 drafted tokens a step",
    max_context_tokens=2048,
    max_output_tokens=None,
    unsupported_features=(),
    fallback="a step without a draft decodes ordinarily",
)


@pytest.fixture(scope="module")
def bare(world):
    """A run of the smallest kind, with its results: nothing stated, no contract, no telemetry."""
    run = world(tpot_ms=lambda case: 10.0 if case.arm == "candidate" else 20.0, items_per_segment=12).run()
    return run, compute_results(run)


def ask(bare, key, *, contract=None, plan=None, **results):
    """Return the answer to one question, with other facts put in."""
    run, computed = bare
    manifest = msgspec.structs.replace(run.manifest, contracts=(contract,) if contract else ())
    changed = msgspec.structs.replace(computed, **results)
    questions = answer_questions(changed, plan or run.plan, manifest)
    return next(one for one in questions if one.key == key)


def planned(run, **tables):
    """Return the plan of a run with further tables."""
    return type(run.plan).model_validate(run.plan.model_dump(mode="json") | tables)


def test_there_are_twelve_in_a_fixed_order(bare):
    """Numbers and keys are the same in every run, and the results hold them."""
    _, results = bare
    assert [one.number for one in results.questions] == list(range(1, 13))
    assert [one.key for one in results.questions] == [key for key, _, _ in QUESTIONS]


def test_what_is_not_answered_says_what_would_answer_it(bare):
    """A question that is open or answered in part always names what is missing."""
    _, results = bare
    for one in results.questions:
        assert one.answer.endswith(".")
        assert one.missing or one.standing == "answered", one.key
        assert one.evidence or one.standing == "open", one.key


def test_media_is_open_in_every_run(bare):
    """Nothing here measures speech or frames, so no run may claim to."""
    assert ask(bare, "media").standing == "open"


def test_method_and_licence_come_from_the_contract(bare):
    """With a contract both are answered; without one both are open."""
    assert ask(bare, "method").standing == ask(bare, "compatible").standing == "open"
    method = ask(bare, "method", contract=CONTRACT)
    assert (method.standing, "vllm 0.32.0" in method.answer) == ("answered", True)
    assert ask(bare, "compatible", contract=CONTRACT).standing == "answered"


@pytest.mark.parametrize(
    ("change", "standing"),
    [
        ({"drafter_licence": None}, "partly"),
        ({"drafter_licence": None, "drafter_kind": "ngram"}, "answered"),
        ({"drafter_kind": "ngram"}, "answered"),
        ({"tokenizer_compatible": None}, "partly"),
        ({"tokenizer_compatible": None, "target_licence": None, "drafter_licence": None}, "open"),
    ],
)
def test_compatibility_is_answered_as_far_as_it_is_known(bare, change, standing):
    """Every unknown licence or unchecked tokenizer lowers the answer; a lookup needs no licence."""
    contract = msgspec.structs.replace(CONTRACT, **change)
    found = ask(bare, "compatible", contract=contract)
    assert found.standing == standing
    assert ("of the drafter: MIT." in found.answer) == (contract.drafter_licence == "MIT")


def test_an_undisclosed_method_is_no_answer(bare):
    """Of an API that does not say how it drafts the version alone is known."""
    contract = msgspec.structs.replace(CONTRACT, algorithm="undisclosed; the plan states ngram")
    assert ask(bare, "method", contract=contract).standing == "partly"


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ("guaranteed by method", "The candidate's method keeps"),
        ("assumed", "is an assumption"),
        ("approximate", "not equivalent"),
        (None, "is not stated"),
    ],
)
def test_an_assumption_is_never_called_a_guarantee(bare, stated, words):
    """The words follow the contract, and only a guarantee or a known change is a full answer."""
    found = ask(bare, "equivalence", contract=msgspec.structs.replace(CONTRACT, equivalence=stated))
    assert words in found.answer
    assert (found.standing == "answered") == (stated in {"guaranteed by method", "approximate"})


def test_one_load_says_little_of_a_high_batch(world):
    """A run at one load answers the question of high batch in part and asks for a second level."""
    results = compute_results(world(loads=(("low", 1),), items_per_segment=8).run())
    found = next(one for one in results.questions if one.key == "high_batch")
    assert found.standing == "partly"
    assert any("[[load]]" in text for text in found.missing)


def test_acceptance_is_given_by_label(world):
    """Two tasks with other acceptance are told apart; a dimension with one label stays open."""

    def accepted(case):
        return {"rewriting": 3, "chat": 1}[case.segment] if case.arm == "candidate" else 0

    results = compute_results(world(accepted=accepted, items_per_segment=8).run())
    found = next(one for one in results.questions if one.key == "acceptance")
    assert "by task from 25 % (chat) to 75 % (rewriting)" in found.answer
    assert found.standing == "partly"
    assert any("language" in text for text in found.missing)


def test_the_plan_answers_for_owner_rollback_and_retirement(bare):
    """Stated in full the life cycle is answered, stated in part it is answered in part."""
    run, _ = bare
    whole = {
        "owner": "team-a",
        "approver": "team-b",
        "rollback_artefact": "image@sha256:1",
        "drafter_retirement": "with the target, record at team-a",
    }
    assert ask(bare, "lifecycle").standing == "open"
    partly = ask(bare, "lifecycle", plan=planned(run, approval={"owner": "team-a"}))
    assert (partly.standing, "Owner team-a" in partly.answer) == ("partly", True)
    found = ask(bare, "lifecycle", plan=planned(run, approval=whole))
    assert found.standing == "answered"
    assert all(text in found.answer for text in whole.values())


def test_rollback_limits_are_answered_only_when_the_plan_states_them(bare):
    """Defaults that nobody wrote down are no decision of the team."""
    run, _ = bare
    assert ask(bare, "thresholds").standing == "partly"
    stated = {"max_tpot_ms": 50.0, "holdout_share": 0.05}
    found = ask(bare, "thresholds", plan=on_vllm(run, rollback=stated))
    assert found.standing == "answered"
    assert "time per token at p95 above 50 ms;" in found.answer
    assert found.missing == ("Your own monitoring of what no rule watches.",)


def on_vllm(run, **tables):
    """Return the plan of a run for an engine whose metrics tell everything, with further tables."""
    arms = run.plan.arms.model_dump(mode="json")
    arms = {name: arm and {**arm, "engine": "vllm", "url": "http://a"} for name, arm in arms.items()}
    return planned(run, arms=arms, **tables)


def test_rollback_is_told_in_words_with_units_and_what_the_rules_derive(bare):
    """Each limit has its unit; one that [rollback] leaves open has its source, or is said to be missing."""
    run, _ = bare
    stated = {"max_ttft_ms": 500.0, "max_failed_share": 0.02, "critical_errors": 1, "cache_for_s": 120}
    fresh = on_vllm(run, rollback=stated | {"holdout_share": 0.05}, objectives={"tpot_ms": 40.0})
    told = ask(bare, "thresholds", plan=fresh).answer
    for words in (
        "first token at p95 above 500 ms;",
        "time per token at p95 above 40 ms (from objectives.tpot_ms);",
        "time per token above 1.05 times the hold-out's (from 1 + thresholds.harm_margin);",
        "failed requests above 2 %;",
        "key-value cache above 95 % for 120 s.",
        "No rule watches, since no engine judges its answers: more than 1 critical errors of the application",
        "preemptions above 0.1 per finished request.",
        "needs 30 finished requests",
    ):
        assert words in told
    assert not any(key in told for key in type(fresh.rollback).model_fields)
    told = ask(bare, "thresholds", plan=on_vllm(run, rollback={"holdout_share": 0.1})).answer
    assert (
        "No limit on first token at p95: neither rollback.max_ttft_ms nor objectives.ttft_ms is set." in told
    )
    assert "hold-out's share by 10 points (from thresholds.failure_margin)" in told
    assert "10 % of the traffic" in told


def test_a_trigger_that_no_rule_can_watch_is_not_called_a_rollback(bare):
    """The reference engine exports no cache usage, and nobody keeps a hold-out: both are said to be blind."""
    run, _ = bare
    found = ask(bare, "thresholds", plan=planned(run, rollback={"max_tpot_ms": 50.0}))
    rolls_back = found.answer.split("Rolls back by")[1].split(" No rule watches")[0]
    assert "time per token at p95 above 50 ms" in rolls_back
    assert "cache" not in rolls_back
    assert "hold-out's" not in rolls_back
    assert "since the engine exports no share of its key-value cache: key-value cache above" in found.answer
    assert "since the plan states no rollback.holdout_share to compare with: " in found.answer
    assert found.standing == "partly"


def test_one_cause_that_blinds_every_rule_is_said_once(bare):
    """Nothing is known of a service's metrics: what it hides is listed behind it, and no window is stated."""
    run, _ = bare
    arms = run.plan.arms.model_dump(mode="json")
    arms = {name: arm and {**arm, "engine": "generic", "url": "http://a"} for name, arm in arms.items()}
    plan = planned(run, arms=arms, rollback={"holdout_share": 0.1})
    found = ask(bare, "thresholds", plan=plan)
    assert found.answer.count("nothing is known of this service's metrics") == 1
    assert "Each is taken over" not in found.answer
    assert len(found.missing) == 1


def test_what_keeps_cells_open_is_said_in_words(world):
    """Question 7 names causes as the verdict does, and no code."""
    results = compute_results(world(items_per_segment=4).run())
    (found,) = [one for one in results.questions if one.key == "high_batch"]
    told = " ".join(found.missing)
    assert "What keeps cells open at load high: " in told
    assert "too few prompts for an interval" in told
    assert "_" not in told


def test_each_margin_that_blocks_is_told_with_its_own_value(bare):
    """End-to-end time has its own margin unless it decides; the tail and the length block as well."""
    _, results = bare
    values = results.thresholds | {"harm_margin": 0.05, "e2e_margin": 0.1, "tail_margin": 0.25}
    told = ask(bare, "thresholds", thresholds=values).answer
    assert "time per token: the whole interval above +5 %, end-to-end time +10 %" in told
    assert "in the tail +25 %, mean answer length ±10 %" in told
    told = ask(bare, "thresholds", thresholds=values, metric="e2e_from_schedule_ns").answer
    assert "end-to-end time: the whole interval above +5 %, time to first token" in told


def test_a_baseline_that_does_not_say_whether_it_drafts_is_no_service_without_speculation(bare):
    """What no contract tells is not claimed: neither "off" nor "the same service"."""
    answer = ask(bare, "disable").answer
    assert "it does not say whether it speculates" in answer
    assert "With speculation off" not in answer


def test_a_trigger_of_which_the_run_has_no_value_is_said_to_be_unknown(bare):
    """A changed drafter cannot be told where its hash is not known; a lookup has none to know."""
    run, _ = bare
    plan = planned(run, approval={"owner": "team-a"})
    bare_drafter = msgspec.structs.replace(CONTRACT, drafter_sha256=None)
    found = ask(bare, "lifecycle", plan=plan, contract=bare_drafter)
    blind = "drafter hash, accelerator, driver, libraries, kernels"
    assert f"voids the approval (their values in this run are unknown: {blind})" in found.answer
    assert f"A service or files that state {blind}." in found.missing
    lookup = msgspec.structs.replace(bare_drafter, drafter_kind="ngram")
    answer = ask(bare, "lifecycle", plan=plan, contract=lookup).answer
    assert "their values in this run are unknown: accelerator, driver" in answer


def test_counters_answer_where_the_answers_do_not_tell(bare, world):
    """The share that the service's counters tell is given; none and zero are told apart."""
    _, results = bare
    mine = compute_results(world(accepted=lambda _: None, items_per_segment=8).run())
    assert not mine.label_acceptance
    values: dict[str, Any] = dict.fromkeys(ServiceUse.__struct_fields__)
    row = ServiceUse(**(values | {"arm": "candidate", "load": "low"}))
    told = msgspec.structs.replace(row, draft_acceptance_rate=0.55, num_draft_tokens=100.0)
    found = ask(bare, "acceptance", label_acceptance=(), services=(told,))
    assert found.answer.startswith("55 % of drafted tokens are accepted at load low, by the service's")
    assert (found.standing, found.evidence) == ("partly", ("counters: candidate, load low",))
    silent = ask(bare, "acceptance", label_acceptance=(), services=(row,))
    assert silent.answer == "The candidate discloses no acceptance."
    idle = msgspec.structs.replace(row, num_draft_tokens=0.0)
    found = ask(bare, "acceptance", label_acceptance=(), services=(idle,))
    assert found.answer == "The candidate drafted nothing."
    later = tuple(one for one in results.label_acceptance if one.load == "high")
    assert "at load high" in ask(bare, "acceptance", label_acceptance=later).answer


def test_no_ratio_is_given_where_every_cell_is_invalid(bare):
    """A comparison that does not hold is quoted by no answer."""
    _, results = bare
    broken = tuple(msgspec.structs.replace(cell, status="invalid") for cell in results.cells)
    found = ask(bare, "high_batch", cells=broken)
    assert "candidate / baseline" not in found.answer
    assert "2 invalid" in found.answer


def test_a_switch_that_nobody_rehearsed_is_no_full_answer(bare):
    """The baseline's answers and a stated fallback are a part; what a switch loses is not known."""
    assert ask(bare, "disable", contract=CONTRACT).standing == "partly"


def test_every_request_failed_leaves_most_open_and_crashes_nothing(world):
    """A run without one answer is told as what it is."""
    results = compute_results(world(outcome=lambda _: "http_error", items_per_segment=6).run())
    standings = {one.key: one.standing for one in results.questions}
    assert standings["delay"] == standings["acceptance"] == standings["media"] == "open"
    assert standings["disable"] != "answered"


def test_the_text_shows_every_question_with_its_standing(bare):
    """The terminal gets all twelve, in order, with what is missing."""
    _, results = bare
    text = render_questions(results)
    for one in results.questions:
        assert f"{one.number}. {one.question}  [{one.standing}]" in text
    assert "would answer it: approval.owner in the plan." in text


def test_results_of_before_the_questions_say_so(bare):
    """An older results.json loads and its view asks to re-compute."""
    _, results = bare
    text = render_questions(msgspec.structs.replace(results, questions=()))
    assert "draftproof report" in text


def test_questions_stand_in_the_docs():
    """docs/review-questions.md names every question in its words."""
    page = (Path(__file__).parents[3] / "docs" / "review-questions.md").read_text()
    assert all(text in page for _, text, _ in QUESTIONS)
