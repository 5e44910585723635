"""Trap runs: the same records, pairs and margins, judged by other estimators of time per token."""

import json
from pathlib import Path

import msgspec
import pytest

from draftproof.core.records import Chunk
from draftproof.judge.compute import compute_results
from draftproof.judge.inform.rivals import read_rival
from draftproof.judge.metrics.request import compute_request_metrics
from draftproof.judge.observe.run_data import prepare_run

TESTS = Path(__file__).parents[2]
CASES = json.loads((TESTS / "golden" / "cases" / "chunk_traces.json").read_text())
MS = 1_000_000


def by_rival(results):
    """Return the rival verdicts by estimator."""
    return {one.estimator: one for one in results.rival_verdicts}


def statuses(verdict):
    """Return the set of statuses of its cells."""
    return {cell.status for cell in verdict.cells}


def test_a_gain_reads_as_harm_by_raw_chunk_gaps(world):
    """Three tokens a chunk, 40 % faster: each chunk takes longer, so raw gaps call every gain a harm."""
    results = compute_results(
        world(
            tpot_ms=lambda c: 12.0 if c.arm == "candidate" else 20.0,
            accepted=lambda c: 2 if c.arm == "candidate" else 0,
        ).run()
    )
    rival = by_rival(results)["chunk_gap"]
    assert results.verdict.decision == "adopt"
    assert statuses(rival) == {"harm"}
    assert rival.decision == "defer"
    assert not rival.agrees
    assert rival.sentence == (
        "Judged by raw chunk gaps this run would have been: defer (4 harm of 4 cells); "
        "by time per token it is: adopt (4 gain of 4 cells)."
    )


def test_a_harm_reads_as_gain_by_raw_chunk_gaps(world):
    """A baseline of three tokens a chunk, a candidate 30 % slower token by token: raw gaps see it faster."""
    results = compute_results(
        world(
            tpot_ms=lambda c: 26.0 if c.arm == "candidate" else 20.0,
            accepted=lambda c: 0 if c.arm == "candidate" else 2,
            noise=0.01,
        ).run()
    )
    rival = by_rival(results)["chunk_gap"]
    assert {cell.status for cell in results.cells} <= {"harm", "invalid"}
    assert all(cell.ratio < 0.7 for cell in rival.cells)


def test_a_harm_reads_as_gain_without_a_fault_in_the_run(world):
    """The same with no drafts disclosed: time per token says harm, raw gaps say gain, in every cell."""
    bundled = world(
        tpot_ms=lambda c: 23.0 if c.arm == "candidate" else 20.0,
        accepted=lambda _: None,
        noise=0.01,
        thresholds={"failure_margin": 0.1, "quality_margin": 0.15, "e2e_margin": 0.5},
    ).run()
    records = tuple(_bundle(one) if one.arm == "baseline" else one for one in bundled.records)
    results = compute_results(_replace(bundled, records))
    assert {cell.status for cell in results.cells} == {"harm"}
    assert results.verdict.decision == "defer"
    rival = by_rival(results)["chunk_gap"]
    assert statuses(rival) == {"gain"}
    assert rival.decision == "adopt"


def test_the_rivals_share_pairs_and_guardrails(world):
    """A guardrail that is violated stays violated by every estimator: only the deciding number changes."""
    results = compute_results(
        world(
            tpot_ms=lambda c: 12.0 if c.arm == "candidate" else 20.0,
            ttft_ms=lambda c: 300.0 if c.arm == "candidate" else 100.0,
        ).run()
    )
    assert {cell.status for cell in results.cells} == {"harm"}
    for rival in results.rival_verdicts:
        assert statuses(rival) == {"harm"}
        assert [cell.pairs for cell in rival.cells] == [cell.effect.n for cell in results.cells]


def test_estimators_agree_where_a_chunk_holds_one_token(world):
    """Without speculation in the stream every chunk is a token, so raw gaps are time per token."""
    results = compute_results(
        world(tpot_ms=lambda c: 12.0 if c.arm == "candidate" else 20.0, accepted=lambda _: None).run()
    )
    assert by_rival(results)["chunk_gap"].agrees
    assert by_rival(results)["tokens_minus_one"].agrees


def test_an_end_to_end_run_has_no_rivals(world):
    """Where end-to-end time decides, no estimator of time per token could change the verdict."""
    results = compute_results(world(comparison={"metric": "e2e_from_schedule_ns"}).run())
    assert results.rival_verdicts == ()


@pytest.mark.parametrize(
    "case", [c for c in CASES if len(c["content_chunks_ms"]) > 1], ids=lambda c: c["name"]
)
def test_a_rivals_number_of_a_golden_timeline_is_its_formula(world, case):
    """Mean gap, waits over chunks and latency over tokens of the recorded timelines, worked out by hand."""
    prepared = prepare_run(world().run())
    seen = next(one for one in prepared.observations if one.record.arm == "candidate")
    chunks = tuple(Chunk(round(at * MS), count) for at, count in case["content_chunks_ms"])
    record = _replace(
        seen.record,
        chunks=chunks,
        output_tokens=case["usage_completion_tokens"],
        sent_ns=case["sent_ms"] * MS,
        end_ns=chunks[-1].arrival_ns,
    )
    metrics = compute_request_metrics(record, 0)
    alone = _replace(prepared, observations=(_replace(seen, record=record, metrics=metrics),))
    arrivals = [chunk.arrival_ns for chunk in chunks]
    span, waited, tokens = arrivals[-1] - arrivals[0], arrivals[-1] - record.sent_ns, record.output_tokens
    assert read_rival(alone, "chunk_gap")[0] == pytest.approx(span / (len(chunks) - 1))
    assert read_rival(alone, "waits_over_chunks")[0] == pytest.approx(waited / len(chunks))
    assert read_rival(alone, "latency_over_all_tokens")[0] == pytest.approx(waited / tokens)
    assert read_rival(alone, "tokens_minus_one")[0] == pytest.approx(span / (tokens - 1))


def test_the_two_golden_timelines_turn_the_verdict_round(world):
    """Plain (10 ms per token) against verification_steps (8 ms): a gain of 20 % reads as harm of 80 %."""
    cases = {case["name"]: case for case in CASES}
    run = world(noise=0.0, accepted=lambda _: None).run()
    names = {"baseline": "plain", "candidate": "verification_steps"}
    records = tuple(_play(one, cases[names[one.arm]]) for one in run.records)
    plan = run.plan.model_copy(
        update={"thresholds": run.plan.thresholds.model_copy(update={"output_length_margin": 0.99})}
    )
    results = compute_results(_replace(_replace(run, records), plan=plan))
    effect = next(e for e in results.effects if (e.metric, e.segment) == ("tpot_ns", "all"))
    rival = by_rival(results)["chunk_gap"]
    assert effect.ratio.value == pytest.approx(0.8)
    assert all(cell.ratio == pytest.approx(1.8) for cell in rival.cells)
    assert statuses(rival) == {"harm"}


def _replace(struct, records=None, **changes):
    return msgspec.structs.replace(struct, **({"records": records} if records is not None else {}), **changes)


def _bundle(record):
    """Return the record with three tokens in every chunk after the first, the last token where it was."""
    tail = [chunk for chunk in record.chunks[1:] if chunk.cumulative_tokens % 3 == 1]
    chunks = (record.chunks[0], *tail)
    if chunks[-1] != record.chunks[-1]:
        chunks = (*chunks, record.chunks[-1])
    return _replace(record, chunks=chunks)


def _play(record, case):
    """Return the record with a golden timeline, shifted to when it was due."""
    start = record.scheduled_ns
    chunks = tuple(Chunk(start + round(at * MS), count) for at, count in case["content_chunks_ms"])
    tokens = case["usage_completion_tokens"]
    return _replace(
        record,
        chunks=chunks,
        output_tokens=tokens,
        text="yes".ljust(tokens, "."),
        end_ns=chunks[-1].arrival_ns,
        token_ids=None,
    )
