"""The tail guardrail: a gain in the mean that costs the slowest requests is no gain."""

import math

import pytest

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.samples import default_question, plan_samples
from draftproof.judge.decide.spreads import read_earlier
from draftproof.judge.decide.tails import compute_tails, count_more
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.run import Effect, Figure

ONE = {"segments": ("chat",), "loads": (("low", 1),), "items_per_segment": 120}
P90 = {"thresholds": {"failure_margin": 0.3, "quality_margin": 0.3, "tail_quantile": "p90"}}


def slow_tail(case):
    """Return a candidate 60 % faster for most prompts and 2.5 times slower for every fifth."""
    if case.arm != "candidate":
        return 20.0
    return 50.0 if case.number % 5 == 0 else 8.0


def tail(results, metric="tpot_ns", segment="all", load="low"):
    """Return the tail's effect of the candidate."""
    wanted = (metric, "candidate", "baseline", segment, load)
    return next(
        one
        for one in results.tail_effects
        if (one.metric, one.arm, one.versus, one.segment, one.load) == wanted
    )


def test_a_gain_in_the_mean_with_a_slow_tail_is_harm(world, lookup):
    """The mean falls and p90 grows by half and more: harm, named by the tail, whatever the evidence."""
    results = compute_results(world(tpot_ms=slow_tail, **ONE, **P90).run())
    cell = lookup.cell(results, "chat", "low")
    assert lookup.effect(results, "tpot_ns", segment="chat", load="low").ratio.value < 1
    assert cell.status == "harm"
    assert "guardrail_tail_tpot" in lookup.codes(cell)
    assert tail(results).ratio.low > 1.25


def test_the_same_world_without_the_slow_tail_is_a_gain(world, lookup):
    """With every prompt 60 % faster the tail holds, the cell gains, and nothing is said against it."""
    fast = world(tpot_ms=lambda c: 8.0 if c.arm == "candidate" else 20.0, **ONE, **P90)
    results = compute_results(fast.run())
    cell = lookup.cell(results, "chat", "low")
    assert cell.status == "gain"
    assert "tail_not_shown" not in lookup.codes(cell)
    assert not any(text.startswith("The tail") for text in results.not_measured)
    assert "not shown" not in results.verdict.sentence


@pytest.mark.parametrize(
    ("evidence", "status", "code"),
    [("representative", "inconclusive", "guardrail_tail_tpot"), ("synthetic", "gain", "tail_not_shown")],
)
def test_a_tail_that_is_not_shown_withholds_a_gain_of_representative_traffic_alone(
    world, lookup, evidence, status, code
):
    """Forty pairs show no p95: representative evidence withholds the gain, synthetic notes it and goes on."""
    fast = world(
        segments=("chat",),
        loads=(("low", 1),),
        items_per_segment=40,
        evidence=evidence,
        tpot_ms=lambda c: 8.0 if c.arm == "candidate" else 20.0,
    )
    cell = lookup.cell(compute_results(fast.run()), "chat", "low")
    assert cell.status == status
    assert code in lookup.codes(cell)


def test_a_tail_that_is_not_shown_is_said_with_the_prompts_it_takes(world):
    """Verdict and list of what was not measured both name it; the floor of p95 is 50 prompts."""
    fast = world(
        segments=("chat",),
        loads=(("low", 1),),
        items_per_segment=40,
        tpot_ms=lambda c: 8.0 if c.arm == "candidate" else 20.0,
    )
    results = compute_results(fast.run())
    assert results.verdict.sentence.endswith("; not shown: that p95 stays within 25 %.")
    told = [text for text in results.not_measured if text.startswith("The tail")]
    assert len(told) == 2
    assert all("to show it takes about 10 more prompts at a load" in text for text in told)
    rows = [one for one in results.tail_effects if (one.arm, one.segment) == ("candidate", "all")]
    assert {one.ratio.needed for one in rows} == {10}
    cell = next(one for one in results.cells for _ in one.guardrails)
    open_tails = [one.text for one in cell.guardrails if one.code == "tail_not_shown"]
    assert all("to show it takes about 10 more prompts (an estimate)" in text for text in open_tails)


def test_an_arm_gains_no_tail_by_failing_its_slow_requests(world):
    """A candidate that fails the prompts it would be slow on has the same p90 verdict as one that is slow."""
    quiet = compute_results(
        world(
            tpot_ms=lambda c: 8.0 if c.arm == "candidate" else 20.0,
            outcome=lambda c: "timeout" if c.arm == "candidate" and c.number % 8 == 0 else "ok",
            **ONE,
            **P90,
        ).run()
    )
    assert tail(quiet).ratio.value is None
    assert "failed" in (tail(quiet).ratio.reason or "")
    cell = quiet.cells[0]
    standings = {one.code: one.standing for one in cell.guardrails}
    assert standings["tail_not_shown"] == "noted"
    assert quiet.verdict.decision != "adopt" or cell.status != "gain" or "not shown" in quiet.verdict.sentence


def test_a_failure_counts_as_the_slowest_request(world):
    """Failing 5 of 120 prompts moves p90 of the candidate up by five ranks, as five very slow ones do."""

    def ramp(case):
        return 10.0 + case.number

    def five(case):
        return case.arm == "candidate" and case.number < 5

    failing = world(tpot_ms=ramp, noise=0.0, outcome=lambda c: "cut" if five(c) else "ok", **ONE, **P90).run()
    slow = world(tpot_ms=lambda c: 1e4 if five(c) else ramp(c), noise=0.0, **ONE, **P90).run()
    values = []
    for run in (failing, slow):
        prepared = prepare_run(run)
        found = compute_tails(prepared, pair_observations(prepared))
        values.append(found.index["tpot_ns", "candidate", "baseline", "all", "low"].ratio)
    assert values[0].value == pytest.approx(values[1].value, rel=1e-6)
    assert values[0].value == pytest.approx((10 + 112) / (10 + 107), rel=1e-3)
    assert values[0].low == pytest.approx(values[1].low, rel=1e-3)


def test_the_load_blames_only_the_cells_that_are_slow_themselves(world, lookup):
    """Two segments too small for an interval of their own: the slow one is harm, the fast one is not."""
    both = world(
        segments=("chat", "rewriting"),
        loads=(("low", 1),),
        items_per_segment=24,
        tpot_ms=lambda c: (
            8.0 if c.arm != "candidate" or c.segment == "rewriting" else 30.0 if c.number % 4 else 6.0
        ),
        **P90,
    )
    results = compute_results(both.run())
    blamed = lookup.cell(results, "chat", "low")
    spared = lookup.cell(results, "rewriting", "low")
    assert tail(results).ratio.low > 1.25
    assert tail(results, segment="task=chat").ratio.low is None
    assert "guardrail_tail_tpot" in lookup.codes(blamed)
    assert "guardrail_tail_tpot" not in lookup.codes(spared)


def test_the_null_has_a_tail_beside_the_candidate(world):
    """With a null arm every tail row has its partner of two equal arms."""
    results = compute_results(world(arms=("baseline", "candidate", "baseline_null"), **ONE, **P90).run())
    rows = {(one.arm, one.metric, one.segment) for one in results.tail_effects}
    for arm in ("candidate", "baseline_null"):
        assert (arm, "tpot_ns", "all") in rows
        assert (arm, "ttft_from_schedule_ns", "all") in rows


def make_effect(ratio, pairs=100, prompts=50):
    """Return a tail effect with the given figure."""
    return Effect(
        metric="tpot_ns",
        statistic="p95",
        arm="candidate",
        versus="baseline",
        segment="all",
        load="low",
        ratio=ratio,
        simultaneous=ratio,
        pairs=pairs,
        prompts=prompts,
    )


@pytest.fixture
def count(world):
    """Return what count_more says of a figure of 100 pairs of 50 prompts."""
    prepared = prepare_run(world(**ONE).run())
    pairs = pair_observations(prepared)["candidate", "baseline"].cell("all", "low")
    return lambda **figure: count_more(prepared, pairs, make_effect(Figure(**figure)))


def test_more_prompts_follow_the_square_root_of_the_prompts(count):
    """An upper half twice as wide as the room left takes four times the prompts: 150 more than 50."""
    assert count(value=1.0, low=0.7, high=math.exp(2 * math.log(1.25)), n=100) == 150


def test_more_prompts_say_nothing_where_more_would_not_help(count):
    """A value beyond the margin, no upper limit, and an interval that holds already."""
    assert count(value=1.3, low=0.9, high=1.8) is None
    assert count(value=1.0, low=0.9, high=None) is None
    assert count(value=1.0, low=0.9, high=1.2) is None
    assert count(value=None) is None


@pytest.mark.parametrize(("spread", "items"), [(0.02, 16), (0.5, 16), (0.5, 60)])
def test_samples_asks_for_the_tail_what_the_verdict_asks(world, spread, items):
    """Below the floor as with an interval that is too wide: one number, in prompts, wherever it stands."""
    run = world(noise=spread, segments=("chat",), loads=(("low", 1),), items_per_segment=items).run()
    results = compute_results(run)
    rows = {one.metric: one.ratio for one in results.tail_effects if one.segment == "all"}
    found = plan_samples(run.plan, run.items, default_question(run.plan), read_earlier(prepare_run(run)))
    needs = {one.quantity: one for one in found.needs if one.aim == "tail"}
    for metric, ratio in rows.items():
        need = needs[metric]
        assert (need.more or None) == ratio.needed
        assert need.reason is not None or need.needed[-1] == (need.measured or 0) + (need.more or 0)
    assert any(ratio.needed for ratio in rows.values())
