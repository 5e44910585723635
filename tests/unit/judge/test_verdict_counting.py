"""A text has one number of tokens: whoever states another one gains nothing by it."""

import random

import msgspec
import pytest

from draftproof.core.records import Chunk
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.counting import count_sent_tokens, read_tokens_per_character
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.observe.run_data import prepare_run

MS = 1_000_000
SHAPE = {"items_per_segment": 40, "loads": (("low", 1),), "noise": 0.005, "accepted": lambda _: None}


def state(one, tokens, *, source="continuous_usage", in_chunks=True):
    """State another total, and so many tokens at the chunks of the same times if asked."""
    factor = tokens / one.output_tokens
    chunks = [Chunk(at.arrival_ns, max(1, round((at.cumulative_tokens or 0) * factor))) for at in one.chunks]
    return msgspec.structs.replace(
        one,
        output_tokens=tokens,
        chunks=tuple(chunks) if in_chunks else one.chunks,
        token_source=source,
        token_ids=one.token_ids if source == "token_ids" else None,
        rounds=None,
    )


def counted(
    world, factors, *, tokens=100, chosen=lambda _: True, in_chunks=True, source="continuous_usage", **shape
):
    """Arms that state so many times the tokens of their texts, by arm."""
    run = world(tokens=lambda _: tokens, **(SHAPE | shape)).run()
    records = tuple(
        state(
            one,
            round(tokens * (factors.get(one.arm, 1.0) if chosen(one) else 1.0)),
            in_chunks=in_chunks,
            source=source,
        )
        for one in run.records
    )
    return msgspec.structs.replace(run, records=records)


def codes_of(decided):
    return {reason.code for cell in decided.cells for reason in cell.reasons}


@pytest.mark.parametrize(
    "factors", [{"candidate": 1.06}, {"candidate": 0.94}, {"baseline": 0.94}, {"baseline": 1.06}]
)
def test_equal_texts_with_unequal_counts_are_a_fault_by_name(world, factors):
    """6 % more or fewer tokens for the same greedy text, in either arm: nothing is compared."""
    decided = decide_run(counted(world, factors))
    assert decided.decision == "invalid"
    assert {cell.status for cell in decided.cells} == {"invalid"}
    assert codes_of(decided) == {"counts_differ"}
    (text,) = {reason.text for cell in decided.cells for reason in cell.reasons}
    assert "80 of 80 pairs" in text
    assert "candidate" in text


def test_an_alternative_that_counts_too_few_cannot_lose_by_it(world):
    """Where the alternative's counts are wrong, nobody knows whether it is better."""
    run = counted(
        world,
        {"alternative": 0.94},
        arms=("baseline", "candidate", "alternative"),
        tpot_ms=lambda case: 20.0 if case.arm == "baseline" else 12.0,
    )
    decided = decide_run(run)
    assert decided.decision == "invalid"
    assert "alternative" in decided.cells[0].reasons[0].text


def test_a_difference_that_cannot_matter_is_a_warning(world):
    """One token of 200 is half a percent, less than a fifth of the smallest gain: said, and nothing else."""
    run = counted(
        world,
        {"candidate": 1.005},
        tokens=200,
        tpot_ms=lambda case: 12.0 if case.arm == "candidate" else 20.0,
    )
    results = compute_results(run)
    assert results.verdict.decision == "adopt"
    assert sum("count equal texts differently" in text for text in results.warnings) == 1


def test_one_prompt_is_no_fault_of_counting(world):
    """Two ways to write one text in tokens do occur; a single prompt says nothing of a service."""
    run = counted(world, {"candidate": 1.5}, chosen=lambda one: one.item_id == "chat-3")
    assert "counts_differ" not in codes_of(decide_run(run))


@pytest.mark.parametrize("source", ["tokenizer", "token_ids"])
def test_the_texts_own_tokens_decide(world, source):
    """The usage says 6 % more than the tokenizer, or than the ids: time per token is that of the text."""
    decided = decide_run(counted(world, {"candidate": 1.06}, in_chunks=False, source=source))
    assert "counts_differ" not in codes_of(decided)
    rate, length = (
        next(one.ratio.value for one in decided.evidence.effects if one.metric == metric)
        for metric in ("tpot_ns", "output_tokens")
    )
    assert rate == pytest.approx(1.0, abs=0.005)
    assert length == pytest.approx(1.06)
    assert not {cell.status for cell in decided.cells} & {"gain", "invalid"}


def sampled(world, factor, pace):
    """Sampled answers: every text another one, four characters a token, give or take a tenth."""
    drawn = random.Random(3)  # noqa: S311
    run = counted(
        world,
        {"candidate": factor},
        temperature=0.7,
        tpot_ms=lambda case: 20.0 * (pace if case.arm == "candidate" else 1.0),
        thresholds={"failure_margin": 0.1, "quality_margin": 0.15, "output_length_margin": 0.2},
    )
    return msgspec.structs.replace(
        run,
        records=tuple(
            msgspec.structs.replace(
                one, text=f"yes {one.request_id} ".ljust(round(drawn.gauss(400, 40)), ".")
            )
            for one in run.records
        ),
    )


def test_sampled_answers_with_more_tokens_for_their_text_make_no_gain(world):
    """12 % more tokens a character and no token sooner: time per character is what it was."""
    decided = decide_run(sampled(world, 1.12, 1.0))
    effect = next(one for one in decided.evidence.effects if one.metric == "tpot_ns")
    assert (effect.ratio.high or 9.0) < 0.91
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert "gain_by_counting" in codes_of(decided)


@pytest.mark.parametrize("factor", [1.0, 1.03])
def test_a_true_gain_of_sampled_answers_is_credited(world, factor):
    """30 % faster is a gain by the character as well, also where 3 % more tokens are stated."""
    decided = decide_run(sampled(world, factor, 0.7))
    assert decided.decision == "adopt"


def test_tokens_that_were_never_streamed_are_not_those_of_the_text(world):
    """Hidden reasoning makes equal texts differ in their totals: neither a count of the text nor a fault."""
    run = world(**SHAPE).run()
    hidden = tuple(
        msgspec.structs.replace(
            one,
            output_tokens=one.output_tokens + 20,
            unstreamed_tokens=20,
            chunks=tuple(Chunk(at.arrival_ns, None) for at in one.chunks),
        )
        if one.arm == "candidate"
        else one
        for one in run.records
    )
    assert {count_sent_tokens(one) for one in hidden} == {None, 40}
    assert "counts_differ" not in codes_of(decide_run(msgspec.structs.replace(run, records=hidden)))


def test_tokens_are_held_against_all_text(world):
    """Invented answers have a character for each token."""
    run = world(**(SHAPE | {"segments": ("chat",)})).run()
    prepared = prepare_run(run)
    assert set(read_tokens_per_character(prepared.columns)) == {1.0}
