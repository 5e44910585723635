"""Whole runs of known truth and the decision that must come out of them."""

import random

import msgspec
import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.inform.diagnosis.steps import StepCost, name_step_cost
from draftproof.judge.results.decide import Figure, read_reference
from draftproof.judge.results.run import Results
from draftproof.store.run_directory import encode_document


def speedup(**cells):
    """Return a time per token in which the candidate has the given factor in "segment_load" cells."""

    def tpot_ms(case):
        factor = cells.get(f"{case.segment}_{case.load}", 1.0) if case.arm == "candidate" else 1.0
        return 20.0 * factor

    return tpot_ms


def test_a_gain_in_one_segment_at_low_load_gives_exactly_that_envelope(world, lookup):
    """Where only rewriting at low load gains and the rest loses, the envelope is rewriting up to 1."""
    truth = speedup(rewriting_low=0.6, rewriting_high=1.3, chat_low=1.2, chat_high=1.3)
    results = compute_results(world(tpot_ms=truth).run())
    verdict = results.verdict
    assert verdict.decision == "adopt_limited"
    assert [(one.segment, one.max_concurrency, one.max_context_tokens) for one in verdict.envelope] == [
        ("task=rewriting", 1, 100)
    ]
    assert lookup.cell(results, "rewriting", "low").status == "gain"
    assert {cell.status for cell in results.cells} == {"gain", "harm"}
    assert verdict.sentence.startswith(
        "Adopt in a limited envelope (pilot: synthetic traffic): rewriting up to 1 request in "
        "flight, where time per token falls by 40 %"
    )
    assert "; not for chat, nor at 8 requests in flight; not shown: that p95" in verdict.sentence


def test_a_gain_everywhere_is_adopted_up_to_the_highest_measured_load(world):
    """Where every cell gains the decision is adopt, and no entry goes beyond 8 in flight."""
    truth = speedup(rewriting_low=0.6, rewriting_high=0.7, chat_low=0.6, chat_high=0.7)
    verdict = compute_results(world(tpot_ms=truth).run()).verdict
    assert verdict.decision == "adopt"
    assert {entry.max_concurrency for entry in verdict.envelope} == {8}


def test_a_gain_at_two_loads_reaches_the_higher_one(world):
    """The envelope of a segment ends at the highest load up to which every measured load gains."""
    truth = speedup(rewriting_low=0.6, rewriting_high=0.8, chat_low=0.7, chat_high=1.3)
    verdict = compute_results(world(tpot_ms=truth).run()).verdict
    assert {entry.segment: entry.max_concurrency for entry in verdict.envelope} == {
        "task=rewriting": 8,
        "task=chat": 1,
    }
    assert "rewriting up to 8 requests in flight and chat up to 1 request in flight" in verdict.sentence


def test_a_gain_above_a_gap_gives_no_envelope(world):
    """A segment that gains at high load but not below gets no envelope and no adoption."""
    truth = speedup(rewriting_low=1.2, rewriting_high=0.6, chat_low=1.2, chat_high=1.2)
    verdict = compute_results(world(tpot_ms=truth).run()).verdict
    assert verdict.decision == "inconclusive"
    assert verdict.envelope == ()
    assert "gain_above_gap" in {reason.code for reason in verdict.reasons}
    assert "it may run nowhere yet" in verdict.sentence


def test_no_effect_is_deferred(world):
    """Two arms that are equally fast give neutral cells and the decision to defer."""
    results = decide_run(world().run())
    assert {cell.status for cell in results.cells} == {"neutral"}
    assert results.decision == "defer"
    assert results.envelope == ()


def test_a_slower_candidate_is_harm_and_is_deferred(world):
    """A candidate that takes 30 % longer per token does harm in every cell."""
    truth = speedup(rewriting_low=1.3, rewriting_high=1.3, chat_low=1.3, chat_high=1.3)
    results = compute_results(
        world(tpot_ms=truth, round_ms=lambda case: 80.0 if case.arm == "candidate" else 20).run()
    )
    assert {cell.status for cell in results.cells} == {"harm"}
    assert results.verdict.decision == "defer"
    assert "verifying drafts takes longer than the tokens it saves" in results.verdict.sentence


def test_low_acceptance_is_named_as_the_cause(world):
    """A step that commits one token only is explained by its acceptance, not by its cost."""
    truth = speedup(rewriting_low=1.2, rewriting_high=1.2, chat_low=1.2, chat_high=1.2)

    def accepted(case):
        return 1 if case.arm == "candidate" and case.number == 0 else 0

    def round_ms(case):
        return 24.0 if case.arm == "candidate" else 20.0

    verdict = compute_results(world(tpot_ms=truth, accepted=accepted, round_ms=round_ms).run()).verdict
    assert "too few drafts are accepted" in verdict.sentence


def test_a_step_whose_interval_holds_one_is_not_said_to_pay():
    """The point alone may lie on either side: without an interval nothing is said to pay."""
    step = StepCost(tokens_per_step=1.02, cost=0.98)
    assert name_step_cost(step, Figure(value=1.03, low=0.91, high=1.18)) == "step_open"
    assert name_step_cost(step, Figure(value=1.03, low=1.01, high=1.05)) == "step_pays"
    assert name_step_cost(step) == "step_open"
    assert name_step_cost(step, Figure(value=1.03, reason="2 of at least 6 prompts")) == "step_open"
    dear = StepCost(tokens_per_step=1.36, cost=1.58)
    assert name_step_cost(dear, Figure(value=0.86, low=0.75, high=0.99)) == "dear_verification"


def test_failures_of_the_fast_arm_never_make_a_gain(world, lookup):
    """An arm that drops half of its requests and answers the rest fast harms the cell in which it does."""

    def outcome(case):
        lost = case.arm == "candidate" and case.segment == "rewriting" and case.number % 2
        return "timeout" if lost else "ok"

    truth = speedup(rewriting_low=0.5, rewriting_high=0.5)
    results = compute_results(world(tpot_ms=truth, outcome=outcome).run())
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "harm"
    assert "guardrail_failures" in lookup.codes(cell)
    assert any("candidate failed (timeout) where the baseline answered" in text for text in results.warnings)


def test_a_few_failures_keep_every_cell_of_the_load_from_being_a_gain(world):
    """Three lost requests of forty leave the failure guardrail open at that load, so nothing gains there."""

    def outcome(case):
        lost = case.arm == "candidate" and case.load == "low" and case.number < 3 and case.segment == "chat"
        return "cut" if lost else "ok"

    truth = speedup(rewriting_low=0.5, rewriting_high=0.5, chat_low=0.5, chat_high=0.5)
    results = decide_run(world(tpot_ms=truth, outcome=outcome).run())
    assert "guardrail_failures" in {reason.code for reason in results.cells[0].reasons}
    statuses = {(cell.load, cell.status) for cell in results.cells}
    assert statuses == {("low", "inconclusive"), ("high", "gain")}


def test_shorter_answers_earn_no_gain(world, lookup):
    """Half as long answers shorten end-to-end time; the gain is not claimed, and the run is deferred."""
    results = decide_run(
        world(
            tokens=lambda case: 20 if case.arm == "candidate" else 40,
            comparison={"metric": "e2e_from_schedule_ns"},
        ).run()
    )
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.effect.high < 0.7
    assert cell.status == "inconclusive"
    assert "output_length_shift" in lookup.codes(cell)
    assert results.decision == "defer"


def test_a_new_critical_error_blocks_the_cells_at_fault_only(world, lookup):
    """One new failure of a critical check is harm where it happened and nowhere else."""

    def text(case):
        wrong = case.arm == "candidate" and case.item_id == "rewriting-3" and case.load == "low"
        return "no" if wrong else "yes"

    truth = speedup(rewriting_low=0.5, rewriting_high=0.5, chat_low=0.5, chat_high=0.5)
    results = decide_run(world(tpot_ms=truth, text=text, critical=True).run())
    blocked = lookup.cell(results, "rewriting", "low")
    assert blocked.status == "harm"
    assert "critical_errors" in lookup.codes(blocked)
    assert lookup.cell(results, "rewriting", "high").status == "gain"
    assert lookup.cell(results, "chat", "low").status != "harm"


def test_worse_answers_are_harm_however_fast(world, lookup):
    """A candidate whose answers fail their checks in most cases does harm."""
    truth = speedup(rewriting_low=0.5)
    results = decide_run(
        world(tpot_ms=truth, text=lambda case: "no" if case.arm == "candidate" else "yes").run()
    )
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "harm"
    assert "guardrail_checks" in lookup.codes(cell)


def test_a_workload_without_checks_shows_no_gain(world, lookup):
    """Where no answer is judged, quality is not shown to be kept, so nothing is claimed."""
    results = compute_results(
        world(tpot_ms=speedup(rewriting_low=0.5), has_checks=False, comparison={"quality": "checks"}).run()
    )
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "inconclusive"
    assert "guardrail_checks" in lookup.codes(cell)
    assert any("no check" in text for text in results.not_measured)


def test_a_better_alternative_dominates(world, lookup):
    """Where the alternative is faster still, the candidate's gain is not claimed and the run is deferred."""

    def tpot_ms(case):
        return 20.0 * {"candidate": 0.8, "alternative": 0.5}.get(case.arm, 1.0)

    results = compute_results(world(arms=world.ALL_ARMS, tpot_ms=tpot_ms).run())
    assert all("dominated" in lookup.codes(cell) for cell in results.cells)
    assert {cell.status for cell in results.cells} == {"inconclusive"}
    assert results.verdict.decision == "defer"
    assert "the alternative does better" in results.verdict.sentence


def test_an_alternative_that_was_not_measured_leaves_a_gain_open(world, lookup):
    """A planned alternative without an answer cannot be ruled out as the better choice."""

    def outcome(case):
        return "http_error" if case.arm == "alternative" else "ok"

    truth = speedup(rewriting_low=0.5)
    results = decide_run(world(arms=world.ALL_ARMS, tpot_ms=truth, outcome=outcome).run())
    assert "alternative_unmeasured" in lookup.codes(lookup.cell(results, "rewriting", "low"))
    assert lookup.cell(results, "rewriting", "low").status == "inconclusive"


def test_a_plan_without_alternative_and_null_still_decides(world):
    """Both extra arms are optional; what their absence hides is listed."""
    truth = speedup(rewriting_low=0.6, rewriting_high=0.7, chat_low=0.6, chat_high=0.7)
    results = compute_results(world(tpot_ms=truth).run())
    assert results.verdict.decision == "adopt"
    assert results.cells[0].alternative_effect is None
    assert any("no alternative arm" in text for text in results.not_measured)
    assert any("no null arm" in text for text in results.not_measured)


def test_an_open_first_token_guardrail_is_named(world, lookup):
    """A first token whose interval straddles its margin makes the cell inconclusive and says why."""

    def ttft_ms(case):
        return 100.0 * ((0.9 + 0.8 * (case.number % 2)) if case.arm == "candidate" else 1.0)

    truth = speedup(rewriting_low=0.5, rewriting_high=0.5, chat_low=0.5, chat_high=0.5)
    results = compute_results(world(tpot_ms=truth, ttft_ms=ttft_ms).run())
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "inconclusive"
    assert "guardrail_ttft" in lookup.codes(cell)
    assert results.verdict.decision == "inconclusive"
    assert "4 are fast enough and lack: time to first token" in results.verdict.sentence
    assert "guardrail_ttft" in {reason.code for reason in results.verdict.reasons}


def test_a_much_later_first_token_is_harm(world, lookup):
    """Twice the time to the first token is beyond its margin whatever decoding gains."""
    results = decide_run(
        world(
            tpot_ms=speedup(rewriting_low=0.5),
            ttft_ms=lambda case: 200.0 if case.arm == "candidate" else 100.0,
        ).run()
    )
    assert lookup.cell(results, "rewriting", "low").status == "harm"


def test_equal_arms_that_differ_take_the_credit_away(world, lookup):
    """Where the baseline against itself shows 0.8, a candidate at 0.75 shows nothing; at 0.4 it does."""

    def tpot_ms(case):
        if case.arm == "baseline_null":
            return 16.0
        if case.arm == "candidate":
            return 15.0 if case.load == "low" else 8.0
        return 20.0

    results = compute_results(world(arms=world.ALL_ARMS, tpot_ms=tpot_ms).run())
    low, high = (lookup.cell(results, "rewriting", load) for load in ("low", "high"))
    assert low.status == "inconclusive"
    assert lookup.codes(low) & {"null_not_exceeded", "within_noise"}
    assert high.status == "gain"
    assert any("difference between equal services" in text for text in results.warnings)


def test_a_noisy_cell_is_inconclusive_and_says_how_many_prompts_it_needs(world, lookup):
    """Noise as large as the effect leaves a cell open, with an estimate of what would settle it."""
    truth = speedup(rewriting_low=0.9, rewriting_high=0.9, chat_low=0.9, chat_high=0.9)
    results = compute_results(world(tpot_ms=truth, noise=0.25, items_per_segment=8).run())
    cell = lookup.cell(results, "rewriting", "low")
    assert cell.status == "inconclusive"
    assert cell.effect.needed is not None
    assert cell.effect.needed > 0
    assert "more prompts would show a gain" in results.verdict.sentence
    assert results.verdict.decision == "inconclusive"


@pytest.mark.parametrize("evidence", ["pilot", "synthetic", "smoke"])
def test_only_representative_traffic_is_more_than_a_pilot_hypothesis(world, evidence):
    """The sentence says that it is a pilot's for anything but representative traffic."""
    weak = compute_results(world(evidence=evidence).run()).verdict
    strong = compute_results(world(evidence="representative").run()).verdict
    assert "(pilot: " in weak.sentence
    assert ("synthetic" in weak.evidence_level) == (evidence == "synthetic")
    assert "pilot" not in strong.sentence


def test_the_weaker_of_two_declared_evidence_levels_counts(world):
    """A plan cannot lift a synthetic workload to representative traffic."""
    run = world(evidence="representative").run()
    run = msgspec.structs.replace(run, manifest=msgspec.structs.replace(run.manifest, evidence="synthetic"))
    results = compute_results(run)
    assert results.evidence == "synthetic"
    assert "(pilot: " in results.verdict.sentence
    assert any("the weaker one counts" in text for text in results.warnings)


def test_results_do_not_depend_on_the_order_of_records(world):
    """Shuffled records, blocks and a second computation give the same bytes, which also decode again."""
    run = world(
        arms=world.ALL_ARMS,
        items_per_segment=8,
        repeats=2,
        outcome=lambda case: "cut" if case.number == 5 and case.arm == "candidate" else "ok",
    ).run()
    order = random.Random(3)  # noqa: S311
    shuffled = msgspec.structs.replace(
        run,
        records=tuple(order.sample(run.records, len(run.records))),
        blocks=tuple(order.sample(run.blocks, len(run.blocks))),
    )
    first, again, other = (encode_document(compute_results(one)) for one in (run, run, shuffled))
    assert first == again == other
    assert encode_document(msgspec.json.decode(first, type=Results, dec_hook=read_reference)) == first
