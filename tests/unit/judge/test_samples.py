"""How many prompts a plan takes: against closed forms, the spreads put in, and where nothing would do."""

import math

import msgspec
import numpy as np
import pytest
from scipy import stats

from draftproof.core.errors import UsageError
from draftproof.judge.decide.samples import plan_samples
from draftproof.judge.decide.spreads import RATIO_SPREADS, read_earlier
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.samples import SampleQuestion
from draftproof.judge.stats.bootstrap import paired_ratio
from draftproof.judge.stats.planning import prompts_needed, share_pairs_needed, tail_prompts_needed
from draftproof.tell.report.text import render_samples

ASKED = SampleQuestion(gain=0.10, statistic="mean", power=0.8)


def rows(found, aim, load="low"):
    """Return the needs of one aim at one load."""
    return [need for need in found.needs if (need.aim, need.load) == (aim, load)]


def test_before_a_run_every_cell_has_the_numbers_of_the_assumed_spreads(world):
    """Two segments at two loads: each cell needs what the planning function says at the level 1 − 0.05/2."""
    run = world().run()
    found = plan_samples(run.plan, run.items, ASKED)
    gains = [need for need in found.needs if need.aim == "gain"]
    assert len(gains) == found.cells == 4
    for need in gains:
        assert need.level == pytest.approx(1 - 0.05 / 2)
        assert need.source == "assumed"
        assert need.needed == tuple(
            max(6, prompts_needed(log_spread=one, ratio=0.9, margin=0.05, level=need.level, power=0.8))
            for one in RATIO_SPREADS
        )
        assert need.more == need.needed[-1] - 20


def test_more_segments_take_more_prompts_and_more_loads_do_not(world):
    """The level that holds over twelve segments is stricter; loads are tested in sequence at one level."""
    few, loads, segments = (
        world(**given).run()
        for given in (
            {"loads": (("low", 1),)},
            {"loads": tuple((f"l{n}", n) for n in range(1, 13))},
            {"loads": (("low", 1),), "segments": tuple(f"s{n}" for n in range(12))},
        )
    )
    one, same, more = (plan_samples(run.plan, run.items, ASKED).needs[0] for run in (few, loads, segments))
    assert one.needed == same.needed
    assert more.needed[-1] > one.needed[-1]


def test_a_mix_of_classes_has_what_its_shares_leave(world):
    """Twenty items each, 10 to 1: one load asks two of the scarce class, 22 in all, the other all."""
    run = world(segments=("batch", "chat")).run()
    mixed = run.plan.load[0].model_copy(update={"classes": {"chat": 10.0, "batch": 1.0}})
    plan = run.plan.model_copy(update={"load": (mixed, *run.plan.load[1:])})
    found = plan_samples(plan, run.items, ASKED)
    have = {(need.segment, need.load): need.have for need in found.needs if need.aim == "gain"}
    assert have == {
        ("task=chat", "low"): 20,
        ("task=batch", "low"): 2,
        ("task=chat", "high"): 20,
        ("task=batch", "high"): 20,
    }
    assert {need.have for need in rows(found, "tail")} == {22}
    assert {need.have for need in rows(found, "failures") + rows(found, "checks")} == {22}
    plain = plan_samples(run.plan, run.items, ASKED)
    assert found.requests == plain.requests - found.arms * 18
    scarce = next(need for need in found.needs if (need.segment, need.load) == ("task=batch", "low"))
    of_mix = -(-22 * scarce.needed[-1] // 2)
    assert found.requests_needed is not None
    assert found.requests_needed[-1] > found.arms * of_mix


def test_tail_and_shares_are_asked_for_over_each_load(world):
    """Both tails at the plan's quantile and margin; failures and checks in prompts, which repeats are not."""
    run = world(repeats=2).run()
    found = plan_samples(run.plan, run.items, ASKED)
    tails = {need.quantity: need for need in rows(found, "tail")}
    assert set(tails) == {"tpot_ns", "ttft_from_schedule_ns"}
    assert tails["tpot_ns"].needed[0] == tail_prompts_needed(
        q=0.95, ratio=1.0, margin=0.25, level=0.95, power=0.8, log_spread=tails["tpot_ns"].spreads[0]
    )
    (failures,) = rows(found, "failures")
    assert failures.needed[0] == share_pairs_needed(margin=0.1, level=0.95, power=0.8)
    assert failures.needed[0] == math.ceil(stats.norm.ppf(0.975) ** 2 * 0.9 / 0.1)
    assert failures.have == len(run.items)


def test_a_margin_of_all_takes_no_prompts(world):
    """Shares may grow or fall by anything: nothing is to be shown."""
    run = world(thresholds={"failure_margin": 1.0, "quality_margin": 1.0}).run()
    found = plan_samples(run.plan, run.items, ASKED)
    for need in rows(found, "failures") + rows(found, "checks"):
        assert (need.needed[-1], need.more, need.reason) == (0, 0, None)


def test_a_plan_without_end_is_refused_and_not_counted(world):
    run = world(items_per_segment=2).run()
    load = (run.plan.load[0].model_copy(update={"repeats": 10**18}),)
    with pytest.raises(UsageError, match="can be planned"):
        plan_samples(run.plan.model_copy(update={"load": load}), run.items, ASKED)


def test_an_earlier_run_gives_its_own_spread(world):
    """Prompts whose log ratios spread by 0.2: the spread read back is that, and it decides the number."""

    def tpot(case):
        return (
            20.0 * math.exp(0.2 * stats.norm.ppf((case.number + 0.5) / 200))
            if case.arm == "candidate"
            else 20.0
        )

    run = world(tpot_ms=tpot, noise=0.0, items_per_segment=200, loads=(("low", 1),)).run()
    found = plan_samples(run.plan, run.items, ASKED, read_earlier(prepare_run(run)))
    need = rows(found, "gain")[0]
    assert need.source == "run"
    assert need.spreads[0] == pytest.approx(0.2, rel=0.05)
    assert need.spreads[1] > need.spreads[0]
    assert need.measured == 200
    expected = prompts_needed(
        log_spread=need.spreads[-1], ratio=0.9, margin=0.05, level=need.level, power=0.8
    )
    assert need.needed[-1] == expected
    assert need.more == max(0, expected - 200)


def test_the_number_planned_does_see_the_gain():
    """A run of as many prompts as planned sees a true gain of 10 % in about four of five tries."""
    need = prompts_needed(log_spread=0.15, ratio=0.9, margin=0.05, level=0.95, power=0.8)
    rng, hits = np.random.default_rng(11), 0
    for seed in range(200):
        above = 0.9 * np.exp(rng.normal(-(0.15**2) / 2, 0.15, need))
        estimate = paired_ratio(above, np.ones(need), np.arange(need), resamples=200, seed=seed)
        assert estimate.high is not None
        hits += estimate.high < 0.95
    assert 0.7 <= hits / 200 <= 0.9


def test_equal_arms_that_differ_more_than_the_gain_allow_no_number(world):
    """A null 12 % off: no number of prompts shows a gain of 10 %, and it says so instead of a number."""
    run = world(
        arms=("baseline", "candidate", "baseline_null"),
        tpot_ms=lambda c: 22.4 if c.arm == "baseline_null" else 20.0,
    ).run()
    found = plan_samples(run.plan, run.items, ASKED, read_earlier(prepare_run(run)))
    need = rows(found, "gain")[0]
    assert (need.needed, need.more) == ((), None)
    assert "equal services differ by" in need.reason
    assert found.requests_needed is None
    assert "No number of requests" in found.sentence


def test_a_margin_of_zero_and_items_without_checks_are_said(world):
    """Neither has a number of pairs that would do."""
    run = world(has_checks=False, comparison={"quality": "checks"}, thresholds={"failure_margin": 0.0}).run()
    found = plan_samples(run.plan, run.items, ASKED)
    assert rows(found, "failures")[0].reason.startswith("a margin of 0")
    assert rows(found, "checks")[0].reason == "no item has a check"
    text = render_samples(found)
    named = [
        line for line in text.splitlines() if line.lstrip().startswith("Answers that pass their checks  ")
    ]
    assert {line.split()[-1] for line in named} == {"prompts"}
    assert "no item has a check." in " ".join(text.split())


def test_requests_meet_the_most_demanding_need(world):
    """One load, one segment: requests are arms × repeats × the largest of all needs in prompts."""
    run = world(segments=("chat",), loads=(("low", 1),), repeats=2).run()
    found = plan_samples(run.plan, run.items, ASKED)
    prompts = [need.needed[-1] for need in found.needs]
    assert found.requests == 2 * 2 * 20
    assert found.requests_needed is not None
    assert found.requests_needed[1] == 2 * 2 * max(*prompts, 20)


def test_a_workload_that_suffices_is_said_to_suffice(world):
    """A large gain of a steady candidate in a run of many prompts with wide margins."""
    run = world(
        segments=("chat",),
        loads=(("low", 1),),
        items_per_segment=120,
        tpot_ms=lambda c: 10.0 if c.arm == "candidate" else 20.0,
        thresholds={"failure_margin": 0.3, "quality_margin": 0.3},
    ).run()
    asked = SampleQuestion(gain=0.4, statistic="mean", power=0.8)
    found = plan_samples(run.plan, run.items, asked, read_earlier(prepare_run(run)))
    assert all(need.more == 0 for need in found.needs)
    assert found.sentence.startswith("The prompts measured suffice in every cell")
    assert "requests are enough" in found.sentence


@pytest.mark.parametrize(
    ("question", "place"),
    [
        (SampleQuestion(gain=0.05, statistic="mean", power=0.8), "--gain"),
        (SampleQuestion(gain=1.0, statistic="mean", power=0.8), "--gain"),
        (SampleQuestion(gain=0.99999999, statistic="mean", power=0.8), "--gain"),
        (SampleQuestion(gain=0.951, statistic="mean", power=0.8), "--gain"),
        (SampleQuestion(gain=float("nan"), statistic="mean", power=0.8), "--gain"),
        (SampleQuestion(gain=0.1, statistic="mean", power=1.0), "--power"),
        (SampleQuestion(gain=0.1, statistic="mean", power=0.2), "--power"),
    ],
)
def test_a_question_without_an_answer_is_refused_in_one_sentence(world, question, place):
    """A gain no larger than the minimum gain, and a power outside its range, name the option and the fix."""
    run = world().run()
    with pytest.raises(UsageError, match="Fix:") as refused:
        plan_samples(run.plan, run.items, question)
    assert refused.value.place == place


@pytest.mark.parametrize("statistic", ["mean", "p50", "p95", "p99"])
def test_the_page_shows_every_need(world, statistic):
    """Each table has a row per need, and a far quantile takes no fewer prompts than its floor."""
    run = world().run()
    question = msgspec.structs.replace(ASKED, statistic=statistic)
    found = plan_samples(run.plan, run.items, question, read_earlier(prepare_run(run)))
    text = render_samples(found)
    assert text.count("prompts") + text.count("pairs") >= len(found.needs)
    assert found.sentence.split()[0] in text
    if statistic == "p99":
        assert rows(found, "gain")[0].needed[0] >= 250
