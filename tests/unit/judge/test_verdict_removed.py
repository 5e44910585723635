"""Whoever takes lines out of a journal, or puts them in twice, does not choose the verdict by it."""

import msgspec
import pytest

from draftproof.core.records import Judgement
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.observe.run_data import index_judgements, prepare_run

ALL_ARMS = ("baseline", "candidate", "alternative", "baseline_null")


def fast(case):
    """Return 20 ms a token, 12 for the candidate."""
    return 12.0 if case.arm == "candidate" else 20.0


def fast_but_in_some_periods(case):
    """Return a candidate that is no gain: in one period of four it is three times as slow."""
    if case.arm != "candidate":
        return 20.0
    return 60.0 if case.number % 4 == 0 else 10.0


def find_periods(run, wanted, share=1.0):
    """Return (load, block) of the slowest periods of an arm, so large a share of them."""
    times: dict[tuple[str, int], list[int]] = {}
    for one in run.records:
        if one.arm == wanted:
            times.setdefault((one.load, one.block), []).append(one.end_ns - one.scheduled_ns)
    slowest = sorted(times, key=lambda period: (-max(times[period]), period))
    return set(slowest[: max(1, round(share * len(slowest)))])


def take_out(run, arm, periods, *, requests):
    """Return a run without the lines of some periods of an arm and, where asked, without their requests."""

    def is_left(one):
        return one.arm != arm or (one.load, one.block) not in periods

    records = tuple(one for one in run.records if not requests or is_left(one))
    return msgspec.structs.replace(
        run, blocks=tuple(one for one in run.blocks if is_left(one)), records=records
    )


def assert_incomplete(results):
    """Nothing is adopted, and the first reason says why."""
    assert results.verdict.decision == "inconclusive"
    assert results.verdict.envelope == ()
    assert "incomplete" in {reason.code for reason in results.verdict.reasons}


@pytest.mark.parametrize("requests", [False, True])
def test_without_the_slowest_periods_of_the_candidate_a_run_is_incomplete(world, requests):
    """Their requests with them or not: the plan says which periods there are, and these did not end."""
    run = world(tpot_ms=fast_but_in_some_periods).run()
    assert decide_run(run).decision not in {"adopt", "adopt_limited"}
    cut = take_out(run, "candidate", find_periods(run, "candidate", 0.25), requests=requests)
    assert_incomplete(compute_results(cut))


@pytest.mark.parametrize("arm", ["baseline", "candidate", "alternative"])
def test_without_the_records_of_all_periods_of_an_arm_a_run_is_incomplete(world, arm):
    """An arm that decides, and one period of it is enough: its times are nobody's to trust."""
    run = world(arms=ALL_ARMS, tpot_ms=fast).run()
    assert decide_run(run).decision == "adopt"
    every = find_periods(run, arm)
    for periods in (every, {min(every)}):
        results = compute_results(take_out(run, arm, periods, requests=False))
        assert results.verdict.decision in {"inconclusive", "invalid"}
        assert "incomplete" in {reason.code for reason in results.verdict.reasons}


def test_a_period_whose_record_says_that_it_was_broken_off_has_not_ended(world):
    """The line of the part that was stopped is no record of an end."""
    run = world(tpot_ms=fast).run()
    stopped = msgspec.structs.replace(run.blocks[0], completed=False)
    results = compute_results(msgspec.structs.replace(run, blocks=(stopped, *run.blocks[1:])))
    assert_incomplete(results)
    gone_on = decide_run(msgspec.structs.replace(run, blocks=(stopped, *run.blocks)))
    assert gone_on.decision == "adopt"


def test_lines_that_stand_there_twice_change_no_figure(world):
    """Requests, periods and fills: all that differs is the counts and the two sentences that say so."""
    run = world(tpot_ms=fast).run()
    fill = msgspec.structs.replace(run.records[0], request_id="fill", phase="fill")
    plain = msgspec.structs.replace(run, records=(*run.records, fill))
    twice = msgspec.structs.replace(
        plain, records=(*plain.records, run.records[0], fill), blocks=(run.blocks[0], *run.blocks)
    )
    once, more = compute_results(plain), compute_results(twice)
    assert more.counts["duplicates"] == 1
    added = [text for text in more.warnings if text not in once.warnings]
    assert sorted(added) == [
        "1 records repeat a request id; the one that ended first is kept.",
        "2 lines of periods or uncounted requests repeat another; each counts once.",
    ]
    bare = [msgspec.structs.replace(one, counts={}, warnings=()) for one in (once, more)]
    assert bare[0] == bare[1]


def test_a_second_copy_of_a_judgement_is_no_second_vote():
    """The passes of a judge are numbered; a line that is there twice is one pass."""
    votes = [
        Judgement(
            request_id="r",
            item_id="i",
            check=0,
            kind="judge",
            passed=passed,
            detail="",
            by="judge",
            source_sha256="s",
            answer_sha256="a",
            attempt=attempt,
        )
        for attempt, passed in enumerate((True, False, False))
    ]
    assert index_judgements([*votes, votes[0], votes[0]]) == index_judgements(votes)


def test_a_request_of_a_period_without_a_record_has_not_ended(world):
    """What the plan asks for and what is known to have ended are counted apart."""
    run = world(tpot_ms=fast).run()
    prepared = prepare_run(take_out(run, "candidate", {("low", run.blocks[0].block)}, requests=False))
    ended = {one.record.request_id: prepared.has_ended(one.record) for one in prepared.observations}
    lost = {
        one.request_id
        for one in run.records
        if (one.arm, one.load, one.block) == ("candidate", "low", run.blocks[0].block)
    }
    assert lost
    assert {name for name, has_ended in ended.items() if not has_ended} == lost
