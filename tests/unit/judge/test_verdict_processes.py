"""Luck of a process and what precedes a period: what is known of them, and what that withholds."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.builders.runs import TURN_NS, Layout, Requests, build_run, order_periods

from draftproof.core.records import RequestRecord, TelemetrySample, Warmup
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.decide.forecast import forecast_shortfalls
from draftproof.judge.decide.preceding import find_preceding
from draftproof.judge.decide.samples import plan_samples
from draftproof.judge.decide.spreads import read_earlier
from draftproof.judge.observe.observed import label_processes, list_processes
from draftproof.judge.observe.run_data import RunData, prepare_run
from draftproof.judge.results.samples import SampleQuestion
from draftproof.tell.report.order import order_sentence

LAYOUT = Layout(
    segments=("chat",),
    loads=(("low", 1),),
    prompts=96,
    block_size=16,
    thresholds={"failure_margin": 0.1, "tail_quantile": "p90", "e2e_margin": 0.9, "tail_margin": 4.0},
)
BEGAN = "process_start_time_seconds"


def draw_run(ratio=0.6, *, layout=LAYOUT, fails=0.0) -> RunData:
    """A run of six blocks; the candidate takes `ratio` of the time and fails a share of its requests."""
    rng = np.random.default_rng(4)
    base = np.exp(rng.normal(3.0, 0.02, layout.prompts))
    drawn = {
        (arm, "chat", "low"): Requests(
            tpot_ms=base
            * (ratio if arm == "candidate" else 1.0)
            * np.exp(rng.normal(0, 0.01, layout.prompts)),
            ttft_ms=np.full(layout.prompts, 100.0) * np.exp(rng.normal(0, 0.01, layout.prompts)),
            tokens=np.full(layout.prompts, 40),
            is_ok=np.arange(layout.prompts) >= (fails * layout.prompts if arm == "candidate" else 0),
        )
        for arm in layout.arms
    }
    return build_run(layout, drawn, order_periods(layout, rng))


def with_processes(run: RunData, count: int | None) -> RunData:
    """So many processes of each arm, one after the other; None: the records do not tell."""
    blocks = tuple(
        msgspec.structs.replace(one, process=None if count is None else 1 + one.block * count // 6)
        for one in run.blocks
    )
    return msgspec.structs.replace(run, blocks=blocks)


def with_plan(run: RunData, **changes: Any) -> RunData:
    return msgspec.structs.replace(run, plan=run.plan.model_copy(update=changes))


def attach(run: RunData, **urls: str) -> RunData:
    """The arms are attached to by address."""
    arms = {name: getattr(run.plan.arms, name).model_copy(update={"url": url}) for name, url in urls.items()}
    return with_plan(with_processes(run, None), arms=run.plan.arms.model_copy(update=arms))


def weigh(run: RunData) -> tuple[str, set[str]]:
    """Return the status of the one cell and the codes of its reasons."""
    (cell,) = decide_run(run).cells
    return cell.status, {reason.code for reason in cell.reasons}


@pytest.mark.parametrize("ratio", [0.6, 1.6])
@pytest.mark.parametrize("count", [None, 1, 2])
def test_with_fewer_than_three_processes_neither_gain_nor_harm_is_concluded(ratio, count):
    """Representative evidence: what the luck of a start may have made is no effect, whichever way it goes."""
    status, codes = weigh(with_processes(draw_run(ratio), count))
    assert status == "inconclusive"
    assert "few_processes" in codes


@pytest.mark.parametrize(("ratio", "expected"), [(0.6, "gain"), (1.6, "harm")])
def test_three_processes_are_enough(ratio, expected):
    """Equal processes: the effect stands out of what they differ by."""
    assert weigh(with_processes(draw_run(ratio), 3)) == (
        expected,
        {f"effect_{expected}"} | weigh(draw_run(ratio))[1],
    )


@pytest.mark.parametrize(("count", "expected"), [(1, "inconclusive"), (3, "defer")])
def test_with_fewer_than_three_processes_the_absence_of_a_gain_is_not_concluded(count, expected):
    """Equal arms: a gain may be hidden by the luck of a start."""
    assert decide_run(with_processes(draw_run(1.0), count)).decision == expected


def test_what_is_no_time_is_harm_with_one_process():
    """A process's luck fails no request."""
    status, codes = weigh(with_processes(draw_run(0.6, fails=0.5), 1))
    assert status == "harm"
    assert "few_processes" not in codes


@pytest.mark.parametrize(("count", "says"), [(1, True), (2, True), (3, False), (None, True)])
def test_the_sentence_says_what_other_starts_would_change(count, says):
    """With any evidence; a pilot hypothesis is claimed all the same."""
    run = with_plan(with_processes(draw_run(), count), evidence="synthetic")
    results = compute_results(run)
    assert results.verdict.decision == "adopt"
    assert ("what other starts of candidate and baseline would change" in results.verdict.sentence) is says


def with_luck(run: RunData) -> RunData:
    """The processes of each arm differ by 10 %, each arm's in an order of its own."""
    process = {(one.block, one.arm): one.process or 0 for one in run.blocks}

    def stretch(one: RequestRecord) -> RequestRecord:
        shift = {"baseline": 0, "candidate": 1, "baseline_null": 2}[one.arm]
        factor = (1.0, 1.1, 0.9)[(process[one.block, one.arm] + shift) % 3]
        chunks = tuple(
            msgspec.structs.replace(
                chunk, arrival_ns=one.scheduled_ns + round((chunk.arrival_ns - one.scheduled_ns) * factor)
            )
            for chunk in one.chunks
        )
        return msgspec.structs.replace(one, chunks=chunks, end_ns=chunks[-1].arrival_ns)

    return msgspec.structs.replace(run, records=tuple(map(stretch, run.records)))


def test_luck_widens_the_interval_where_it_shows():
    """Three processes that differ by 10 %: the interval is far wider, and a gain of 15 % is not shown."""
    run = with_processes(draw_run(0.85), 3)
    changed = with_luck(run)
    plain, wide = (decide_run(one).evidence.effects[0].ratio for one in (run, changed))
    assert plain.low is not None
    assert plain.high is not None
    assert wide.low is not None
    assert wide.high is not None
    assert np.log(wide.high / wide.low) > 5 * np.log(plain.high / plain.low)
    assert weigh(run)[0] == "gain"
    assert weigh(changed)[0] == "inconclusive"


def test_the_results_state_the_spread_and_its_degrees_of_freedom():
    """Three processes of three arms, of which two are equal: 5 degrees of freedom, and 10 % of luck."""
    run = with_processes(draw_run(0.85), 3)
    order = compute_results(with_luck(run)).order
    assert order is not None
    assert order.processes is not None
    assert order.processes.counts == dict.fromkeys(LAYOUT.arms, 3)
    assert order.processes.spread == pytest.approx(1.1, abs=0.03)
    assert order.processes.degrees == pytest.approx(5.0, abs=0.2)
    assert "(standard deviation, 5.0 degrees of freedom)" in order_sentence(compute_results(with_luck(run)))
    one = compute_results(with_processes(run, 1))
    assert "what another start of it would change is not known" in order_sentence(one)
    assert "6 processes or more answered for each arm." in order_sentence(compute_results(draw_run()))
    assert "process" not in order_sentence(compute_results(with_processes(run, None)))


def test_arms_behind_one_address_share_their_process():
    """What a process does to both is in no ratio: one is enough, and nothing is said of other starts."""
    run = attach(draw_run(), baseline="http://h:1", candidate="http://h:1/")
    assert weigh(run)[0] == "gain"
    results = compute_results(run)
    assert "other starts" not in results.verdict.sentence
    assert "process" not in order_sentence(results)


def test_an_attached_service_is_as_many_processes_as_its_metrics_say():
    """One that does not tell when it began is one process; with three beginnings it is three."""
    run = attach(draw_run(), baseline="http://h:1", candidate="http://h:2")
    status, codes = weigh(run)
    assert (status, "few_processes" in codes) == ("inconclusive", True)
    samples = tuple(
        TelemetrySample(
            arm=one.arm, at_ns=one.started_ns, period=f"low/{one.block}", mark="start",
            values={BEGAN: 1000.0 + one.block // 2},
        )
        for one in run.blocks
    )  # fmt: skip
    told = msgspec.structs.replace(run, telemetry=samples)
    labels = label_processes(told)
    assert len(list_processes(labels, "low", "candidate")) == 3
    assert list_processes(labels, "low", "baseline") == list_processes(labels, "low", "baseline_null")
    assert "few_processes" not in weigh(told)[1]


def test_older_records_tell_processes_by_their_warm_ups():
    """A start that a warm-up tells of holds until the next; without any the process is not known."""
    run = with_processes(draw_run(), None)
    first = {one.arm: min(b.started_ns for b in run.blocks if b.arm == one.arm) for one in run.blocks}
    warmups = tuple(
        Warmup(
            arm=arm, load="low", block=0, start=start, started_ns=at - 1 + (start - 1) * 9 * TURN_NS,
            ended_ns=at, stable=True, tolerance=0.1, change=None, groups=(),
        )
        for arm, at in first.items()
        for start in (1, 2)
    )  # fmt: skip
    labels = label_processes(msgspec.structs.replace(run, warmups=warmups))
    assert list_processes(labels, "low", "candidate") == {"candidate 1", "candidate 2"}
    assert list_processes(label_processes(run), "low", "candidate") == {None}


def pause_before(run: RunData, arm: str, seconds: float) -> RunData:
    """The host rests before each period of an arm."""
    waited, told = 0, []
    for one in sorted(run.blocks, key=lambda one: one.started_ns):
        waited += round(seconds * 1e9) * (one.arm == arm)
        told.append(
            msgspec.structs.replace(one, started_ns=one.started_ns + waited, ended_ns=one.ended_ns + waited)
        )
    return msgspec.structs.replace(run, blocks=tuple(told))


@pytest.mark.parametrize("evidence", ["representative", "synthetic"])
@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.5, "gain"), (0.8, "inconclusive"), (0.92, "inconclusive"), (1.0, "inconclusive"),
     (1.25, "inconclusive"), (2.0, "harm")],
)  # fmt: skip
def test_an_arm_that_alone_follows_pauses_shows_what_no_pause_makes(ratio, expected, evidence):
    """Nothing tells the pause from the arm: half as much again may be the pause, and it is always said."""
    run = with_plan(pause_before(draw_run(ratio), "candidate", 5.0), evidence=evidence)
    status, codes = weigh(run)
    assert status == expected
    assert ("follows_unlike" in codes) is (expected == "inconclusive")
    results = compute_results(run)
    assert results.verdict.decision == {"gain": "adopt", "harm": "defer"}.get(expected, expected)
    (warning,) = [one for one in results.warnings if "just before" in one or "idle before" in one]
    assert "the host was idle before 100 % of the candidate's periods, but " in warning
    assert "no period shows how much that changes candidate / baseline" in warning
    assert "at most -33.3 % to +50.0 % is assumed" in warning


def test_pauses_before_every_period_or_too_short_to_matter_are_no_difference():
    """All arms wait alike, or for less than a second."""
    run = draw_run()
    for arm in LAYOUT.arms:
        run = pause_before(run, arm, 5.0)
    assert weigh(run)[0] == "gain"
    assert weigh(pause_before(draw_run(), "candidate", 0.5))[0] == "gain"


def test_a_warm_up_before_a_period_is_no_pause():
    """The host was busy with it."""
    run = pause_before(draw_run(), "candidate", 5.0)
    warmups = tuple(
        Warmup(
            arm="candidate", load="low", block=one.block, start=one.block + 1,
            started_ns=one.started_ns - 5_000_000_000, ended_ns=one.started_ns, stable=True,
            tolerance=0.1, change=None, groups=(),
        )
        for one in run.blocks
        if one.arm == "candidate"
    )  # fmt: skip
    assert weigh(msgspec.structs.replace(run, warmups=warmups))[0] == "gain"


def reorder(run: RunData, order: tuple[str, ...]) -> RunData:
    """Every block in one order, as a rotation over few blocks may have it."""
    told = tuple(
        msgspec.structs.replace(
            one,
            order=order.index(one.arm),
            started_ns=one.started_ns + (order.index(one.arm) - one.order) * TURN_NS,
            ended_ns=one.ended_ns + (order.index(one.arm) - one.order) * TURN_NS,
        )
        for one in run.blocks
    )
    return msgspec.structs.replace(run, blocks=told)


def stretch(run: RunData, arm: str, factor: float) -> RunData:
    """All times of an arm are multiplied."""

    def move(one: RequestRecord) -> RequestRecord:
        chunks = tuple(
            msgspec.structs.replace(
                chunk, arrival_ns=one.scheduled_ns + round((chunk.arrival_ns - one.scheduled_ns) * factor)
            )
            for chunk in one.chunks
        )
        return msgspec.structs.replace(one, chunks=chunks, end_ns=chunks[-1].arrival_ns)

    return msgspec.structs.replace(
        run, records=tuple(move(one) if one.arm == arm else one for one in run.records)
    )


@pytest.mark.parametrize(("ratio", "slowed", "expected"), [(0.6, 1.2, "gain"), (1.0, 1.2, "inconclusive")])
def test_the_null_arm_tells_what_following_another_does(ratio, slowed, expected):
    """In every block the baseline follows the candidate and is slower for it; the null arm does not."""
    run = stretch(draw_run(ratio), "baseline", slowed)
    run = reorder(run, ("candidate", "baseline", "baseline_null"))
    assert weigh(run)[0] == expected
    (warning,) = [
        one for one in compute_results(run).warnings if "just before" in one or "idle before" in one
    ]
    assert "ran just before 0 % of the candidate's periods, but 100 % of the baseline's" in warning
    assert "changes candidate / baseline by -17" in warning


def test_in_the_order_of_a_plan_nothing_is_uneven():
    """Six blocks in the order of a plan: the rows say what each arm follows, and nobody is warned."""
    results = compute_results(draw_run())
    assert results.order is not None
    rows = {one.arm: one for one in results.order.preceding}
    assert sum(one.periods for one in rows.values()) == 17
    assert all(sum(one.follows.values()) == one.periods for one in rows.values())
    assert sum(one.after_pause for one in rows.values()) == 0
    assert not [one for one in results.warnings if "just before" in one or "idle before" in one]


def test_a_null_arm_that_asks_the_baseline_s_service_last_is_weighed_for_what_it_follows():
    """Half of the baseline's periods follow the candidate and none of the candidate's: told, and small."""
    run = draw_run()
    orders = [("baseline", "candidate", "baseline_null"), ("candidate", "baseline", "baseline_null")]
    told = tuple(
        msgspec.structs.replace(
            one,
            order=(place := orders[one.block % 2].index(one.arm)),
            started_ns=one.started_ns + (place - one.order) * TURN_NS,
            ended_ns=one.ended_ns + (place - one.order) * TURN_NS,
        )
        for one in run.blocks
    )
    last = msgspec.structs.replace(run, blocks=told)
    results = compute_results(last)
    (warning,) = [one for one in results.warnings if "just before" in one or "idle before" in one]
    assert "60 % of the baseline's; by the run's own periods" in warning
    assert results.cells[0].status == "gain"


def test_the_first_period_follows_nothing_and_a_repeated_one_its_own_arm():
    """Every record of a period that was measured counts for what comes after it."""
    run = draw_run()
    first, second = sorted(run.blocks, key=lambda one: one.started_ns)[:2]
    again = msgspec.structs.replace(
        first, attempt=1, started_ns=first.ended_ns, ended_ns=first.ended_ns + 1, completed=False
    )
    found = find_preceding(prepare_run(msgspec.structs.replace(run, blocks=(*run.blocks, again))))
    assert ("low", first.block, first.arm) not in found
    assert found["low", second.block, second.arm].arm == first.arm


def shortfalls_of(run: RunData, restarts: int | str, **urls: str) -> list[str]:
    limits = run.plan.limits.model_copy(update={"restarts": restarts})
    plan = with_plan(attach(run, **urls) if urls else run, limits=limits).plan
    return [one.text for one in forecast_shortfalls(plan, run.items) if one.load == "all" and not one.more]


def test_a_plan_without_enough_processes_is_told_so_before_it_is_run():
    """Representative evidence: attached arms with an address each, or fewer than two restarts."""
    run = draw_run()
    assert shortfalls_of(run, "auto") == []
    assert shortfalls_of(run, 2) == []
    (fixed,) = shortfalls_of(run, 1)
    assert "With limits.restarts = 1 an arm may be fast by the chance of its start" in fixed
    (attached,) = shortfalls_of(run, "auto", baseline="http://h:1", candidate="http://h:2")
    assert "The run only attaches to baseline and candidate" in attached
    assert shortfalls_of(run, "auto", baseline="http://h:1", candidate="http://h:1") == []
    assert shortfalls_of(with_plan(run, evidence="synthetic"), 0) == []


def test_samples_says_where_processes_and_not_prompts_are_missing():
    """Three processes that differ by 10 %: no number of prompts shows a gain of 10 %."""
    run = with_luck(with_processes(draw_run(0.9), 3))
    found = plan_samples(
        run.plan,
        run.items,
        SampleQuestion(gain=0.1, statistic="mean", power=0.8),
        read_earlier(prepare_run(run)),
    )
    (need,) = [one for one in found.needs if one.aim == "gain"]
    assert need.reason is not None
    assert "processes of an arm differ by as much as such a gain" in need.reason
    assert need.more is None
