"""Where nobody counts first chunks, nothing is claimed or blamed that does not hold for every count."""

from itertools import pairwise

import msgspec
import pytest

from draftproof.core.records import Chunk
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.bounds import NO_COUNT, NOT_STREAMED, ONE_CHUNK, REMEDY
from draftproof.judge.decide.decision import decide_run
from draftproof.tell.report import render_full, render_html

MS = 1_000_000
WIDE = {"failure_margin": 0.1, "quality_margin": 0.15, "tail_margin": 5.0}


def send(one, *, bundle, counts=None, keeps_text=True):
    """Send the answer's tokens in bundles at an even pace; `counts` are what the chunks say, if anything."""
    tokens, first, last = one.output_tokens, one.chunks[0].arrival_ns, one.chunks[-1].arrival_ns
    pace = (last - first) / (tokens - 1)
    ends = [*range(bundle, tokens, bundle), tokens]
    said = [None if counts is None else counts(end) for end in ends]
    return msgspec.structs.replace(
        one,
        chunks=tuple(
            Chunk(first + round(pace * (end - 1)), count) for end, count in zip(ends, said, strict=True)
        ),
        text="yes".ljust(4 * tokens, "."),
        piece_chars=tuple(4 * (end - start) for start, end in pairwise((0, *ends))) if keeps_text else None,
        token_source=None if counts is None else "continuous_usage",
        token_ids=None,
        rounds=None,
        speculation=None,
    )


def bundled(world, bundles, *, tpot=lambda _: 20.0, tokens=32, counts=None, keeps_text=True, **plan):
    """Two services of a given pace whose arms send so many tokens in one event."""
    shape = {"items_per_segment": 40, "loads": (("low", 1),), "noise": 0.005, "accepted": lambda _: None}
    made = shape | {"thresholds": WIDE, "ttft_ms": lambda _: 400.0} | plan
    run = world(tokens=lambda _: tokens, tpot_ms=tpot, **made).run()
    records = tuple(
        send(one, bundle=bundles.get(one.arm, 1), counts=counts, keeps_text=keeps_text) for one in run.records
    )
    return msgspec.structs.replace(run, records=records)


def effect_of(decided, metric="tpot_ns"):
    return next(one for one in decided.evidence.effects if one.metric == metric and one.segment != "all")


def faster(case):
    return 12.0 if case.arm == "candidate" else 20.0


def test_events_that_one_arm_joins_make_no_gain(world):
    """Equal services, four tokens in each of the candidate's events: 28/31 as counted, 1 in truth."""
    decided = decide_run(bundled(world, {"candidate": 4}))
    found = effect_of(decided)
    assert found.ratio.value == pytest.approx(28 / 31, rel=0.01)
    assert found.ratio.low < found.ratio.value < 1 < found.ratio.high
    assert found.assumed_pairs == found.pairs == 40
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert decided.decision == "inconclusive"


def test_events_that_the_baseline_joins_make_no_harm(world):
    """The same the other way round: 31/28 as counted, and neither harm nor a case to defer."""
    decided = decide_run(bundled(world, {"baseline": 4}))
    found = effect_of(decided)
    assert found.ratio.value == pytest.approx(31 / 28, rel=0.01)
    assert found.ratio.low < 1
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert decided.decision == "inconclusive"


def test_no_number_of_prompts_is_asked_where_none_helps(world):
    """The bounds alone lie on both sides of the margin: the remedy is said, in words and as a field."""
    for cell in decide_run(bundled(world, {"candidate": 4})).cells:
        assert (cell.effect.needed, cell.effect.remedy) == (None, REMEDY)
        assert cell.reasons[0].remedy == REMEDY
        assert "more prompts" not in cell.reasons[0].text
        assert REMEDY in cell.reasons[0].text


def test_chunks_as_many_as_tokens_leave_no_doubt(world):
    """Closing usage only, one token in each event of both arms: 40 % faster is a gain."""
    decided = decide_run(bundled(world, {}, tpot=faster))
    found = effect_of(decided).ratio
    assert found.value == pytest.approx(0.6, rel=0.01)
    assert found.high - found.low < 0.01
    assert decided.decision == "adopt"


def test_a_gain_that_holds_for_every_count_is_credited(world):
    """40 % faster in answers of 200 tokens: eight bytes of the first event cannot hide that."""
    decided = decide_run(bundled(world, {"candidate": 2}, tpot=faster, tokens=200))
    assert effect_of(decided).ratio.high == pytest.approx(0.6 * 199 / 192, rel=0.02)
    assert decided.decision == "adopt"


def test_without_the_first_chunks_text_the_other_chunks_are_the_only_bound(world):
    """The same answers in a record that kept no lengths: a hundred tokens may have come first."""
    decided = decide_run(bundled(world, {"candidate": 2}, tpot=faster, tokens=200, keeps_text=False))
    assert effect_of(decided).ratio.high > 1
    assert {cell.status for cell in decided.cells} == {"inconclusive"}


def test_a_tail_is_held_over_all_bounds(world):
    """The candidate's joined events hide a tail that the bounds do not exclude: not held, whatever comes."""
    tight = WIDE | {"tail_margin": 0.25}
    decided = decide_run(bundled(world, {"candidate": 4}, thresholds=tight, evidence="representative"))
    tail = next(one.ratio for one in decided.evidence.tails.effects if one.metric == "tpot_ns")
    assert (tail.value or 9.0) < 1
    assert (tail.high or 0.0) > 1.25
    (found,) = {one for cell in decided.cells for one in cell.guardrails if one.code == "guardrail_tail_tpot"}
    assert found.standing == "open"
    assert REMEDY in found.text


def test_short_contexts_are_not_blamed_for_what_nobody_counts(world):
    """A band of contexts has bounds as well, so joined events of the baseline show no harm in it."""
    run = bundled(world, {"baseline": 8}, tokens=40)
    lengths = {one.item_id: 60 + 10 * int(one.item_id.rpartition("-")[2]) for one in run.records}
    records = tuple(msgspec.structs.replace(one, prompt_tokens=lengths[one.item_id]) for one in run.records)
    bands = decide_run(msgspec.structs.replace(run, records=records)).evidence.bands
    assert bands
    assert all((band.ratio or 0.0) > 1.15 and (band.low or 9.0) < 1 for band in bands)
    assert {band.reading for band in bands} == {"inconclusive"}


def test_a_gain_that_end_to_end_time_contradicts_is_not_credited(world):
    """Running counts that miss three tokens of the first event: exact by their own word, and impossible."""
    run = bundled(world, {"candidate": 4}, counts=lambda end: max(1, end - 3) if end <= 4 else end)
    decided = decide_run(run)
    assert effect_of(decided).assumed_pairs == 0
    assert effect_of(decided).ratio.high < 0.92
    assert effect_of(decided, "e2e_from_schedule_ns").ratio.value == pytest.approx(1.0, abs=0.01)
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    codes = {reason.code for cell in decided.cells for reason in cell.reasons}
    assert "contradicted_end_to_end" in codes


def test_a_later_first_token_does_not_contradict_a_true_gain(world):
    """40 % less time per token, a first token 20 % later: end to end there is a gain, so it is claimed."""
    decided = decide_run(
        bundled(
            world,
            {},
            tpot=faster,
            counts=lambda end: end,
            ttft_ms=lambda case: 480.0 if case.arm == "candidate" else 400.0,
        )
    )
    assert decided.decision == "adopt"


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        ({"output_tokens": None, "bare": True}, NO_COUNT),
        ({"chunks": 1}, ONE_CHUNK),
        ({"unstreamed_tokens": 5, "bare": True}, NOT_STREAMED),
    ],
)
@pytest.mark.parametrize("prompts", [12, 48])
def test_no_prompts_are_asked_where_no_answer_is_counted(world, change, missing, prompts):
    """The sentence names the cause and what helps, with few prompts and with many."""
    run = world(items_per_segment=prompts, loads=(("low", 1),), accepted=lambda _: None).run()

    def lose(one):
        kept = one.chunks[: change.get("chunks")]
        bare = tuple(Chunk(chunk.arrival_ns, None) for chunk in kept) if "bare" in change else kept
        fields = {key: value for key, value in change.items() if key not in {"bare", "chunks"}}
        return msgspec.structs.replace(one, chunks=bare, token_ids=None, **fields)

    results = compute_results(msgspec.structs.replace(run, records=tuple(map(lose, run.records))))
    for cell in results.cells:
        assert (cell.effect.value, cell.effect.needed, cell.effect.remedy) == (None, None, missing.remedy)
        assert (cell.reasons[0].code, cell.reasons[0].remedy) == ("no_effect_estimate", missing.remedy)
        assert missing.reason in cell.reasons[0].text
    assert "more prompts" not in results.verdict.sentence


def test_too_few_counted_answers_ask_for_more(world):
    """Below the floor of prompts, with answers that are counted, more of them help: no remedy is named."""
    run = world(items_per_segment=5, loads=(("low", 1),)).run()
    (first, *_) = decide_run(run).cells
    assert (first.effect.needed, first.effect.remedy) == (1, None)


def test_the_basis_stands_beside_every_time_per_token(world):
    """Terminal and page say of each ratio and of each arm whether its first chunks are counted."""
    for counts, words in ((None, "first chunk not counted"), (lambda end: end, "first chunk counted")):
        results = compute_results(bundled(world, {"candidate": 4}, counts=counts))
        lines = render_full(results).splitlines()
        rows = [line for line in lines if line.startswith(("  Time per token", "Envelope"))]
        assert len(rows) >= 2
        assert all(words in line for line in rows)
        page = render_html(results)
        assert page.count(f">Time per token, {words}</th>") == 2  # all tasks, and each
        assert page.count(f">{words}") >= 2  # each arm
        assert {one.tpot_most is None for one in results.arm_cells} == {counts is not None}
