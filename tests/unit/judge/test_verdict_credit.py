"""Runs whose interval looks like a gain although nothing is gained: it is not claimed."""

import msgspec
import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.forecast import find_few_blocks, forecast_shortfalls
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.stats.shares import paired_share_difference

THREE = ("baseline", "candidate", "alternative")
THRESHOLDS = {"failure_margin": 0.1, "quality_margin": 0.15}


def faster(case, candidate=12.0, alternative=20.0):
    return {"candidate": candidate, "alternative": alternative}.get(case.arm, 20.0)


def codes_of(decided):
    return {reason.code for cell in decided.cells for reason in cell.reasons}


def find_difference(run, quantity):
    return next(
        one.difference
        for one in decide_run(run).evidence.differences
        if (one.quantity, one.segment, one.load) == (quantity, "all", "low")
    )


def test_repeats_are_no_new_prompts_for_a_share(world):
    """Ten prompts asked five times show what ten prompts show: Tango's limit of 10, not of 50."""
    shape = {"segments": ("chat",), "loads": (("low", 1),), "items_per_segment": 10}
    often = find_difference(world(repeats=5, **shape).run(), "failed_share")
    once = find_difference(world(repeats=1, **shape).run(), "failed_share")
    assert (often.n, often.low, often.high) == (once.n, once.low, once.high)
    assert often.high == pytest.approx(paired_share_difference(0, 0, 0, 10).high)


def test_a_prompt_that_fails_in_some_repeats_has_a_part_of_its_vote(world):
    """Two of four repeats of one prompt in ten fail: half a prompt of ten."""
    run = world(
        segments=("chat",),
        loads=(("low", 1),),
        items_per_segment=10,
        repeats=4,
        outcome=lambda c: "cut" if (c.arm, c.number, c.repeat % 2) == ("candidate", 0, 0) else "ok",
    ).run()
    found = find_difference(run, "failed_share")
    assert found.value == pytest.approx(0.05)
    assert found.high == pytest.approx(paired_share_difference(0, 0.5, 0, 9.5).high)


def test_repeats_do_not_hide_a_quality_that_nobody_could_see(world):
    """Ten prompts in five repeats cannot show a margin of 10 points, however concordant: no gain."""
    decided = decide_run(
        world(
            segments=("chat",),
            loads=(("low", 1),),
            items_per_segment=10,
            repeats=5,
            tpot_ms=faster,
            thresholds={"failure_margin": 0.5, "quality_margin": 0.10},
        ).run()
    )
    assert decided.decision == "inconclusive"
    assert "guardrail_checks" in codes_of(decided)


def world_of_lengths(world, factor, candidate_ms):
    return world(
        items_per_segment=60,
        noise=0.01,
        tokens=lambda c: round(100 * (factor if c.arm == "candidate" else 1.0)),
        tpot_ms=lambda c: faster(c, candidate_ms),
        accepted=lambda _: 0,
        thresholds=THRESHOLDS,
        comparison={"metric": "e2e_from_schedule_ns"},
    ).run()


def decide_on_lengths(world, factor, candidate_ms):
    # Without drafts a chunk holds one token, so no rounding to chunks blurs the lengths.
    run = world_of_lengths(world, factor, candidate_ms)
    records = tuple(msgspec.structs.replace(one, rounds=None, speculation=None) for one in run.records)
    return decide_run(msgspec.structs.replace(run, records=records))


def test_answers_shorter_within_their_margin_make_no_gain(world):
    """End-to-end time decides; answers are 8 % shorter, 10 % are allowed, and no token comes sooner."""
    decided = decide_on_lengths(world, factor=0.92, candidate_ms=20.0)
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    assert "gain_by_length" in codes_of(decided)


def test_shorter_answers_do_not_take_away_a_real_gain(world):
    """The same answers at 60 % of the time per token are a gain at any length."""
    decided = decide_on_lengths(world, factor=0.92, candidate_ms=12.0)
    assert decided.decision == "adopt"
    assert "gain_by_length" not in codes_of(decided)


@pytest.mark.parametrize(
    ("evidence", "blocks", "withheld"),
    [
        ("representative", 5, True),
        ("representative", 6, False),
        ("synthetic", 3, True),
        ("synthetic", 4, False),
    ],
)
def test_few_blocks_credit_no_gain(evidence, blocks, withheld):
    """Below six blocks of a load representative evidence credits no gain, below four no evidence does."""
    layout = Layout(
        segments=("chat",),
        loads=(("low", 1),),
        prompts=60,
        block_size=60 // blocks,
        evidence=evidence,
        thresholds={"failure_margin": 0.1},
    )
    rng = np.random.default_rng(4)
    orders = order_periods(layout, rng)
    base = np.exp(rng.normal(3.0, 0.02, 60))
    drawn = {
        (arm, "chat", "low"): Requests(
            tpot_ms=base * (0.6 if arm == "candidate" else 1.0) * np.exp(rng.normal(0, 0.01, 60)),
            ttft_ms=np.full(60, 100.0) * np.exp(rng.normal(0, 0.01, 60)),
            tokens=np.full(60, 40),
            is_ok=np.ones(60, dtype=bool),
        )
        for arm in layout.arms
    }
    decided = decide_run(build_run(layout, drawn, orders))
    assert ("periods_unmeasured" in codes_of(decided)) is withheld
    assert decided.decision == ("inconclusive" if withheld else "adopt")


def test_an_alternative_that_may_be_better_withholds_the_gain(world):
    """15 % faster, the alternative 20 %: not shown to dominate by 5 %, and not shown not to."""
    run = world(
        arms=THREE, items_per_segment=20, noise=0.06, tpot_ms=lambda c: faster(c, 17.0 * 0.8, 16.1 * 0.8)
    ).run()
    decided = decide_run(run)
    assert not {cell.status for cell in decided.cells} & {"gain"}
    assert "rival_open" in codes_of(decided)


def test_an_alternative_no_better_than_the_candidate_leaves_the_gain(world):
    """Both 40 % faster: the interval excludes that the alternative is better by the margin."""
    results = decide_run(world(arms=THREE, tpot_ms=lambda c: faster(c, 12.0, 12.0)).run())
    assert results.decision == "adopt"


def test_too_few_blocks_are_told_before_the_run(world):
    """Forty items in blocks of twenty make two; in blocks of seven, six, which are enough."""
    run = world(evidence="representative").run()
    told = {}
    for size in (20, 7):
        loads = [level.model_copy(update={"block_size": size}) for level in run.plan.load]
        texts = forecast_shortfalls(run.plan.model_copy(update={"load": loads}), run.items)
        told[size] = any("block_size" in one.text for one in texts)
    assert told == {20: True, 7: False}


def tell_few_blocks(run, least=6):
    prepared = prepare_run(run)
    (told,) = find_few_blocks(prepared, pair_observations(prepared)["candidate", "baseline"], least)
    return told[1]


def six_blocks(world, **changes):
    """Return a run of one load whose plan has six blocks of one prompt."""
    return world(segments=("chat",), loads=(("low", 1),), items_per_segment=6, **changes).run()


def test_a_run_that_was_broken_off_is_to_be_resumed(world):
    """Two of six blocks were measured: smaller blocks would change nothing, the rest of the run would."""
    run = six_blocks(world)
    kept = tuple(one for one in run.blocks if one.block < 2)
    records = tuple(one for one in run.records if one.block < 2)
    text = tell_few_blocks(msgspec.structs.replace(run, blocks=kept, records=records))
    assert text.startswith("Load low has 2 of at least 6 blocks")
    assert text.endswith("4 of the plan's 6 were not measured; go on with --resume.")


def test_a_block_that_is_left_out_names_why(world):
    """Six blocks, one with a late client in the baseline: five count, and the client is named."""

    def late(case):
        return 500.0 if (case.arm, case.number) == ("baseline", 3) else 1.0

    text = tell_few_blocks(six_blocks(world, lag_ms=late))
    assert text.startswith("Load low has 5 of at least 6 blocks")
    assert "in 1 of the plan's 6 the client was late or the host disturbed a period" in text


def test_blocks_of_one_prompt_become_no_smaller(world):
    """Three prompts make three blocks at most: more prompts are asked for, not a smaller block."""
    run = world(segments=("chat",), loads=(("low", 1),), items_per_segment=3).run()
    assert tell_few_blocks(run).endswith("add prompts or repeats for it.")


@pytest.mark.parametrize(("lost", "status"), [(4, "inconclusive"), (1, "gain")])
def test_a_load_does_not_hide_the_answers_that_one_segment_loses(world, lost, status):
    """Of ten segments one loses four checks of twelve: the load holds its margin, that cell has no gain."""
    segments = tuple(f"s{number}" for number in range(10))
    decided = decide_run(
        world(
            segments=segments,
            loads=(("low", 1),),
            items_per_segment=12,
            tpot_ms=faster,
            text=lambda c: "no" if (c.arm, c.segment) == ("candidate", "s0") and c.number < lost else "yes",
            thresholds={"failure_margin": 0.1, "quality_margin": 0.1},
        ).run()
    )
    found = {cell.segment: cell for cell in decided.cells}
    assert found["task=s0"].status == status
    assert found["task=s1"].status == "gain"
