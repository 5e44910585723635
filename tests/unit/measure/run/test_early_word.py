"""A run is told early that it cannot end well, and a quiet host with a slow model is told nothing."""

from typing import Any

import msgspec
import pytest
from tests.builders.records import build_block_record

from draftproof.core.records import AcceleratorUse, HostUse
from draftproof.measure.run.early_warning import PeriodSeen, RunSeen, find_notices

LATE = ("the client itself was late",)


def use(foreign: float = 0.0, *, own: float = 1.9, span_s: float = 5.0, **fields: Any) -> HostUse:
    own = min(own, 2.0 - foreign)
    known: dict[str, Any] = {"steal_s": 0.0, "pressure_s": 0.9 * span_s}
    return HostUse(
        span_s=span_s, cores=2, busy_s=(own + foreign) * span_s, **({"own_s": own * span_s} | known | fields)
    )


def said(**fields: Any) -> list[tuple[str, str]]:
    return [(one.code, one.severity) for one in find_notices(RunSeen(**fields))]


def period(arm="baseline", block=0, *, tpot_ms=20.0, faults=(), load="low", **fields):
    record = build_block_record(arm=arm, block=block, load=load, **fields)
    return PeriodSeen(record=record, faults=faults, tpot_ns=None if tpot_ms is None else tpot_ms * 1e6)


def test_a_slow_model_on_a_quiet_host_gets_no_word():
    """Own work fills both cores, threads wait for each other, and each token takes two seconds."""
    periods = [period(arm, block, tpot_ms=2000.0) for block in range(3) for arm in ("baseline", "candidate")]
    assert said(slices=(use(0.02),) * 60, periods=tuple(periods), planned={"low": 6}, left_s=36_000) == []


def test_a_busy_loop_on_each_core_is_said_within_a_minute():
    """After ten seconds a note with figures and the remedy, after 45 the run is over."""
    busy = use(1.0)
    assert said(slices=(busy,)) == []
    assert said(slices=(busy, busy)) == [("host_busy", "note")]
    assert said(slices=(busy,) * 8) == [("host_busy", "note")]
    (notice,) = find_notices(RunSeen(slices=(busy,) * 9, left_s=3_900.0))
    assert (notice.code, notice.severity, notice.remedy) == ("host_busy", "cannot_end_well", "stop them")
    assert notice.text == (
        "Other programs have used 1.0 of this host's 2 cores for 45 s, and threads waited for a core 90% of "
        "the time: what the arms need there, they do not get; at this pace about 65 min are left."
    )


def test_a_burst_that_is_over_is_forgotten():
    """A cron job of half a minute ends no run: its periods are measured once more."""
    busy, quiet = use(1.0), use(0.02)
    assert said(slices=(busy,) * 6 + (quiet,) * 2) == []
    assert said(slices=(busy,) * 6 + (quiet,)) == [("host_busy", "note")]


def test_others_that_pause_for_a_moment_are_still_there():
    """One quiet slice in five does not begin the count anew."""
    busy, quiet = use(1.0), use(0.02)
    slices = ((busy,) * 4 + (quiet,)) * 2 + (busy,) * 2
    assert said(slices=slices)[0] == ("host_busy", "cannot_end_well")


def test_patience_grows_with_what_would_be_lost():
    """After an hour of quiet measuring six minutes of others' work end the run, and one minute does not."""
    busy = use(1.0)
    assert said(slices=(busy,) * 12, well_s=3600.0) == [("host_busy", "note")]
    assert said(slices=(busy,) * 73, well_s=3600.0) == [("host_busy", "cannot_end_well")]
    assert said(slices=(busy,) * 120, well_s=100 * 3600.0) == [("host_busy", "cannot_end_well")]


def test_a_little_of_others_work_is_a_note():
    """An eighth of the cores disturbs periods, which are measured once more; it ends no run."""
    assert said(slices=(use(0.3, pressure_s=2.0),) * 100) == [("host_busy", "note")]


def test_services_elsewhere_do_not_need_these_cores():
    """Then only the client's own lateness can spoil a run."""
    assert said(slices=(use(1.0),) * 100, serves_here=False) == [("host_busy", "note")]


def test_stolen_time_is_named_as_such():
    """No program of this host is at fault, and stopping them would not help."""
    stolen = use(0.0, own=1.2, steal_s=3.0)
    (notice,) = find_notices(RunSeen(slices=(stolen,) * 10))
    assert (notice.code, notice.severity) == ("host_stolen", "cannot_end_well")
    assert "The hypervisor has taken 0.6 of this host's 2 cores" in notice.text
    assert "machine of your own" in notice.remedy


def test_unknown_own_work_is_said_once_and_accuses_nobody():
    """Where it cannot be told whose work it is, that is what is said."""
    hidden = use(1.0, own_s=None)
    assert said(slices=(hidden,) * 100, hidden=("baseline",)) == [("foreign_unknown", "note")]
    (notice,) = find_notices(RunSeen(hidden=("baseline", "candidate")))
    assert "processes of baseline, candidate cannot be told" in notice.text


def test_a_load_whose_client_was_unfit_too_often_is_lost():
    """Three of 12 periods are more than a fifth, whatever comes; another load may yet be judged."""
    lost = [period(block=block, faults=LATE) for block in range(3)]
    well = [period("candidate", block) for block in range(3)]
    seen = {"periods": (*lost, *well), "planned": {"low": 12, "high": 12}}
    assert said(**seen) == [("client_late", "note")]
    assert said(**(seen | {"planned": {"low": 12}})) == [("client_late", "cannot_end_well")]
    assert said(**(seen | {"planned": {"low": 15}})) == []


def test_a_client_unfit_from_the_start_is_said_after_three_periods():
    """Of 60 periods three are few, but by chance the first three are all bad in one of a hundred runs."""
    periods = tuple(period(block=block, faults=LATE) for block in range(3))
    assert said(periods=periods[:2], planned={"low": 60}) == []
    (notice,) = find_notices(RunSeen(periods=periods, planned={"low": 60}))
    assert notice.severity == "cannot_end_well"
    assert notice.text == (
        "At load low the client itself was late in 3 of 3 periods of baseline and candidate, and more than "
        "20% of 60 are too many. No load can be judged any more."
    )


def test_a_period_that_may_be_measured_once_more_is_not_lost_yet():
    """The host disturbed it, so its second attempt decides; that of the null arm decides nothing."""
    busy = use(1.0, span_s=30.0)
    first = [period(block=block, faults=LATE, host=busy) for block in range(3)]
    null = [period("baseline_null", block, faults=LATE) for block in range(3)]
    again = [period(block=block, faults=LATE, host=busy, attempt=1) for block in range(3)]
    assert said(periods=(*first, *null), planned={"low": 12}) == []
    assert said(periods=(*first, *again), planned={"low": 12}) == [("client_late", "cannot_end_well")]


def test_drift_of_every_arm_is_the_machines():
    """All arms take twice as long as at first: said, and no run ends for it. One arm alone is its own."""
    start = [period(arm, 0) for arm in ("baseline", "candidate")]
    both = [period(arm, 1, tpot_ms=40.0) for arm in ("baseline", "candidate")]
    assert said(periods=(*start, *both)) == [("drift", "note")]
    assert said(periods=(*start, *both[:1])) == []
    assert said(periods=(*start, both[0], period("candidate", 1))) == []
    assert said(periods=(*start, *(period(arm, 1, tpot_ms=None) for arm in ("baseline", "candidate")))) == []


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        (
            {"clock_mhz": 1410.0, "temperature_c": 84.0},
            "ran at 1,410 MHz under candidate (up to 84 °C) and at",
        ),
        (
            {"power_limit_w": 500.0},
            "had another power limit under each arm: 700 W under baseline, 500 W under",
        ),
        ({"throttled": 1}, "was slowed down by heat or its supply under candidate"),
    ],
)
def test_an_accelerator_that_ran_otherwise_under_one_arm_is_named(slow, words):
    """Clock, power limit and throttling are compared by arm, with figures; equal ones get no word."""
    cool = AcceleratorUse(index=0, samples=9, throttled=0, clock_mhz=1755.0, power_limit_w=700.0)
    hot = msgspec.structs.replace(cool, **slow)
    periods = [
        period(arm, host=use(span_s=30.0, accelerators=(one,)))
        for arm, one in (("baseline", cool), ("candidate", hot))
    ]
    (notice,) = find_notices(RunSeen(periods=tuple(periods)))
    assert (notice.code, notice.severity) == ("accelerator", "note")
    assert words in notice.text
    assert said(periods=(periods[0], period("candidate", host=use(span_s=30.0, accelerators=(cool,))))) == []


def test_the_gravest_comes_first():
    """Whoever reads one line reads what ends the run."""
    start = [period(arm, 0) for arm in ("baseline", "candidate")]
    later = [period(arm, 1, tpot_ms=40.0) for arm in ("baseline", "candidate")]
    found = said(slices=(use(1.0),) * 10, periods=(*start, *later), hidden=("x",))
    assert [one[1] for one in found] == ["cannot_end_well", "note", "note"]
