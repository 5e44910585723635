"""A gain by the length or the ends of answers is none, whichever time decides."""

import msgspec
import pytest

from draftproof.core.records import Chunk
from draftproof.judge.decide.counting import read_arrival, read_at_equal_length, read_rate
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.eligibility import compute_length_shift
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.decide import Figure

MS = 1_000_000
KEPT, SLOW = 0.92, 4.0
E2E = "e2e_from_schedule_ns"


def cut_tail(world, *, reason, metric="tpot_ns", pace=1.0):
    """Every answer ends in 8 % of slow tokens; the candidate leaves them out, at `pace` of the time."""
    run = world(
        items_per_segment=40,
        noise=0.005,
        tokens=lambda case: 92 if case.arm == "candidate" else 100,
        accepted=lambda _: None,
        comparison={"metric": metric},
    ).run()

    def write(one):
        per_token, first = pace if one.arm == "candidate" else 1.0, one.chunks[0].arrival_ns
        took = [
            20 * MS * (SLOW if number > 92 else 1.0) * per_token for number in range(1, one.output_tokens + 1)
        ]
        chunks = tuple(
            Chunk(first + round(sum(took[1:number])), number) for number in range(1, one.output_tokens + 1)
        )
        ends = {"finish_reason": reason} if one.arm == "candidate" else {}
        return msgspec.structs.replace(one, chunks=chunks, end_ns=chunks[-1].arrival_ns, **ends)

    return decide_run(msgspec.structs.replace(run, records=tuple(map(write, run.records))))


def codes_of(decided):
    return {reason.code for cell in decided.cells for reason in cell.reasons}


@pytest.mark.parametrize("metric", ["tpot_ns", E2E])
@pytest.mark.parametrize("reason", ["length", "stop"])
def test_a_slow_tail_that_is_left_out_makes_no_gain(world, metric, reason):
    """Within the margin of length the answers end before their slow part, and no token comes sooner."""
    decided = cut_tail(world, reason=reason, metric=metric)
    effect = next(one for one in decided.evidence.effects if one.metric == metric)
    assert effect.ratio.high < 0.83
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert "gain_by_length" in codes_of(decided)
    assert ("token_limit_shift" in codes_of(decided)) is (reason == "length")


def test_a_true_gain_survives_the_shift_of_length(world):
    """Twice as fast at every token is a gain at any length."""
    decided = cut_tail(world, reason="stop", pace=0.5)
    assert decided.decision == "adopt"


@pytest.mark.parametrize(
    ("low", "high", "metric", "shift"),
    [
        (0.91, 0.93, "tpot_ns", 0.09),
        (1.03, 1.06, "tpot_ns", 0.06),
        (1.03, 1.06, E2E, 0.0),
        (0.97, 1.06, E2E, 0.03),
        (1.0, 1.0, "tpot_ns", 0.0),
        (None, None, "tpot_ns", 0.0),
    ],
)
def test_the_shift_of_length_is_its_farther_limit(low, high, metric, shift):
    """Shorter answers end sooner; longer ones lower a time per token alone, by cheap tokens."""
    assert compute_length_shift(Figure(value=1.0, low=low, high=high), metric) == pytest.approx(shift)


def test_a_shift_of_length_is_taken_off_where_chunks_are_not_counted(world):
    """12 % faster, 8 % shorter, counts in the closing usage alone: less the shift no gain is left."""
    run = world(
        items_per_segment=40,
        noise=0.005,
        tokens=lambda case: 92 if case.arm == "candidate" else 100,
        tpot_ms=lambda case: 17.6 if case.arm == "candidate" else 20.0,
        accepted=lambda _: None,
    ).run()
    records = tuple(
        msgspec.structs.replace(
            one, chunks=tuple(Chunk(chunk.arrival_ns, None) for chunk in one.chunks), token_ids=None
        )
        for one in run.records
    )
    decided = decide_run(msgspec.structs.replace(run, records=records))
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert "gain_by_length" in codes_of(decided)


@pytest.mark.parametrize(
    ("ends", "standing"),
    [
        (("length", "stop"), "shifted"),
        (("stop", "length"), "shifted"),
        ((None, "stop"), "shifted"),
        (("length", "length"), "held"),
        (("stop", "stop"), "held"),
        ((None, None), "noted"),
    ],
)
def test_a_shift_of_ends_is_a_guardrail_of_its_own(world, ends, standing):
    """Either way, and where one arm does not say how its answers ended; where none does, it is noted."""
    run = world(tpot_ms=lambda case: 12.0 if case.arm == "candidate" else 20.0, loads=(("low", 1),)).run()
    records = tuple(
        msgspec.structs.replace(one, finish_reason=ends[one.arm == "baseline"]) for one in run.records
    )
    decided = decide_run(msgspec.structs.replace(run, records=records))
    for cell in decided.cells:
        (found,) = [one for one in cell.guardrails if one.code.startswith("token_limit")]
        assert found.standing == standing
        assert cell.status == ("inconclusive" if standing == "shifted" else "gain")


def test_ends_that_no_service_states_have_a_remedy(world):
    """With representative evidence unknown ends withhold a gain, and no number of prompts is asked."""
    run = world(
        tpot_ms=lambda case: 12.0 if case.arm == "candidate" else 20.0,
        loads=(("low", 1),),
        items_per_segment=60,
        evidence="representative",
    ).run()
    records = tuple(msgspec.structs.replace(one, finish_reason=None) for one in run.records)
    for cell in decide_run(msgspec.structs.replace(run, records=records)).cells:
        (found,) = [one for one in cell.reasons if one.code == "token_limit"]
        assert cell.status == "inconclusive"
        assert found.remedy == "have the service state a finish reason"
        assert found.remedy in found.text


def test_ends_that_are_not_shown_withhold_with_representative_evidence(world):
    """Of 20 prompts nobody can tell 10 points: noted beside a gain, and with representative evidence none."""
    standings = {}
    for evidence in ("synthetic", "representative"):
        run = world(
            tpot_ms=lambda case: 12.0 if case.arm == "candidate" else 20.0,
            loads=(("low", 1),),
            segments=("chat",),
            evidence=evidence,
            thresholds={"failure_margin": 0.2, "quality_margin": 0.2, "tail_quantile": "p90"},
        ).run()
        (cell,) = decide_run(run).cells
        standings[evidence] = [one.standing for one in cell.guardrails if "token_limit" in one.code]
    assert standings == {"synthetic": ["noted"], "representative": ["open"]}


def test_the_margin_of_ends_is_the_plans(world):
    """One answer in ten that the limit ends is within a margin of 30 points and beyond one of 5."""
    statuses = {}
    for margin in (0.05, 0.3):
        run = world(
            tpot_ms=lambda case: 12.0 if case.arm == "candidate" else 20.0,
            loads=(("low", 1),),
            items_per_segment=60,
            thresholds={"failure_margin": 0.1, "quality_margin": 0.15, "token_limit_margin": margin},
        ).run()
        records = tuple(
            msgspec.structs.replace(one, finish_reason="length")
            if one.arm == "candidate" and int(one.item_id.rpartition("-")[2]) % 10 == 0
            else one
            for one in run.records
        )
        cells = decide_run(msgspec.structs.replace(run, records=records)).cells
        statuses[margin] = {cell.status for cell in cells}
    assert statuses == {0.05: {"inconclusive"}, 0.3: {"gain"}}


def observe(world, tokens):
    run = world(segments=("chat",), loads=(("low", 1),), noise=0.0, tokens=tokens, accepted=lambda _: 2).run()
    return prepare_run(run)


def test_a_rate_at_equal_length_ends_with_the_last_chunk_inside_it(world):
    """Chunks end at 1, 4, 7 and 9 tokens: seven tokens take six steps of 20 ms, eight no longer."""
    seen = observe(world, lambda _: 9).observations[0]
    assert [chunk.cumulative_tokens for chunk in seen.record.chunks] == [1, 4, 7, 9]
    assert [read_rate(seen, tokens) for tokens in (1, 7, 8, 9)] == [20 * MS] * 4
    waits = [read_arrival(seen, tokens) for tokens in (1, 2, 7, 8, 9)]
    assert waits == [100 * MS, 160 * MS, 220 * MS, 260 * MS, 260 * MS]


def test_answers_of_equal_length_need_no_second_reading(world):
    """Nothing else is read where both answers of every pair have one length."""
    prepared = observe(world, lambda _: 9)
    assert read_at_equal_length(pair_observations(prepared)["candidate", "baseline"], "tpot_ns") is None
