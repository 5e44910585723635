"""Runs that try to look like a gain without being one: none of them may get it."""

import msgspec
import pytest

from draftproof.core.records import Chunk, SpecCounts
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run

ALL_ARMS = ("baseline", "candidate", "alternative", "baseline_null")


def fast(case):
    """Return 20 ms a token, 12 for the candidate."""
    return 12.0 if case.arm == "candidate" else 20.0


def half_fast(case):
    """Return a candidate that is twice as fast for some items and three times as slow for the others.

    A block has a fast one and a slow one, so that items do not pass for periods.
    """
    return 20.0 * ((3.0 if is_slow_item(case.item_id) else 0.5) if case.arm == "candidate" else 1.0)


def is_slow(record):
    return record.arm == "candidate" and is_slow_item(record.item_id)


def is_slow_item(item_id):
    segment, _, number = item_id.rpartition("-")
    return (int(number) + (segment == "chat")) % 2 == 0


def change(run, wanted, **fields):
    """Return the run with `fields` of the wanted records replaced; a callable gets the record."""
    records = tuple(
        msgspec.structs.replace(one, **{k: v(one) if callable(v) else v for k, v in fields.items()})
        if wanted(one)
        else one
        for one in run.records
    )
    return msgspec.structs.replace(run, records=records)


def codes_of(results):
    return {reason.code for cell in results.cells for reason in cell.reasons}


@pytest.mark.parametrize(
    "fields",
    [
        {
            "chunks": lambda one: (Chunk(one.chunks[0].arrival_ns, 40),),
            "end_ns": lambda one: one.scheduled_ns + 900_000_000,
        },
        {"output_tokens": None, "chunks": lambda one: tuple(Chunk(c.arrival_ns, None) for c in one.chunks)},
        {
            "chunks": lambda one: one.chunks[:1],
            "output_tokens": 0,
            "end_ns": lambda one: one.scheduled_ns + 900_000_000,
        },
        {"end_ns": lambda one: one.chunks[0].arrival_ns - 1},
        {"scheduled_ns": lambda one: one.end_ns + 1},
        {"chunks": lambda one: tuple(reversed(one.chunks))},
    ],
    ids=["one chunk", "no counts", "no tokens", "ends early", "due late", "runs backwards"],
)
def test_hiding_the_times_of_slow_requests_earns_no_gain(world, fields):
    """Where slow answers come without usable times, the fast rest is no gain."""
    results = decide_run(change(world(tpot_ms=half_fast).run(), is_slow, **fields))
    assert "gain" not in {cell.status for cell in results.cells}
    assert results.envelope == ()


def test_a_hidden_metric_is_said(world):
    """Half of the candidate's answers in one chunk leave each cell undecided and say why."""
    run = world(tpot_ms=fast).run()
    results = decide_run(change(run, is_slow, chunks=lambda one: (Chunk(one.chunks[0].arrival_ns, 40),)))
    assert {cell.status for cell in results.cells} == {"inconclusive"}
    text = next(r.text for r in results.cells[0].reasons if r.code == "metric_hidden")
    assert "time per token is not usable in 10 of 20 pairs" in text


def test_a_metric_that_both_arms_lack_hides_nothing(world):
    """Answers of one token in both arms have no time per token and do not count as hidden."""
    run = world(tpot_ms=fast).run()
    short = change(
        run,
        lambda one: one.item_id.endswith("-3"),
        chunks=lambda one: one.chunks[:1],
        output_tokens=1,
        token_ids=(1,),
        rounds=(),
        end_ns=lambda one: one.chunks[0].arrival_ns,
    )
    assert "metric_hidden" not in codes_of(compute_results(short))


def test_a_faster_second_attempt_replaces_nothing(world):
    """Of two attempts that were due at once the slower one enters the pair, and the repetition is said."""
    run = world(tpot_ms=half_fast).run()
    again = tuple(
        msgspec.structs.replace(
            one,
            request_id=one.request_id + "-again",
            end_ns=one.chunks[0].arrival_ns + 40_000_000,
            chunks=(one.chunks[0], Chunk(one.chunks[0].arrival_ns + 40_000_000, 40)),
        )
        for one in run.records
        if is_slow(one)
    )
    results = compute_results(msgspec.structs.replace(run, records=(*again, *run.records)))
    assert {cell.status for cell in results.cells} == {"harm"}
    assert any("40 records repeat a request of their arm" in text for text in results.warnings)


def test_no_gain_where_the_candidate_never_drafted(world, lookup):
    """A cell in which no draft was verified cannot owe its speed to speculation."""
    results = decide_run(
        world(
            tpot_ms=fast,
            accepted=lambda case: (
                2 if case.arm == "candidate" and (case.load, case.segment) != ("high", "chat") else 0
            ),
        ).run()
    )
    assert lookup.cell(results, "chat", "low").status == "gain"
    assert lookup.cell(results, "chat", "high").status == "inconclusive"
    assert "no_speculation_here" in lookup.codes(lookup.cell(results, "chat", "high"))


def test_a_null_arm_without_an_answer_withholds_the_gain(world):
    """A plan that asks for a null arm gets no gain while nobody knows how much equal arms differ."""
    results = decide_run(
        world(
            arms=ALL_ARMS,
            tpot_ms=fast,
            outcome=lambda case: "timeout" if case.arm == "baseline_null" else "ok",
        ).run()
    )
    assert {cell.status for cell in results.cells} == {"inconclusive"}
    assert "null_unmeasured" in codes_of(results)


def test_an_alternative_asked_in_part_is_an_incomplete_run(world):
    """An alternative that is not asked the prompts it is good at cannot be ruled out."""
    results = compute_results(
        world(
            arms=ALL_ARMS,
            tpot_ms=fast,
            is_kept=lambda case: not (case.arm == "alternative" and case.number > 9),
        ).run()
    )
    assert results.verdict.decision == "inconclusive"
    assert "incomplete" in {reason.code for reason in results.verdict.reasons}


def test_counters_at_odds_with_themselves_enter_no_acceptance(world, lookup):
    """A record that claims more accepted drafts than drafts leaves the pooled acceptance as it was."""
    run = world(tpot_ms=fast).run()
    lying = change(
        run,
        lambda one: one.arm == "candidate" and one.item_id == "chat-0",
        speculation=SpecCounts(10, 20, 2000),
        rounds=None,
    )
    honest, found = (
        lookup.arm_cell(compute_results(each), "candidate", "chat", "low").acceptance for each in (run, lying)
    )
    assert found.draft_acceptance_rate == honest.draft_acceptance_rate
    assert found.num_spec_steps < honest.num_spec_steps
