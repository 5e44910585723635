"""Economics: arithmetic done by hand, ranges that carry what is uncertain, nothing without evidence."""

import msgspec
import pytest
from tests.builders.disturbed import BUSY, note_hosts
from windowed_runs import move, with_windows

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.device_time import measure_device_time
from draftproof.judge.decide.guardrails import compute_differences
from draftproof.judge.inform.economics import (
    UnitCosts,
    amount,
    break_even_units,
    compute_economics,
    describe_few_good,
    saving_over,
    unit_saving,
)
from draftproof.judge.observe.pairs import pair_observations
from draftproof.judge.observe.run_data import prepare_run
from draftproof.judge.results.inform import ServiceUse
from draftproof.plan.tables import Prices, Work

ARMS = ("baseline", "candidate", "baseline_null")
# A request of the baseline: 100 ms to the first of 40 tokens, 20 ms for each later one; the candidate: 10 ms.
BASELINE_S, CANDIDATE_S = 0.88, 0.49


@pytest.fixture
def simple(world):
    """Forty prompts, one load, no noise: every figure can be done by hand."""

    def make(prices=None, **changes):
        settings = {
            "segments": ("chat",),
            "loads": (("low", 1),),
            "items_per_segment": 40,
            "noise": 0.0,
            "arms": ARMS,
            "tpot_ms": lambda case: 10.0 if case.arm == "candidate" else 20.0,
            "plan": {"prices": prices or {}},
        }
        return with_windows(world(**(settings | changes)).run())

    return make


def economics_of(run):
    prepared = prepare_run(run)
    return compute_economics(prepared, (), compute_differences(prepared, pair_observations(prepared)))


def use_of(economics, arm, load="low"):
    return next(one for one in economics.uses if (one.arm, one.load) == (arm, load))


def worth_of(economics, arm="candidate", versus="baseline", load="low"):
    return next(one for one in economics.worths if (one.arm, one.versus, one.load) == (arm, versus, load))


def test_results_hold_the_economics(simple):
    """What a report shows is what this part computes."""
    run = simple({"device_hour": 3.6})
    kept, alone = use_of(compute_results(run).economics, "baseline"), use_of(economics_of(run), "baseline")
    assert kept.device_s_per_1000_tokens.value == pytest.approx(alone.device_s_per_1000_tokens.value)
    assert kept.money_per_1000_good.high == pytest.approx(alone.money_per_1000_good.high)


def test_device_time_is_window_times_devices_over_what_came_of_it(simple):
    """0.88 s for 40 tokens: 22 device seconds per 1,000 tokens, 880 per 1,000 good requests."""
    economics = economics_of(simple())
    baseline, candidate = use_of(economics, "baseline"), use_of(economics, "candidate")
    assert baseline.window_s == pytest.approx(40 * BASELINE_S)
    assert baseline.device_s_per_1000_tokens.value == pytest.approx(22.0)
    assert baseline.device_s_per_1000_good.value == pytest.approx(880.0)
    assert baseline.good_per_device_hour.value == pytest.approx(3600 / BASELINE_S)
    assert candidate.device_s_per_1000_tokens.value == pytest.approx(12.25)
    assert worth_of(economics).good_ratio.value == pytest.approx(CANDIDATE_S / BASELINE_S)


def test_a_second_device_counts_twice(simple):
    """A drafter on a device of its own doubles the arm's device time: the gain is gone."""
    arms = {"baseline": {}, "candidate": {"devices": 2, "settings": {"speculation.method": "ngram"}}}
    economics = economics_of(simple(plan={"arms": arms}))
    assert use_of(economics, "candidate").device_s_per_1000_tokens.value == pytest.approx(24.5)
    assert worth_of(economics).good_ratio.value == pytest.approx(2 * CANDIDATE_S / BASELINE_S)


def test_a_failure_takes_time_and_gives_nothing(simple):
    """Every second request of the candidate fails: half the tokens for the same time."""
    outcome = lambda case: "timeout" if case.arm == "candidate" and case.number % 2 else "ok"  # noqa: E731
    used = use_of(economics_of(simple(outcome=outcome)), "candidate")
    assert (used.attempted, used.good) == (40, 20)
    assert used.device_s_per_1000_tokens.value == pytest.approx(2 * 12.25)


def test_tokens_of_a_broken_answer_are_of_no_use(simple):
    """A cut stream that delivered 20 tokens took time and counts no token."""
    run = simple()
    cut = (
        msgspec.structs.replace(one, outcome="cut", output_tokens=20) if one.arm == "candidate" else one
        for one in run.records
    )
    used = use_of(economics_of(msgspec.structs.replace(run, records=tuple(cut))), "candidate")
    assert (used.output_tokens, used.good) == (0, 0)


def test_what_misses_its_deadline_or_a_check_is_not_good(simple):
    """An objective of 500 ms end to end: no request of the baseline is good, all of the candidate's are."""
    late = economics_of(simple(plan={"objectives": {"e2e_ms": 500}}))
    assert use_of(late, "baseline").good == 0
    assert use_of(late, "baseline").device_s_per_1000_good.value is None
    assert use_of(late, "candidate").good == 40
    wrong = economics_of(simple(text=lambda case: "no" if case.number < 10 else "yes"))
    assert use_of(wrong, "baseline").good == 30


def test_capacity_is_the_highest_load_that_is_on_time(world):
    """At the higher load the baseline is too slow for its deadline and the candidate is not."""
    run = world(
        segments=("chat",),
        noise=0.0,
        tpot_ms=lambda case: (10.0 if case.arm == "candidate" else 20.0) * (2 if case.load == "high" else 1),
        plan={"objectives": {"e2e_ms": 1000}},
    ).run()
    capacities = {one.arm: one for one in economics_of(with_windows(run)).capacities}
    assert (capacities["baseline"].load, capacities["candidate"].load) == ("low", "high")
    none = world(segments=("chat",), plan={"objectives": {"e2e_ms": 1}}).run()
    never = economics_of(with_windows(none)).capacities[0]
    assert never.load is None
    assert never.good_per_device_hour.reason


def test_the_part_that_keeps_the_load_up_is_taken_off(simple):
    """Behind each period's counted requests fills come for as long again: half of the window is theirs."""
    run = simple()
    fills = [
        msgspec.structs.replace(move(one, block.ended_ns), phase="fill", request_id=f"{one.request_id}#fill",
                                end_ns=2 * block.ended_ns - block.started_ns)
        for block in run.blocks
        for one in [next(one for one in run.records if (one.arm, one.block) == (block.arm, block.block))]
    ]  # fmt: skip
    longer = tuple(
        msgspec.structs.replace(one, ended_ns=2 * one.ended_ns - one.started_ns) for one in run.blocks
    )
    run = msgspec.structs.replace(run, blocks=longer, records=(*run.records, *fills))
    used = use_of(economics_of(run), "baseline")
    assert used.measured_share == pytest.approx(0.5)
    assert used.device_s_per_1000_tokens.value == pytest.approx(22.0)


def test_a_rest_after_each_request_is_device_time(simple):
    """Slots that rest, as they do after a failure, leave the device as unused as the window is long."""
    run = with_windows(simple(), rest_ns=440_000_000)
    used = use_of(economics_of(run), "baseline")
    assert used.measured_share == pytest.approx(1.0)
    assert used.window_s == pytest.approx(40 * 1.5 * BASELINE_S)


def test_money_by_hand(simple):
    """3.60 an hour, 1 million tokens a month: 22.00 against 12.25, so 9.75 a month and 117 in a year."""
    prices = {
        "device_hour": 3.6,
        "engineer_hour": 50,
        "tokens_per_month": 1e6,
        "candidate": {"one_off_hours": 2},
    }
    economics = economics_of(simple(prices))
    money = use_of(economics, "baseline").money_per_1000_tokens
    assert (money.low, money.high) == pytest.approx((0.022, 0.022))
    found = worth_of(economics)
    assert found.saving_over_horizon.low == pytest.approx(117 - 100)
    assert found.break_even_per_month.high == pytest.approx(100 / 12 / 9.75e-6)
    assert (found.quality, found.standing) == ("held", "worth")


def test_work_that_costs_more_than_it_saves_is_not_worth_it(simple):
    """Two hours at 60 are 120, and 117 are saved: not worth it, in so many words."""
    prices = {
        "device_hour": 3.6,
        "engineer_hour": 60,
        "tokens_per_month": 1e6,
        "candidate": {"one_off_hours": 2},
    }
    found = worth_of(economics_of(simple(prices)))
    assert found.standing == "not_worth"
    assert "Not worth it" in found.text


def test_a_range_of_prices_that_reaches_to_a_loss_is_not_worth_it(simple):
    """Where the range of savings takes in 0, the answer is no, though its middle is a gain."""
    prices = {
        "device_hour": 3.6,
        "engineer_hour": [10, 90],
        "tokens_per_month": 1e6,
        "candidate": {"one_off_hours": 2},
    }
    found = worth_of(economics_of(simple(prices)))
    assert found.saving_over_horizon.low == pytest.approx(117 - 180)
    assert found.saving_over_horizon.high == pytest.approx(117 - 20)
    assert found.standing == "not_worth"


def test_noise_between_equal_arms_counts_against_a_saving(simple):
    """The second baseline is 30 % slower than the first: a gain of 20 % is no saving to rely on."""
    prices = {"device_hour": 3.6, "tokens_per_month": 1e6}
    tpot = {"baseline": 20.0, "candidate": 16.0, "baseline_null": 26.0}
    quiet = {"baseline": 20.0, "candidate": 16.0, "baseline_null": 20.0}
    noisy = worth_of(economics_of(simple(prices, tpot_ms=lambda case: tpot[case.arm])))
    still = worth_of(economics_of(simple(prices, tpot_ms=lambda case: quiet[case.arm])))
    assert (still.standing, noisy.standing) == ("worth", "not_worth")
    assert noisy.noise == pytest.approx(1114 / 880, rel=1e-3)


def test_no_saving_is_credited_where_quality_is_not_shown_to_hold(simple):
    """With a margin that forty pairs cannot show, cheaper answers are not cheaper at equal quality."""
    prices = {"device_hour": 3.6, "tokens_per_month": 1e6}
    found = worth_of(economics_of(simple(prices, thresholds={"quality_margin": 0.01})))
    assert (found.quality, found.standing) == ("not_shown", "not_worth")
    assert found.saving_over_horizon.low > 0


def test_nothing_priced_leaves_physical_quantities_alone(simple):
    """No price, no amount of money, and no judgement of worth."""
    economics = economics_of(simple())
    found = worth_of(economics)
    assert not economics.priced
    assert found.standing == "unknown"
    assert found.saving_over_horizon.low is None
    assert found.good_ratio.value is not None


def test_energy_that_nobody_metered_is_none_and_named(simple):
    """Missing joules are no zero joules."""
    economics = economics_of(simple({"device_hour": 3.6, "energy_kwh": 0.3}))
    used = use_of(economics, "baseline")
    assert used.joules_per_1000_tokens is None
    assert used.joules_reason
    assert "energy (not metered in both arms)" in worth_of(economics).left_out


def test_metered_energy_enters_at_its_price(simple):
    """3.6 J a token are 0.001 kWh per 1,000 tokens: 0.30 a kWh adds 0.0003 to 0.022."""
    prepared = prepare_run(simple({"device_hour": 3.6, "energy_kwh": 0.3}))
    uses = [
        ServiceUse(
            arm=arm,
            load="low",
            periods=1,
            periods_used=1,
            samples=2,
            seconds=1.0,
            energy_per_output_token_joules=3.6,
        )
        for arm in ARMS
    ]
    used = use_of(compute_economics(prepared, uses, ()), "baseline")
    assert used.joules_per_1000_tokens == pytest.approx(3600)
    assert used.money_per_1000_tokens.low == pytest.approx(0.022 + 0.0003)


def test_the_alternative_is_judged_like_the_candidate(simple):
    """An alternative that is as quick and takes no work is the better buy."""
    prices = {"device_hour": 3.6, "engineer_hour": 50, "tokens_per_month": 1e6}
    run = simple(
        prices | {"candidate": {"one_off_hours": 1}},
        arms=(*ARMS, "alternative"),
        tpot_ms=lambda case: 10.0 if case.arm in {"candidate", "alternative"} else 20.0,
    )
    economics = economics_of(run)
    assert worth_of(economics, "alternative").saving_over_horizon.low == pytest.approx(117)
    assert worth_of(economics, "candidate").saving_over_horizon.low == pytest.approx(67)
    between = worth_of(economics, "candidate", "alternative")
    assert between.good_ratio.value == pytest.approx(1.0)
    assert between.saving_over_horizon.reason == "money is stated against the baseline"


def test_a_late_client_makes_no_economics(simple):
    """Periods in which the client was late are left out, and then two arms no longer compare."""
    run = simple(lag_ms=lambda case: 500.0 if case.arm == "candidate" and case.number == 0 else 1.0)
    found = worth_of(economics_of(run))
    assert found.good_ratio.value is None
    assert "late" in found.good_ratio.reason


def test_a_period_that_the_host_disturbed_is_in_no_window(simple):
    """Its requests are in no time, so that its length is not theirs; two such arms do not compare."""
    run = simple()
    whole, partly = (
        measure_device_time(prepare_run(note_hosts(run, uses)))["candidate", "low"]
        for uses in ({}, {("low", 0, "candidate"): BUSY})
    )
    assert (whole.is_whole, partly.is_whole) == (True, False)
    assert (whole.attempted, partly.attempted) == (40, 39)
    assert whole.window_s == pytest.approx(40 * CANDIDATE_S)
    assert partly.window_s == pytest.approx(39 * CANDIDATE_S)
    assert partly.seconds_per_ns == pytest.approx(whole.seconds_per_ns)


def test_a_run_in_which_every_request_failed_has_reasons_instead_of_figures(simple):
    """No token, no good request: None with a reason everywhere, and no crash."""
    economics = economics_of(simple({"device_hour": 1}, outcome=lambda _: "timeout"))
    used = use_of(economics, "candidate")
    assert used.good == 0
    assert used.device_s_per_1000_tokens.value is None
    assert used.device_s_per_1000_tokens.reason
    assert worth_of(economics).standing == "unknown"


def test_windows_of_no_length_give_no_device_time(simple):
    """A record without times of its periods is not divided by."""
    run = simple()
    still = tuple(msgspec.structs.replace(one, ended_ns=0) for one in run.blocks)
    times = measure_device_time(prepare_run(msgspec.structs.replace(run, blocks=still)))
    assert times["baseline", "low"].seconds_per_ns is None


COSTS = UnitCosts(seconds=(20.0, 24.0), ratio=(0.5, 0.6))


def test_the_range_of_a_unit_saving_takes_its_ends_from_the_corners():
    """Lowest: least time, worst ratio, lowest price; highest: the reverse."""
    found = unit_saving(Prices.model_validate({"device_hour": [1.8, 3.6]}), COSTS)
    assert found.low == pytest.approx(20 * 0.4 / 3600 * 1.8)
    assert found.high == pytest.approx(24 * 0.5 / 3600 * 3.6)


def test_recurring_work_is_paid_every_month_and_one_off_work_once():
    """Ten months, one hour a month and five once, at 10 an hour."""
    prices = Prices.model_validate({"device_hour": 3600, "engineer_hour": 10, "horizon_months": 10})
    work = Work.model_validate({"one_off_hours": 5, "recurring_hours_per_month": 1})
    exact = UnitCosts(seconds=(2.0, 2.0), ratio=(0.5, 0.5))
    saved = saving_over(prices, exact, work, (1000.0, 1000.0))
    assert saved.low == pytest.approx(10 * (2.0 * 0.5 * 1.0 - 10) - 50 + 0.0)


def test_no_volume_pays_where_a_unit_costs_no_less():
    """A dearer arm has no break-even; where only the worst case is dearer the range has no upper end."""
    prices = Prices.model_validate({"device_hour": 3.6, "engineer_hour": 10})
    work = Work.model_validate({"one_off_hours": 12})
    dearer = break_even_units(prices, UnitCosts(seconds=(1, 1), ratio=(1.1, 1.2)), work)
    assert (dearer.low, dearer.high) == (None, None)
    unsure = break_even_units(prices, UnitCosts(seconds=(1, 1), ratio=(0.5, 1.2)), work)
    assert unsure.low == pytest.approx(10 / (0.5 / 3600 * 3.6) * 1000)
    assert unsure.high is None
    assert unsure.reason


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (21.34, "21.3"), (-48_812.0, "−48,800"), (1_384_000.0, "1.38 million"), (0.0431, "0.0431")],
)
def test_amounts_are_written_with_three_digits(value, text):
    """No amount pretends to more than it knows."""
    assert amount(value) == text


def test_capacity_that_rests_on_few_good_requests_says_so(simple):
    """Fewer than half good: a sentence with n of m; at exactly half, or with none good, no sentence."""

    def told(good_of_candidate):
        run = simple(
            plan={"objectives": {"tpot_ms": 15.0}},
            tpot_ms=lambda case: 10.0 if case.arm != "candidate" or case.number < good_of_candidate else 20.0,
        )
        return economics_of(run).few_good

    assert told(20) is None
    assert told(19) == (
        "Fewer than half of the requests are good for candidate at load low (19 of 40): absolute capacity "
        "is based on these few, so read the ratios between arms."
    )
    assert told(0) is None


def test_several_rows_with_few_good_requests_are_counted_and_the_worst_is_named(simple):
    """One sentence whatever the number of arms and loads."""
    use = use_of(economics_of(simple()), "baseline")
    uses = [
        msgspec.structs.replace(use, arm=arm, good=good)
        for arm, good in (("baseline", 10), ("candidate", 12), ("baseline_null", 9), ("alternative", 30))
    ]
    assert (describe_few_good(uses) or "").startswith(
        "In 3 of 4 rows fewer than half of the requests are good, the smallest share for the null "
        "(baseline again) at load low (9 of 40): "
    )
