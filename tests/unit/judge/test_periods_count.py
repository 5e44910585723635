"""What a period does to all of its requests is no effect: of the null, in times, in tails and in shares."""

import numpy as np
import pytest
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.effects import index_effects, null_difference_at
from draftproof.judge.decide.guardrails import evaluate_share, evaluate_time, index_differences
from draftproof.judge.observe.run_data import ALL_SEGMENTS
from draftproof.judge.results.run import Difference, Figure
from draftproof.plan.schema import Thresholds

PROMPTS, STALL = 60, 1.6
LAYOUT = Layout(
    segments=("chat",),
    loads=(("low", 1),),
    prompts=PROMPTS,
    block_size=10,
    thresholds={"failure_margin": 0.1, "quality_margin": 0.1},
    comparison={"resamples": 200},
)


def decide(*, speed=1.0, stalled=None, failed=None, first=1.0, seed=1):
    """Decide a run of six blocks in which one period of an arm is slow, or fails its requests.

    `speed`: time per token of the candidate as a part of the baseline's; `first` that of its first token.
    """
    rng = np.random.default_rng(seed)
    orders = order_periods(LAYOUT, rng)
    base, in_period = np.exp(rng.normal(3.0, 0.1, PROMPTS)), np.arange(PROMPTS) % LAYOUT.blocks == 2
    drawn = {}
    for arm in LAYOUT.arms:
        slow = np.where(in_period & (arm == stalled), STALL, 1.0)
        own = (speed, first) if arm == "candidate" else (1.0, 1.0)
        drawn[arm, "chat", "low"] = Requests(
            tpot_ms=own[0] * slow * base * np.exp(rng.normal(0, 0.02, PROMPTS)),
            ttft_ms=own[1] * slow * 100.0 * np.exp(rng.normal(0, 0.02, PROMPTS)),
            tokens=np.full(PROMPTS, 40),
            is_ok=~(in_period & (arm == failed)),
        )
    return decide_run(build_run(LAYOUT, drawn, orders))


def codes(decided):
    return {reason.code for cell in decided.cells for reason in cell.reasons}


def test_a_stalled_period_of_the_null_arm_takes_no_gain_away():
    """The null is 10 % off by one period of six, hardly more than its error: a gain of 20 % is claimed."""
    decided = decide(speed=0.8, stalled="baseline_null")
    effects = index_effects(decided.evidence.effects)
    null = effects["tpot_ns", "baseline_null", "baseline", "all", "low"].ratio
    assert null.value == pytest.approx(1.1, abs=0.01)
    assert null_difference_at(effects, "tpot_ns", "low") < 1.05
    assert {cell.status for cell in decided.cells} == {"gain"}


def test_a_null_that_differs_in_every_period_counts_in_full():
    """Two processes of one service 20 % apart, in every block alike: no gain of 15 % is claimed."""
    rng = np.random.default_rng(3)
    orders = order_periods(LAYOUT, rng)
    factors = {"candidate": 0.85, "baseline_null": 1.2}
    drawn = {
        (arm, "chat", "low"): Requests(
            tpot_ms=20.0 * factors.get(arm, 1.0) * np.exp(rng.normal(0, 0.02, PROMPTS)),
            ttft_ms=np.full(PROMPTS, 100.0),
            tokens=np.full(PROMPTS, 40),
            is_ok=np.ones(PROMPTS, dtype=bool),
        )
        for arm in LAYOUT.arms
    }
    decided = decide_run(build_run(LAYOUT, drawn, orders))
    assert "within_noise" in codes(decided)
    assert {cell.status for cell in decided.cells} == {"inconclusive"}


@pytest.mark.parametrize("seed", range(3))
def test_a_stalled_period_of_the_candidate_is_no_harm(seed):
    """One period of six 1.6 times as long: mean, first token, end to end and tail are open, not violated."""
    decided = decide(stalled="candidate", seed=seed)
    assert {cell.status for cell in decided.cells} == {"inconclusive"}
    standings = {one.standing for cell in decided.cells for one in cell.guardrails}
    assert "violated" not in standings


def test_a_candidate_that_is_slow_in_every_period_is_harm():
    """1.6 times as long throughout is what speculation does, and every rule says so."""
    decided = decide(speed=STALL, first=STALL)
    assert {cell.status for cell in decided.cells} == {"harm"}
    violated = {one.code for cell in decided.cells for one in cell.guardrails if one.standing == "violated"}
    assert violated == {"guardrail_ttft", "guardrail_e2e", "guardrail_tail_tpot", "guardrail_tail_ttft"}


def test_failures_of_one_period_are_no_harm_of_an_arm():
    """Ten failures of one period are as one event: the share is open; the gain stays withheld."""
    decided = decide(speed=0.8, failed="candidate")
    standings = {one.code: one.standing for cell in decided.cells for one in cell.guardrails}
    assert standings["guardrail_failures"] == "open"
    assert {cell.status for cell in decided.cells} == {"inconclusive"}


@pytest.mark.parametrize(("low", "standing"), [(0.5, "violated"), (-0.2, "open")])
def test_what_is_shown_needs_no_further_prompts_to_be_shown(low, standing):
    """Shown or open, a share gives its interval and asks for nothing: what is missing is said elsewhere."""
    figure = Figure(value=1.0, low=low, high=1.0, n=12, needed=23)
    names = {"quantity": "failed_share", "arm": "candidate", "versus": "baseline", "load": "low"}
    places = [Difference(**names, segment=one, difference=figure) for one in ("chat", ALL_SEGMENTS)]
    limits = Thresholds.model_construct(failure_margin=0.1)
    found = evaluate_share(("chat", "low"), index_differences(places), "failed_share", limits)
    assert found.standing == standing
    assert "more prompts" not in found.reason.text
    assert f"({100 * low:+.1f} to +100.0)" in found.reason.text


@pytest.mark.parametrize(("null", "standing"), [(1.0, "violated"), (1.1, "open")])
def test_a_time_guardrail_allows_for_what_equal_arms_differ_by(null, standing):
    """1.30 to 1.40 is beyond 1.25, and not beyond 1.25 times the 1.1 by which two equal arms differ."""
    ratio = Figure(value=1.35, low=1.30, high=1.40)
    found = evaluate_time("ttft", ("chat", "low"), ratio, 0.25, null)
    assert found.standing == standing
    assert ("(equal services differ by 10.0 %)" in found.reason.text) is (null > 1)


def test_what_equal_arms_differ_by_holds_no_guardrail():
    """An interval that ends at 1.3 is not within 1.25 because the machine is noisy."""
    ratio = Figure(value=1.2, low=1.1, high=1.3)
    assert evaluate_time("ttft", ("chat", "low"), ratio, 0.25, 1.2).standing == "open"
