"""Of a period that was measured twice the host's evidence alone says which attempt counts."""

import msgspec
import numpy as np
import pytest
from tests.builders.disturbed import BUSY, QUIET, add_attempts, note_hosts
from tests.builders.runs import Layout, Requests, build_run

from draftproof.core.records import Notice, TelemetrySample
from draftproof.judge.compute import compute_results
from draftproof.judge.decide.decision import decide_run
from draftproof.judge.inform.evidence import find_evidence
from draftproof.judge.observe.attempts import find_disturbed_more
from draftproof.judge.observe.run_data import prepare_run
from draftproof.tell.report.summary import summarise

ARMS = ("baseline", "candidate", "baseline_null")
LAYOUT = Layout(
    segments=("chat",),
    loads=(("low", 1),),
    prompts=24,
    block_size=4,
    evidence="synthetic",
    thresholds={"failure_margin": 0.5, "quality_margin": 0.5},
    comparison={"resamples": 200},
)
ORDERS = {("low", block): ARMS for block in range(6)}
FIRST, OTHER = ("low", 0, "candidate"), ("low", 1, "baseline")


def made(*, slow=(), factor=3.0, ttft_ms=100.0):
    """A run of equal arms; the periods in `slow` take `factor` times as long."""
    blocks = np.arange(24) % 6
    drawn = {}
    for arm in ARMS:
        late = np.isin(blocks, [block for _, block, who in slow if who == arm])
        drawn[arm, "chat", "low"] = Requests(
            tpot_ms=np.where(late, factor, 1.0) * (20 + 0.1 * np.arange(24)),
            ttft_ms=np.full(24, ttft_ms),
            tokens=np.full(24, 40),
            is_ok=np.ones(24, dtype=bool),
        )
    return build_run(LAYOUT, drawn, ORDERS)


def twice(*, uses, again=()):
    """The first candidate's period is slow in its first attempt and not in its second."""
    first = note_hosts(made(slow=[FIRST]), uses)
    return add_attempts(first, note_hosts(made(ttft_ms=30.0), dict(again)), {FIRST})


def ratio(run, metric="tpot_ns"):
    return next(
        one.ratio.value
        for one in decide_run(run).evidence.effects
        if (one.metric, one.arm, one.segment) == (metric, "candidate", "task=chat")
    )


def test_a_disturbed_period_gives_way_to_its_second_attempt():
    """The host's evidence is stored with the first: the second counts, and the arms are equal."""
    run = twice(uses={FIRST: BUSY})
    assert ratio(run) == pytest.approx(1.0)
    assert prepare_run(run).counts["superseded"] == 4


def test_a_slow_period_on_a_quiet_host_keeps_its_place():
    """Somebody wrote a second attempt and nothing disturbed the first: the arm's own slowness counts."""
    assert ratio(twice(uses={})) == pytest.approx(ratio(made(slow=[FIRST])))
    assert ratio(twice(uses={})) > 1.2


def test_a_disturbed_period_without_a_quiet_attempt_is_left_out_and_named():
    """Its times are not the arm's own; the report says which period it is and what the host did."""
    run = note_hosts(made(slow=[FIRST]), {FIRST: BUSY})
    said = "low/0 of candidate (other programs used 1.3 cores)."
    expected = f"1 period was disturbed by the host, and its times are left out: {said}"
    assert expected in prepare_run(run).warnings
    assert ratio(run) == pytest.approx(1.0)


def test_what_the_host_does_to_more_than_a_fifth_counts():
    """Then it is what this host is like: nothing is left but to count it, and to say so."""
    periods = [("low", block, arm) for block in range(2) for arm in ("baseline", "candidate")]
    run = note_hosts(made(slow=periods), dict.fromkeys(periods, BUSY))
    assert [one.is_left_out for one in prepare_run(run).attempts] == [False] * 4
    assert any(
        "4 periods were disturbed by the host, and what was" in one for one in prepare_run(run).warnings
    )
    assert any("since more than a fifth of the periods of their load" in one for one in _warnings(run))
    three = note_hosts(made(slow=periods), dict.fromkeys(periods[:3], BUSY))
    assert [one.is_left_out for one in prepare_run(three).attempts] == [True] * 3


@pytest.mark.parametrize("heeds", [True, False])
def test_a_period_of_a_late_client_is_never_said_to_count(heeds):
    """Its times are left out for that alone, however many there are and whatever the plan says of repeats."""
    host = msgspec.structs.replace(QUIET, own_s=20.0, busy_s=21.0)
    periods = [("low", block, "candidate") for block in range(4)]
    run = note_hosts(made(), dict.fromkeys(periods, host))
    late = (
        msgspec.structs.replace(one, event_loop_lag_max_ns=80_000_000) if one.host is host else one
        for one in run.blocks
    )
    limits = run.plan.limits.model_copy(update={"repeat_disturbed": heeds})
    plan = run.plan.model_copy(update={"limits": limits})
    prepared = prepare_run(msgspec.structs.replace(run, blocks=tuple(late), plan=plan))
    assert [one.is_left_out for one in prepared.attempts] == [True] * 4
    assert any("4 periods were disturbed by the host, and their times" in one for one in prepared.warnings)


def test_a_plan_that_heeds_no_host_leaves_nothing_out():
    """`limits.repeat_disturbed = false`: measured is measured."""
    run = note_hosts(made(slow=[FIRST]), {FIRST: BUSY})
    limits = run.plan.limits.model_copy(update={"repeat_disturbed": False})
    run = msgspec.structs.replace(run, plan=run.plan.model_copy(update={"limits": limits}))
    assert ratio(run) > 1.2
    assert any("since the plan says limits.repeat_disturbed = false" in one for one in _warnings(run))


def _warnings(run):
    return prepare_run(run).warnings


def test_a_warning_says_of_which_attempt_it_speaks():
    """The first attempt that gave way, and what the host did to it; the second that was disturbed too."""
    worse = msgspec.structs.replace(BUSY, own_s=10.0)
    once, left_out = _warnings(twice(uses={FIRST: BUSY}, again={FIRST: worse}))
    assert "does not count: low/0 of candidate (other programs used 1.3 cores)." in once
    assert left_out == (
        "1 period was disturbed by the host, and its times are left out: second attempt at low/0 of "
        "candidate (other programs used 1.7 cores)."
    )


@pytest.mark.parametrize(("steal_s", "words"), [(0.3, ""), (3.0, ", the hypervisor took 0.1 cores")])
def test_what_is_written_as_no_core_is_not_named(steal_s, words):
    """Beside other programs a hundredth of a core is noise."""
    host = msgspec.structs.replace(BUSY, steal_s=steal_s)
    (found,) = prepare_run(note_hosts(made(), {FIRST: host})).attempts
    text = ", ".join(map(str, found.events))
    assert text.startswith("other programs used 1.3 cores")
    assert text.endswith("cores" + words)


def test_counts_of_requests_add_up_to_what_was_written():
    """Fill of a first attempt, a copied line and an unknown item have each their place, and only one."""
    run = twice(uses={FIRST: BUSY})
    records = [
        *run.records,
        *(msgspec.structs.replace(one, phase="fill", request_id=f"{one.request_id}f") for one in run.records),
        run.records[0],
        msgspec.structs.replace(run.records[0], request_id="u", item_id="nobody"),
    ]
    counts = prepare_run(msgspec.structs.replace(run, records=tuple(records))).counts
    parts = ("not_measured_phase", "duplicates", "superseded", "unknown", "measured")
    assert [counts[name] for name in parts] == [76, 1, 4, 1, 72]
    assert sum(counts[name] for name in parts) == counts["records"] == len(records)


def test_a_second_attempt_that_was_disturbed_too_takes_the_place_and_is_left_out():
    """Which attempt counts does not depend on how either came out."""
    run = twice(uses={FIRST: BUSY}, again={FIRST: BUSY})
    (found,) = prepare_run(run).attempts
    assert (found.counts, found.is_left_out) == (1, True)
    assert {
        one.attempt for one in prepare_run(run).run.blocks if (one.block, one.arm) == (0, "candidate")
    } == {1}


def test_a_second_attempt_that_was_broken_off_does_not_count():
    """The first is whole, so it stays, and was disturbed."""
    run = twice(uses={FIRST: BUSY})
    blocks = [msgspec.structs.replace(one, completed=False) if one.attempt else one for one in run.blocks]
    (found,) = prepare_run(msgspec.structs.replace(run, blocks=tuple(blocks))).attempts
    assert (found.second, found.counts, found.is_left_out) == (None, 0, True)


def test_first_tokens_of_a_second_attempt_are_left_out():
    """It asks the same prompts: a service that keeps them answers early, and that is no effect."""
    run = twice(uses={FIRST: BUSY})
    assert ratio(run, "ttft_from_schedule_ns") == pytest.approx(1.0)
    assert not any("metric_hidden" in str(cell.reasons) for cell in decide_run(run).cells)


def test_counters_of_an_attempt_that_does_not_count_are_left_out():
    """What a service counted meanwhile belongs to that attempt."""
    samples = tuple(
        TelemetrySample(arm="candidate", at_ns=at, values={}, period="low/0", attempt=at) for at in (0, 1)
    )
    kept = prepare_run(msgspec.structs.replace(twice(uses={FIRST: BUSY}), telemetry=samples)).run
    assert [one.attempt for one in kept.telemetry] == [1]


def test_an_arm_that_is_disturbed_more_than_chance_gives_is_named():
    """Four of six periods of one arm and none of 12 of the others: p = 15 / 3060, times three arms."""
    periods = {"baseline": 6, "candidate": 6, "baseline_null": 6}
    assert find_disturbed_more({"candidate": 4}, periods) == {"candidate": pytest.approx(3 * 15 / 3060)}
    assert find_disturbed_more({"candidate": 2, "baseline": 1}, periods) == {}
    assert find_disturbed_more({}, periods) == {}


def test_a_candidate_that_is_disturbed_more_gains_nothing():
    """What disturbs may be the arm itself, so its second attempts bring no gain."""
    periods = [("low", block, "candidate") for block in range(4)]
    gaining = made(slow=[("low", block, "candidate") for block in range(6)], factor=0.7)
    quiet = decide_run(note_hosts(gaining, {}))
    run = add_attempts(
        note_hosts(gaining, dict.fromkeys(periods, BUSY)), note_hosts(gaining, {}), set(periods)
    )
    results = compute_results(run)
    assert (quiet.cells[0].status, results.cells[0].status) == ("gain", "inconclusive")
    assert "disturbed_more" in {reason.code for reason in results.cells[0].reasons}
    assert any("4 of 6 periods of candidate and 0 of 12 of the other arms" in one for one in results.warnings)


@pytest.mark.parametrize(
    ("factor", "others", "withheld"),
    [(3.0, 0, True), (3.0, 2, False), (0.75, 0, False)],
    ids=["a stall", "other arms too", "a gain all the same"],
)
def test_a_single_disturbed_period_of_the_candidate_alone_must_not_carry_the_gain(factor, others, withheld):
    """No test tells one period from chance: the gain must then hold with its first attempt, too."""
    own = [("low", block, "candidate") for block in range(6)]
    gaining = made(slow=own, factor=0.7)
    stalled = made(slow=[FIRST], factor=factor)
    first = msgspec.structs.replace(
        gaining,
        records=tuple(
            slow if (fast.block, fast.arm) == FIRST[1:] else fast
            for fast, slow in zip(gaining.records, stalled.records, strict=True)
        ),
    )
    periods = {FIRST, *[("low", block, "baseline") for block in range(others)]}
    run = add_attempts(note_hosts(first, dict.fromkeys(periods, BUSY)), note_hosts(gaining, {}), periods)
    (cell,) = decide_run(run).cells
    assert ("gain_by_attempts" in {reason.code for reason in cell.reasons}) == withheld
    assert (cell.status == "gain") != withheld


@pytest.mark.parametrize(
    ("own_s", "arm", "withheld"),
    [
        (59.0, "candidate", True),
        (20.0, "candidate", False),
        (None, "candidate", False),
        (59.0, "baseline", False),
    ],
    ids=["own work fills the host", "cores were free", "nobody knows", "the baseline"],
)
def test_a_candidate_that_may_have_made_the_client_late_gains_nothing(own_s, arm, withheld):
    """Times of a late client are left out: where no other program was in the way, they may be its slowest."""
    gaining = made(slow=[("low", block, "candidate") for block in range(6)], factor=0.7)
    host = msgspec.structs.replace(QUIET, busy_s=59.5, own_s=own_s)
    run = note_hosts(gaining, {("low", 2, arm): host})
    late = [
        msgspec.structs.replace(one, event_loop_lag_max_ns=80_000_000)
        if (one.block, one.arm) == (2, arm)
        else one
        for one in run.blocks
    ]
    (cell,) = decide_run(msgspec.structs.replace(run, blocks=tuple(late))).cells
    assert ("late_by_itself" in {reason.code for reason in cell.reasons}) == withheld
    assert (cell.status == "gain") != withheld


def test_the_order_on_disk_does_not_matter():
    """Lines of both attempts in any order give the same results."""
    run = twice(uses={FIRST: BUSY, OTHER: QUIET})
    turned = msgspec.structs.replace(run, records=run.records[::-1], blocks=run.blocks[::-1])
    assert compute_results(turned) == compute_results(run)


def test_a_run_that_is_cut_short_names_a_busy_host():
    """In its reasons, its sentence and its answer; a run that is whole has a verdict to give instead."""
    run = twice(uses={FIRST: BUSY}, again={FIRST: QUIET})
    whole, cut = compute_results(run), compute_results(_without_last_block(run))
    assert "host_busy" not in {reason.code for reason in whole.verdict.reasons}
    reason = next(one for one in cut.verdict.reasons if one.code == "host_busy")
    assert reason.text == (
        "The host disturbed 1 of 15 periods: low/0 of candidate (other programs used 1.3 cores)."
    )
    assert find_evidence(cut, reason)
    assert reason.text.rstrip(".") in cut.verdict.sentence
    found = summarise(cut, "r")
    assert found.answer == "Inconclusive: the run is not complete, the host was busy."
    assert reason.text in found.blocks
    assert found.next == ("draftproof run --resume r --wait-for-quiet",)


def test_a_notice_of_a_busy_host_is_named_where_no_period_was_disturbed():
    """A run may have waited for a quiet host, or been stopped while it did."""
    notice = Notice(code="host_stolen", severity="note", text="Others take it.", remedy="wait", at_ns=1)
    run = msgspec.structs.replace(_without_last_block(note_hosts(made(), {})), notices=(notice,))
    texts = {one.code: one.text for one in compute_results(run).verdict.reasons}
    assert texts["host_busy"] == "The host was not quiet: others take it."


def _without_last_block(run):
    return msgspec.structs.replace(
        run,
        records=tuple(one for one in run.records if one.block < 5),
        blocks=tuple(one for one in run.blocks if one.block < 5),
    )
