"""Faults: what makes a cell or a run invalid, what only warns, and which records count."""

from collections import Counter

import msgspec
import pytest

from draftproof.core.records import Chunk, SpecCounts
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.faults import count_verification_steps, name_broken_identities
from draftproof.judge.observe.run_data import prepare_run


def fast(case):
    return 10.0 if case.arm == "candidate" else 20.0


def test_speculation_that_does_not_happen_makes_the_run_invalid(world):
    """A candidate without one verification step is no candidate, however fast it is."""
    results = compute_results(world(tpot_ms=fast, accepted=lambda _: 0).run())
    assert results.verdict.decision == "invalid"
    assert {cell.status for cell in results.cells} == {"invalid"}
    assert "configured but not happening" in results.verdict.sentence


def test_a_baseline_that_speculates_makes_the_run_invalid(world):
    """Verification steps in the baseline mean that the arms do not differ as declared."""
    results = compute_results(world(tpot_ms=fast, accepted=lambda _: 2).run())
    assert results.verdict.decision == "invalid"
    assert "baseline_speculates" in {reason.code for reason in results.verdict.reasons}


def test_undisclosed_counters_warn_and_do_not_invalidate(world):
    """An engine without counters is not accused: whether it speculates is said to be unverified."""
    results = compute_results(world(tpot_ms=fast, accepted=lambda _: None).run())
    assert results.verdict.decision == "adopt"
    assert any("discloses no speculation counters" in text for text in results.warnings)
    assert results.arm_cells[0].acceptance is None


def test_a_client_late_in_many_periods_makes_the_load_invalid(world):
    """Lag in a third of the periods of one load invalidates that load and leaves the other alone."""
    late = world(
        tpot_ms=fast, lag_ms=lambda case: 80.0 if case.load == "low" and case.number % 3 == 0 else 1.0
    )
    results = compute_results(late.run())
    assert {(cell.load, cell.status) for cell in results.cells} == {("low", "invalid"), ("high", "gain")}
    assert "invalid_client" in {reason.code for reason in results.cells[0].reasons}
    assert [one.bound for one in results.diagnosis] == ["client-bound", "decode-bound"]


def test_a_client_late_in_one_period_loses_that_period_only(world, lookup):
    """One late period of twenty is left out of the pairs, and the cell still decides."""

    def lag_ms(case):
        return 80.0 if (case.load, case.number, case.arm) == ("low", 3, "candidate") else 1.0

    results = compute_results(world(tpot_ms=fast, lag_ms=lag_ms).run())
    effect = lookup.effect(results, "tpot_ns", segment="rewriting", load="low")
    assert effect.pairs == 19
    assert lookup.cell(results, "rewriting", "low").status == "gain"
    assert (
        "Times of period low/3 of candidate are left out, because the client itself was late."
        in results.warnings
    )


def test_unknown_lag_is_said(world):
    """Periods whose lag was not measured warn and decide nothing: nobody can tell if the client was late."""
    results = compute_results(world(tpot_ms=fast, lag_ms=lambda _: None).run())
    assert any("lag is unknown in 80 periods" in text for text in results.warnings)
    assert results.verdict.decision == "invalid"


def test_a_run_without_records_of_its_periods_is_invalid(world):
    """Fast answers convince nobody where the records that show the client's own lateness are gone."""
    run = msgspec.structs.replace(world(tpot_ms=fast).run(), blocks=())
    assert decide_run(run).decision == "invalid"


def test_an_incomplete_run_is_at_most_inconclusive(world):
    """A run that lacks planned requests of a deciding arm does not decide, even if the rest shows a gain."""
    cut = world(tpot_ms=fast, is_kept=lambda case: not (case.load == "high" and case.number > 15))
    results = compute_results(cut.run())
    assert results.verdict.decision == "inconclusive"
    assert "incomplete" in {reason.code for reason in results.verdict.reasons}
    assert any("was asked 32 of 40 planned requests at load high" in text for text in results.warnings)


def test_a_missing_period_of_the_null_only_warns(world):
    """Lost requests of an arm that decides nothing leave the decision and are said."""
    cut = world(
        arms=world.ALL_ARMS,
        tpot_ms=fast,
        is_kept=lambda case: not (case.arm == "baseline_null" and case.number > 15),
    )
    results = compute_results(cut.run())
    assert results.verdict.decision == "adopt"
    assert any("baseline_null was asked 32 of 40" in text for text in results.warnings)


def test_a_candidate_that_answers_nothing_does_harm(world, lookup):
    """When the candidate fails every request each cell is harm, and its percentiles have no value."""
    dead = world(outcome=lambda case: "http_error" if case.arm == "candidate" else "ok")
    results = compute_results(dead.run())
    assert {cell.status for cell in results.cells} == {"harm"}
    assert results.verdict.decision == "defer"
    figure = lookup.arm_cell(results, "candidate", "rewriting", "low").tpot.p50
    assert figure.value is None
    assert figure.reason == "falls on a failed request: infinite"


def test_a_baseline_that_answers_nothing_makes_the_run_invalid(world):
    """Without one answer of the baseline there is nothing to compare with, so nothing is concluded."""
    dead = world(outcome=lambda case: "http_error" if case.arm == "baseline" else "ok")
    results = compute_results(dead.run())
    assert results.verdict.decision == "invalid"
    assert "no_baseline" in {reason.code for reason in results.verdict.reasons}


def test_a_run_without_records_gives_results_and_no_decision(world):
    """An empty journal compares nothing: invalid, both arms named as missing, no crash."""
    results = compute_results(world(is_kept=lambda _: False).run())
    assert results.verdict.decision == "invalid"
    missing = [reason.text for reason in results.verdict.reasons if reason.code == "arm_missing"]
    assert [text.split()[2] for text in missing] == ["baseline", "candidate"]
    assert results.counts["measured"] == 0


@pytest.mark.parametrize("lost", ["baseline", "candidate"])
def test_a_run_of_one_arm_alone_is_refused_and_says_which_is_missing(world, lost):
    """An arm of the plan without a single measured request leaves nothing to compare."""
    results = compute_results(world(tpot_ms=fast, is_kept=lambda case: case.arm != lost).run())
    assert results.verdict.decision == "invalid"
    assert results.verdict.reasons[0].code == "arm_missing"
    assert f"The arm {lost} left no measured request" in results.verdict.sentence
    assert results.verdict.envelope == ()


def test_a_missing_arm_says_how_far_its_periods_got(world):
    """Periods that were begun and never ended are told apart from periods that never began."""
    run = world(tpot_ms=fast).run()
    broken = tuple(msgspec.structs.replace(block, completed=block.arm != "candidate") for block in run.blocks)
    records = tuple(record for record in run.records if record.arm != "candidate")
    results = compute_results(msgspec.structs.replace(run, records=records, blocks=broken))
    assert "of its 40 periods 0 ended" in results.verdict.sentence


def test_warm_up_and_fill_requests_never_enter(world):
    """Requests of another phase change no figure but the count of records and what was in flight.

    A fill request also takes its part of the device's time, which the economics have to know.
    """
    run = world(items_per_segment=8).run()
    warm, fill = (
        msgspec.structs.replace(
            record, request_id=f"w-{record.request_id}", phase=phase, end_ns=record.end_ns * 9
        )
        for record, phase in zip(run.records[:2], ("warmup", "fill"), strict=True)
    )
    plain = compute_results(run)
    warmed = compute_results(msgspec.structs.replace(run, records=(warm, *run.records)))
    more = compute_results(msgspec.structs.replace(run, records=(warm, fill, *run.records)))
    assert (warmed.counts["not_measured_phase"], more.counts["not_measured_phase"]) == (1, 2)
    assert more.clients != plain.clients
    assert warmed.economics == plain.economics
    bare = [
        msgspec.structs.replace(one, counts={}, clients=(), phases=(), economics=plain.economics)
        for one in (plain, warmed, more)
    ]
    assert bare[0] == bare[1] == bare[2]


def test_of_two_records_with_one_id_the_earlier_is_kept(world):
    """A second record under a known id is dropped and counted, whichever comes first on disk."""
    run = world(items_per_segment=8).run()
    later = msgspec.structs.replace(run.records[0], end_ns=run.records[0].end_ns + 1, outcome="cut")
    prepared = [
        prepare_run(msgspec.structs.replace(run, records=records))
        for records in ((later, *run.records), (*run.records, later))
    ]
    assert [one.counts["duplicates"] for one in prepared] == [1, 1]
    assert prepared[0].observations == prepared[1].observations
    assert all(seen.is_ok for seen in prepared[0].observations)
    assert "repeat a request id" in prepared[0].warnings[0]


def test_records_of_unknown_items_are_left_out_and_counted(world):
    """A record that names an item the run does not have cannot be placed in a cell."""
    run = world(items_per_segment=8).run()
    stray = msgspec.structs.replace(run.records[0], request_id="stray", item_id="nowhere")
    prepared = prepare_run(msgspec.structs.replace(run, records=(*run.records, stray)))
    assert prepared.counts["unknown"] == 1
    assert len(prepared.observations) == len(run.records)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"chunks": (Chunk(2, 1), Chunk(1, 2))}, "earlier than the one before"),
        ({"speculation": SpecCounts(1, 4, 5), "rounds": None}, "accepted 5 drafts of 4"),
        ({"chunks": ()}, "has no content"),
        ({"token_ids": (1, 2)}, "2 token ids, but the final usage says 40"),
    ],
)
def test_a_record_at_odds_with_itself_is_named(world, change, words):
    """Each broken identity of a record is told in words."""
    record = world(items_per_segment=1).run().records[0]
    assert name_broken_identities(record) == ()
    assert words in "; ".join(name_broken_identities(msgspec.structs.replace(record, **change)))


def test_broken_records_are_listed_up_to_a_limit(world):
    """Ten broken records are named, the rest counted."""
    run = world(items_per_segment=8).run()
    broken = [msgspec.structs.replace(record, token_ids=(1,)) for record in run.records[:12]]
    results = compute_results(msgspec.structs.replace(run, records=(*broken, *run.records[12:])))
    assert sum("contradicts itself" in text for text in results.warnings) == 10
    assert "2 more records contradict themselves." in results.warnings


def test_steps_are_unknown_where_no_record_tells(world):
    """Counters that are not disclosed give None, not zero."""
    records = world(items_per_segment=1, accepted=lambda _: None).run().records
    assert count_verification_steps(records) is None


def test_fallbacks_are_said(world):
    """Requests that finished by ordinary decoding because the drafter failed are counted in a warning."""
    run = world(items_per_segment=8).run()
    records = tuple(
        msgspec.structs.replace(one, fallbacks=1) if one.arm == "candidate" else one for one in run.records
    )
    results = compute_results(msgspec.structs.replace(run, records=records))
    assert any("candidate fell back to ordinary decoding 32 times" in text for text in results.warnings)


def test_times_of_a_period_without_a_record_do_not_count(world):
    """Nobody knows how the client fared: taking a late turn away must not make its times good ones."""
    run = world(items_per_segment=8).run()
    gone = run.blocks[0]
    left = tuple(block for block in run.blocks if block != gone)
    prepared = prepare_run(msgspec.structs.replace(run, blocks=left))
    timed = {(one.record.load, one.record.block, one.record.arm): one.timed for one in prepared.observations}
    assert [place for place, is_timed in timed.items() if not is_timed] == [(gone.load, gone.block, gone.arm)]
    without = prepare_run(msgspec.structs.replace(run, blocks=()))
    assert all(one.timed for one in without.observations)


def test_a_mix_of_classes_is_whole_when_its_items_were_asked(world):
    """Shares leave items out by the plan: what no arm was to be asked lacks in no cell."""
    run = world(items_per_segment=8).run()
    counts = Counter(item.segments["task"] for item in run.items)
    segments = sorted(counts)
    level = run.plan.load[0].model_copy(update={"classes": {segments[0]: 1.0, segments[1]: 4.0}})
    plan = run.plan.model_copy(update={"load": (level, *run.plan.load[1:])})
    planned = prepare_run(msgspec.structs.replace(run, plan=plan)).planned
    assert planned[level.name, f"task={segments[1]}"] == counts[segments[1]] * level.repeats
    assert planned[level.name, f"task={segments[0]}"] == round(counts[segments[1]] / 4) * level.repeats
    assert planned[plan.load[1].name, f"task={segments[0]}"] == counts[segments[0]] * plan.load[1].repeats


def test_an_empty_answer_is_not_a_fast_one(world):
    """A candidate that answers nothing to some prompts gains nothing by it: named, counted, a failure."""

    def says(case):
        return "" if case.arm == "candidate" and case.number % 4 == 0 else "yes"

    results = compute_results(world(tpot_ms=fast, text=says).run())
    cells = [one for one in results.arm_cells if one.arm == "candidate"]
    assert {name for one in cells for name in one.outcomes} == {"ok", "empty"}
    assert all(one.outcomes["empty"] == one.attempted // 4 for one in cells)
    assert results.verdict.decision not in {"adopt", "adopt_limited"}
    (share,) = {
        one.difference.value
        for one in results.differences
        if (one.quantity, one.arm, one.versus) == ("failed_share", "candidate", "baseline")
    }
    assert share == pytest.approx(0.25)
    assert any(
        "The candidate failed (empty) where the baseline answered" in text for text in results.warnings
    )


def test_arms_that_answer_nothing_alike_differ_in_nothing(world):
    """Prompts that both arms answer with nothing are failures of both and no difference between them."""
    results = compute_results(
        world(tpot_ms=fast, text=lambda case: "" if case.number % 8 == 0 else "yes").run()
    )
    shares = {one.difference.value for one in results.differences if one.quantity == "failed_share"}
    assert shares == {0.0}
