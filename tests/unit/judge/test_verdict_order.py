"""Order, drift and the null difference: what a known disturbance of the run must show, and what must not."""

import msgspec
import pytest

from draftproof.core.records import BlockRecord
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.order import warn_about_order
from draftproof.judge.results.decide import NoiseRow, OrderSummary
from draftproof.judge.results.run import Results

MINUTE = 60_000_000_000
ONE = {"segments": ("chat",), "loads": (("low", 1),), "items_per_segment": 24}
ARMS = ("baseline", "candidate", "baseline_null")


def timed(run, place=lambda block, arm, arms: (arms.index(arm) + block) % len(arms)):
    """Return the run with a start for every period, a minute apart, the arms rotating through the places."""
    arms = sorted({one.arm for one in run.blocks})
    blocks = []
    for one in run.blocks:
        order = place(one.block, one.arm, arms)
        start = (one.block * len(arms) + order) * MINUTE
        blocks.append(msgspec.structs.replace(one, order=order, started_ns=start, ended_ns=start + MINUTE))
    return msgspec.structs.replace(run, blocks=tuple(blocks))


def slowed(run, factor):
    """Return the run with every time multiplied by what `factor` says of (block, arm, place)."""
    periods = {(one.block, one.arm): one for one in run.blocks}

    def slow(record):
        times = factor(record.block, record.arm, periods[record.block, record.arm].order)
        start = record.scheduled_ns
        chunks = tuple(
            msgspec.structs.replace(one, arrival_ns=start + round((one.arrival_ns - start) * times))
            for one in record.chunks
        )
        end = start + round((record.end_ns - start) * times)
        return msgspec.structs.replace(record, chunks=chunks, end_ns=end)

    return msgspec.structs.replace(run, records=tuple(slow(one) for one in run.records))


def order_of(results: Results) -> OrderSummary:
    assert results.order is not None
    return results.order


def rows_of(results, arm, versus=None):
    """Return the drift row of an arm or of an effect."""
    return next(row for row in order_of(results).drifts if (row.arm, row.versus) == (arm, versus))


def place_of(results: Results, arm: str) -> tuple[tuple[float, ...], float]:
    """Return the ratios by place of an arm, or of all, and their adjusted p-value."""
    row = next(one for one in order_of(results).places if one.arm == arm)
    assert row.ratios is not None
    assert row.adjusted_p is not None
    return row.ratios, row.adjusted_p


def tpot_noise(results: Results) -> NoiseRow:
    return next(one for one in order_of(results).noise if one.metric == "tpot_ns")


def test_a_machine_that_slows_down_shows_in_every_arm_and_in_no_effect(world):
    """Every period slower by 1 % of the last: each arm drifts, the paired effect does not."""
    run = timed(world(**ONE).run())
    results = compute_results(slowed(run, lambda block, _arm, _place: 1.01**block))
    hours = 23 * 2 / 60
    for arm in ("baseline", "candidate"):
        row = rows_of(results, arm)
        assert row.adjusted_p < 0.001
        assert row.change == pytest.approx(1.01**23, rel=0.05)
        assert row.hours == pytest.approx(hours, abs=1.5 / 60)
    assert rows_of(results, "candidate", "baseline").adjusted_p > 0.05
    assert any("drifts by" in text and "candidate" in text for text in results.warnings)
    assert not any("effect itself" in text for text in results.warnings)


def test_an_effect_that_fades_is_told_as_drift_of_the_effect(world):
    """A candidate that begins at half the time and ends at the baseline's: the effect drifts, in words."""
    run = timed(world(noise=0.01, **ONE).run())
    results = compute_results(
        slowed(run, lambda block, arm, _: 0.5 * 2 ** (block / 23) if arm == "candidate" else 1.0)
    )
    row = rows_of(results, "candidate", "baseline")
    assert row.change == pytest.approx(2.0, rel=0.05)
    assert row.adjusted_p < 0.001
    assert any("the effect itself drifts: candidate / baseline" in text for text in results.warnings)


def test_a_place_that_is_slower_shows_over_all_arms(world):
    """The first place of every block 20 % slower: found with its size, and it moves no effect."""
    run = timed(world(arms=ARMS, noise=0.01, **ONE).run())
    results = compute_results(slowed(run, lambda _block, _arm, place: 1.2 if place == 0 else 1.0))
    ratios, adjusted_p = place_of(results, "all")
    assert len(ratios) == 3
    assert ratios[0] / ratios[1] == pytest.approx(1.2, rel=0.02)
    assert adjusted_p < 0.001
    assert any("the position in a block matters to every arm" in text for text in results.warnings)
    effect = next(
        e for e in results.effects if (e.metric, e.arm, e.segment) == ("tpot_ns", "candidate", "all")
    )
    assert effect.ratio.value == pytest.approx(1.0, abs=0.02)


def test_a_place_that_matters_to_one_arm_is_told_of_that_arm(world):
    """Only the candidate is slower where it comes last: its own row finds it."""
    run = timed(world(arms=ARMS, noise=0.01, **ONE).run())
    results = compute_results(
        slowed(run, lambda _b, arm, place: 1.3 if (arm, place) == ("candidate", 2) else 1.0)
    )
    ratios, adjusted_p = place_of(results, "candidate")
    assert ratios[2] / ratios[0] == pytest.approx(1.3 ** (2 / 3), rel=0.05)
    assert adjusted_p < 0.01


def test_a_steady_run_warns_of_nothing(world):
    """Noise alone: no warning of order or drift, the null holds 1, and a floor is stated for every metric."""
    results = compute_results(timed(world(arms=ARMS, **ONE).run()))
    order = order_of(results)
    thresholds = world().run().plan.thresholds
    assert list(warn_about_order(order, thresholds, 0.95, "tpot_ns")) == []
    assert {row.metric for row in order.noise} == {
        "tpot_ns",
        "ttft_from_schedule_ns",
        "e2e_from_schedule_ns",
        "output_tokens",
    }
    assert all(row.covers_one for row in order.noise)
    assert all(row.noise_floor is not None and 1.0 <= row.noise_floor < 1.05 for row in order.noise)


def test_two_equal_arms_that_differ_are_warned_about_with_the_floor(world):
    """A null 10 % slower: not clean in time per token, and a floor of at least 10 %."""
    results = compute_results(
        world(arms=ARMS, tpot_ms=lambda c: 22.0 if c.arm == "baseline_null" else 20.0, **ONE).run()
    )
    row = tpot_noise(results)
    assert row.covers_one is False
    assert row.noise_floor is not None
    assert row.noise_floor > 1.1
    assert row.effect_beyond is False
    assert any(
        text.startswith("Two equal services differ at load low: time per token") for text in results.warnings
    )


def test_an_effect_beyond_the_floor_is_said_to_be_beyond_it(world):
    """Twice as fast against equal arms that differ by 2 %."""
    results = compute_results(
        world(arms=ARMS, tpot_ms=lambda c: 10.0 if c.arm == "candidate" else 20.0, **ONE).run()
    )
    row = tpot_noise(results)
    assert row.effect_beyond is True


def test_too_few_blocks_say_how_many_more(world):
    """Five blocks: no drift can be told; three more are needed, as is said."""
    results = compute_results(
        timed(world(items_per_segment=5, segments=("chat",), loads=(("low", 1),)).run())
    )
    row = rows_of(results, "candidate", "baseline")
    assert (row.factor_per_hour, row.p, row.needed) == (None, None, 3)
    assert "5 of at least 8" in row.reason


def test_blocks_whose_clock_began_anew_have_no_drift(world):
    """A run resumed on another boot: times run backwards, so nothing is said of the hours between."""
    run = timed(world(**ONE).run())
    blocks = tuple(
        msgspec.structs.replace(one, started_ns=one.started_ns - 10**15) if one.block > 12 else one
        for one in run.blocks
    )
    results = compute_results(msgspec.structs.replace(run, blocks=blocks))
    row = rows_of(results, "candidate", "baseline")
    assert row.change is None
    assert "clock" in row.reason


def test_without_a_null_arm_there_is_no_floor(world):
    """No row is invented for an arm that was not measured."""
    assert order_of(compute_results(world(**ONE).run())).noise == ()


def test_points_are_the_ratio_of_each_block(world):
    """Every block has one point per compared arm, in order, at half past its two periods."""
    results = compute_results(
        timed(world(noise=0.0, tpot_ms=lambda c: 12.0 if c.arm == "candidate" else 20.0, **ONE).run())
    )
    points = order_of(results).points
    assert [one.block for one in points] == list(range(24))
    assert all(one.ratio == pytest.approx(0.6) for one in points)
    assert points[1].hours - points[0].hours == pytest.approx(2 / 60)


def test_a_resumed_period_keeps_its_first_start(world):
    """A second record of the same period moves neither its start nor its place."""
    run = timed(world(**ONE).run())
    again = msgspec.structs.replace(run.blocks[0], started_ns=run.blocks[0].started_ns + 7 * MINUTE, order=1)
    resumed = msgspec.structs.replace(run, blocks=(again, *run.blocks))
    assert isinstance(again, BlockRecord)
    found, expected = (compute_results(one).order for one in (resumed, run))
    assert found is not None
    assert expected is not None
    # The later part precedes what comes after it, and that is so.
    assert msgspec.structs.replace(found, preceding=()) == msgspec.structs.replace(expected, preceding=())
    assert [one.periods for one in found.preceding] == [one.periods for one in expected.preceding]
