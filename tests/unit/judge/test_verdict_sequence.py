"""Gains in sequence from the lowest load, what is settled without a gain, and baselines taken together."""

import numpy as np
import pytest

from draftproof.judge.decide.cells import decide_effect
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.effects import index_effects
from draftproof.judge.results.run import Figure

LOADS = (("l1", 1), ("l2", 2), ("l4", 4), ("l8", 8))
ARMS = ("baseline", "candidate", "baseline_null")


@pytest.mark.parametrize(
    ("low", "high", "null", "status"),
    [
        (0.96, 1.04, 1.0, "neutral"),
        (0.96, 1.20, 1.0, "no_gain"),
        (0.96, 1.20, 1.05, "inconclusive"),
        (1.00, 1.20, 1.05, "no_gain"),
        (1.06, 1.20, 1.0, "harm"),
        (1.06, 1.20, 1.05, "no_gain"),
        (0.94, 1.20, 1.0, "inconclusive"),
        (0.80, 0.94, 1.0, "gain"),
    ],
)
def test_an_interval_without_a_gain_settles_a_cell(world, low, high, null, status):
    """Above 1 − minimum gain, by more than equal services differ, nothing is left to be seen."""
    thresholds = world().run().plan.thresholds
    assert decide_effect(Figure(value=1.0, low=low, high=high), thresholds, null) == status


def noisy(case):
    """A gain of 9 % whose joint interval over eight cells is too wide, and that of two segments is not."""
    shift = 0.05 if case.number % 2 else -0.05
    return 20.0 * (0.91 * np.exp(shift) if case.arm == "candidate" else 1.0)


def test_loads_in_sequence_cost_no_confidence(world):
    """Each cell shows its gain at the level of two segments, and its joint interval reaches the margin."""
    decided = decide_run(world(loads=LOADS, tpot_ms=noisy, noise=0.001).run())
    effects = index_effects(decided.evidence.effects)
    for cell in decided.cells:
        row = effects["tpot_ns", "candidate", "baseline", cell.segment, cell.load]
        assert row.sequence is not None
        assert (row.simultaneous.high or 0) >= 0.95 > (row.sequence.high or 1)
        assert (cell.status, cell.effect) == ("gain", row.sequence)
    assert decided.decision == "adopt"


def test_above_a_load_that_does_not_gain_the_joint_interval_decides(world):
    """The sequence ends at the first load that is not admissible: higher ones have no claim of their own."""

    def tpot_ms(case):
        return 30.0 if case.load == "l2" and case.arm == "candidate" else noisy(case)

    decided = decide_run(world(loads=LOADS, tpot_ms=tpot_ms, noise=0.001).run())
    by_load = {cell.load: cell for cell in decided.cells if cell.segment == "task=chat"}
    assert by_load["l1"].effect.level == pytest.approx(1 - 0.05 / 2)
    assert {by_load[load].status for load in ("l4", "l8")} == {"inconclusive"}
    assert all(by_load[load].effect.level == pytest.approx(1 - 0.05 / 8) for load in ("l2", "l4", "l8"))


def test_two_equal_services_make_one_reference(world):
    """The ratio is held against the mean of both, and is less uncertain than against one of them."""
    rng = np.random.default_rng(5)
    noise = {arm: rng.normal(0, 0.1, 40) for arm in ARMS}

    def tpot_ms(case):
        return 20.0 * float(np.exp(noise[case.arm][case.number]))

    both, alone = (
        index_effects(decide_run(world(arms=arms, tpot_ms=tpot_ms, noise=0.0).run()).evidence.effects)
        for arms in (ARMS, ARMS[:2])
    )
    key = ("tpot_ns", "candidate", "baseline", "all", "low")
    errors = both[key].standard_error, alone[key].standard_error
    assert (errors[0] or 9.0) < (errors[1] or 0.0)
