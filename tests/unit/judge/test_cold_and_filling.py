"""Counted requests that were not of a steady service: cold ones, and queues that were still filling up."""

import msgspec
import numpy as np
import pytest
from tests.builders.records import MS_NS, build_record
from tests.builders.runs import Layout, Requests, build_run, order_periods

from draftproof.judge.compute import compute_results
from draftproof.judge.decide.counting import count_cold, find_cold_spells, warn_about_cold, withhold_for_cold
from draftproof.judge.inform.filling import (
    find_growth,
    measure_halves,
    warn_about_filling,
    warn_about_known_prompts,
)
from draftproof.judge.observe.run_data import prepare_run

LAYOUT = Layout(segments=("chat",), loads=(("busy", 4),), prompts=96, arms=("baseline", "candidate"))


def drawn_run(cold, *, slower=4.0, gain=0.8):
    """A run in which the first `cold[arm]` requests of an arm, in the order of sending, are slow."""
    rng = np.random.default_rng(5)
    drawn = {
        (arm, "chat", "busy"): Requests(
            tpot_ms=(10.0 if arm == "baseline" else 10.0 * gain) * rng.lognormal(0, 0.05, LAYOUT.prompts),
            ttft_ms=np.full(LAYOUT.prompts, 50.0),
            tokens=np.full(LAYOUT.prompts, 20),
            is_ok=np.ones(LAYOUT.prompts, dtype=bool),
        )
        for arm in LAYOUT.arms
    }
    run = build_run(LAYOUT, drawn, order_periods(LAYOUT, rng))
    blocks = tuple(msgspec.structs.replace(one, process=1) for one in run.blocks)
    run = msgspec.structs.replace(run, blocks=blocks)
    slow = set[str]()
    for arm, count in cold.items():
        own = sorted((one for one in run.records if one.arm == arm), key=in_order)
        slow |= {one.request_id for one in own[:count]}
    records = tuple(stretch(one, slower) if one.request_id in slow else one for one in run.records)
    return msgspec.structs.replace(run, records=records)


def in_order(record):
    return record.block, record.sent_ns, record.request_id


def stretch(record, slower):
    """The same answer with its chunks after the first so many times as far apart."""
    first_ns = record.chunks[0].arrival_ns
    chunks = tuple(
        msgspec.structs.replace(one, arrival_ns=first_ns + round(slower * (one.arrival_ns - first_ns)))
        for one in record.chunks
    )
    late_ns = chunks[-1].arrival_ns - record.chunks[-1].arrival_ns
    return msgspec.structs.replace(record, chunks=chunks, end_ns=record.end_ns + late_ns)


def test_a_slow_process_is_not_a_cold_one():
    """The first 40 requests are slow: the beginning of one process, or the luck of a process of their own."""
    run = drawn_run({"candidate": 40})
    assert find_cold_spells(prepare_run(run))
    first = sorted({one.block for one in run.records})[:5]
    blocks = tuple(msgspec.structs.replace(one, process=1 + (one.block not in first)) for one in run.blocks)
    assert not find_cold_spells(prepare_run(msgspec.structs.replace(run, blocks=blocks)))


@pytest.mark.parametrize("cold", [6, 16, 40])
def test_a_step_down_is_found_within_a_stretch(cold):
    """Of 96 requests the first 6, 16 or 40 take half as long again."""
    rng = np.random.default_rng(2)
    times = 10 * rng.lognormal(0, 0.05, 96)
    times[:cold] *= 1.5
    assert abs(count_cold(times) - cold) <= 6


@pytest.mark.parametrize("shape", ["flat", "slower_later", "drift", "one_late", "few", "bursts"])
def test_what_is_no_step_at_the_beginning_is_none(shape):
    """Noise, a machine that slows down or speeds up slowly, one slow answer, slow spells all along."""
    rng = np.random.default_rng(3)
    times = 10 * rng.lognormal(0, 0.1, 12 if shape == "few" else 96)
    if shape == "slower_later":
        times[40:] *= 1.5
    if shape == "drift":
        times *= np.linspace(1.1, 1.0, 96)
    if shape == "one_late":
        times[0] *= 20
    if shape == "few":
        times[:4] *= 3
    if shape == "bursts":
        times[0:12] *= 1.5
        times[60:72] *= 1.5
    assert count_cold(times) == 0


def test_chance_is_rarely_taken_for_a_step():
    """At most one arm in two hundred whose requests differ by a third, one in a hundred of uneven periods."""
    rng = np.random.default_rng(4)
    plain = sum(count_cold(rng.lognormal(0, 0.3, 96)) > 0 for _ in range(1000))
    periods = sum(
        count_cold(np.repeat(rng.lognormal(0, 0.1, 8), 12) * rng.lognormal(0, 0.1, 96)) > 0
        for _ in range(1000)
    )
    assert plain <= 5
    assert periods <= 10


@pytest.mark.parametrize(("arm", "sign"), [("baseline", "-"), ("candidate", "+")])
def test_an_arm_that_was_cold_decides_nothing_whichever_it_is(arm, sign):
    """The same rule for both: a cold baseline gives no gain, a cold candidate no harm."""
    run = drawn_run({arm: 24})
    prepared = prepare_run(run)
    spells = find_cold_spells(prepared)
    assert [(one.arm, one.load, one.all_requests) for one in spells] == [(arm, "busy", 96)]
    assert abs(spells[0].requests - 24) <= 6
    (reason,) = withhold_for_cold(spells, run.plan.thresholds)["busy"]
    assert reason.code == "cold_periods"
    assert f"moves candidate / baseline by {sign}" in reason.text
    results = compute_results(run)
    assert {cell.status for cell in results.cells} == {"invalid"}
    assert any(arm in line and "getting warm" in line for line in results.warnings)
    assert results.counts["pairs_ok"] == 96  # nothing is left out


def test_arms_that_were_equally_cold_are_told_and_judged():
    """What meets both arms alike moves their ratio little."""
    run = drawn_run({"baseline": 12, "candidate": 12}, slower=1.5, gain=0.99)
    spells = find_cold_spells(prepare_run(run))
    assert [one.arm for one in spells] == ["baseline", "candidate"]
    assert withhold_for_cold(spells, run.plan.thresholds) == {}
    (told,) = warn_about_cold(spells)
    assert "All of them count" in told
    assert told in compute_results(run).warnings


def test_a_steady_run_says_nothing_of_either():
    """No step, no lead: no word."""
    prepared = prepare_run(drawn_run({}))
    assert find_cold_spells(prepared) == ()
    assert list(warn_about_filling(prepared)) == list(warn_about_known_prompts(prepared)) == []


def test_leads_that_were_cut_and_prompts_that_were_known_are_told():
    """By arm and number of periods; what the record of an earlier version does not tell is not guessed."""
    run = drawn_run({})
    ends = {0: "cut", 1: "not_standing", 2: "whole"}
    blocks = tuple(
        msgspec.structs.replace(one, lead_end=ends.get(one.block, "whole"), lead_asks_counted=True)
        if one.arm == "candidate"
        else one
        for one in run.blocks
    )
    prepared = prepare_run(msgspec.structs.replace(run, blocks=blocks))
    empty, cut = warn_about_filling(prepared)
    assert "candidate in 1 of 12 periods. Waits there are of a service still filling up" in empty
    assert "candidate in 1 of 12 periods. An arm that is close to its capacity" in cut
    (known,) = warn_about_known_prompts(prepared)
    assert "counted prompts" in known


def period_of(spans):
    return [
        build_record(scheduled_ns=start * MS_NS, sent_ns=start * MS_NS, end_ns=end * MS_NS)
        for start, end in spans
    ]


def test_requests_in_flight_are_counted_by_halves_of_the_period():
    """One request over the first half, two over the second."""
    assert measure_halves(period_of([(0, 100), (50, 120), (100, 150)])) == (1.0, 2.0)
    assert measure_halves(period_of([(0, 100)])) is None


def test_a_queue_that_grows_in_every_period_is_no_chance():
    """By a tenth and by three standard errors; a queue that wanders is not named, nor are few periods."""
    grown = find_growth([(4.0, 6.0), (5.0, 6.5), (4.0, 7.0), (3.0, 5.0), (4.0, 6.0), (4.0, 5.5)])
    assert grown is not None
    assert (grown.first, grown.second, grown.periods) == (4.0, 6.0, 6)
    assert find_growth([(4.0, 6.0), (6.0, 4.0)] * 4) is None
    assert find_growth([(4.0, 4.2)] * 8) is None
    assert find_growth([(4.0, 8.0)] * 3) is None
