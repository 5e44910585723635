"""Arms with other numbers of devices: what a device does decides, and more devices alone are no gain."""

import msgspec
import pytest
from windowed_runs import with_windows

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run

ARMS = ("baseline", "candidate", "alternative", "baseline_null")


def decide(world, *, devices, candidate_ms, alternative_ms=20.0, comparison=None):
    """The results of a world whose arms have these devices; the baseline takes 20 ms a token."""
    speeds = {"candidate": candidate_ms, "alternative": alternative_ms}
    arms = {
        name: {
            "devices": count,
            "settings": {"speculation.method": "ngram" if name == "candidate" else "off"},
        }
        for name, count in zip(("baseline", "candidate", "alternative"), devices, strict=True)
    }
    made = world(
        segments=("chat",),
        loads=(("low", 1),),
        items_per_segment=40,
        noise=0.01,
        arms=ARMS,
        ttft_ms=lambda _: 10.0,
        tpot_ms=lambda case: speeds.get(case.arm, 20.0),
        plan={"arms": arms},
        comparison=comparison or {"unequal_budgets": True},
    )
    return compute_results(with_windows(made.run()))


def codes(results, standing=None):
    """The codes of the only cell's reasons, or of its guardrails at a standing."""
    (cell,) = results.cells
    if standing is None:
        return [reason.code for reason in cell.reasons]
    return [one.code for one in cell.guardrails if one.standing == standing]


def test_eight_devices_that_answer_twice_as_fast_as_one_are_no_gain(world):
    """Half the time per token on eight devices is four times the device time: harm, never adopted."""
    equal = decide(world, devices=(1, 1, 1), candidate_ms=10.0)
    assert equal.verdict.decision == "adopt"
    assert "device_time" not in codes(equal)
    unequal = decide(world, devices=(1, 8, 1), candidate_ms=10.0)
    assert unequal.cells[0].status == "harm"
    assert unequal.verdict.decision not in {"adopt", "adopt_limited"}
    assert "device_time" in codes(unequal, "violated")


def test_a_gain_per_device_is_a_gain(world):
    """Four times the pace on two devices halves the device time, so the candidate is adopted."""
    results = decide(world, devices=(1, 2, 1), candidate_ms=5.0)
    assert results.verdict.decision == "adopt"
    assert "device_time" in codes(results, "held")


def test_equal_device_time_withholds_the_gain_and_harms_nothing(world):
    """Twice the pace on twice the devices costs the same: nothing is gained, nothing is lost."""
    results = decide(world, devices=(1, 2, 1), candidate_ms=10.0)
    assert results.cells[0].status == "inconclusive"
    assert "device_time" in codes(results)


def test_an_old_run_without_the_declaration_is_judged_the_same_way(world):
    """A run from before the rule has unequal devices and no declaration: the devices count all the same."""
    results = decide(world, devices=(1, 8, 1), candidate_ms=10.0, comparison={"null_arm": True})
    assert results.cells[0].status == "harm"


@pytest.mark.parametrize(("devices", "is_beaten"), [((1, 1, 1), True), ((1, 1, 3), False)])
def test_an_alternative_on_more_devices_does_not_beat_the_candidate(world, devices, is_beaten):
    """At 8 ms a token it beats a candidate of 10 ms on the same devices, and not on three times as many."""
    results = decide(world, devices=devices, candidate_ms=10.0, alternative_ms=8.0)
    assert ("dominated" in codes(results)) is is_beaten
    assert (results.verdict.decision == "adopt") is not is_beaten


def test_an_alternative_that_is_better_by_device_time_beats_the_candidate(world):
    """On half the devices at the same pace the alternative is the better use of the budget."""
    results = decide(world, devices=(2, 2, 1), candidate_ms=10.0, alternative_ms=10.0)
    assert "dominated" in codes(results)


def test_device_time_without_an_interval_leaves_the_gain_open(world):
    """Where periods say nothing of their times, nobody can tell what a device does."""
    made = decide(world, devices=(1, 2, 1), candidate_ms=5.0)
    assert made.cells[0].status == "gain"
    run = with_windows(
        world(
            segments=("chat",), loads=(("low", 1),), items_per_segment=40, arms=ARMS,
            ttft_ms=lambda _: 10.0, tpot_ms=lambda case: 5.0 if case.arm == "candidate" else 20.0,
            plan={"arms": {"baseline": {}, "candidate": {"devices": 2}, "alternative": {"devices": 1}}},
        ).run()
    )  # fmt: skip
    blocks = tuple(msgspec.structs.replace(one, started_ns=0, ended_ns=0) for one in run.blocks)
    results = decide_run(msgspec.structs.replace(run, blocks=blocks))
    assert results.cells[0].status != "gain"
