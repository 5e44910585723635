"""A disturbed period is known by what its host did, never by how long the arm took."""

import msgspec
import pytest

from draftproof.core.records import AcceleratorUse, BlockRecord, HostUse
from draftproof.judge.metrics.host_use import find_throttled, is_crowded, is_disturbed, join_uses, taken_cores
from draftproof.judge.observe.attempts import find_host_events

MS = 1_000_000
LIMIT_MS = 50.0


def use(*, cores=2, own=1.9, foreign=0.0, span_s=30.0, **fields):
    """A span in which own and foreign programs used so many cores on average."""
    known = {"steal_s": 0.0, "pressure_s": 0.0}
    return HostUse(
        span_s=span_s,
        cores=cores,
        busy_s=(own + foreign) * span_s,
        **({"own_s": own * span_s} | known | fields),
    )


def period(host=None, **fields):
    known = {"started_ns": 0, "ended_ns": 30_000 * MS, "completed": True, "event_loop_lag_max_ns": MS}
    return BlockRecord(
        block=0, load="low", arm="candidate", order=0, client_cpu_s=0.1, host=host, **(known | fields)
    )


def events_of(*parts):
    return [one.kind for one in find_host_events(parts, LIMIT_MS)]


def test_own_work_on_every_core_is_no_disturbance():
    """A service that takes the whole host, with threads that wait for each other, is the arm itself."""
    own = use(own=1.98, foreign=0.02, pressure_s=29.0)
    assert (is_disturbed(own), is_crowded(own), events_of(period(own))) == (False, False, [])


def test_a_host_with_cores_to_spare_ends_no_run():
    """A third of the cores is others', and threads waited for a moment or each other, but a third is idle."""
    found = use(cores=64, own=22, foreign=21, pressure_s=6.0)
    assert (is_disturbed(found), is_crowded(found)) == (True, False)
    assert is_crowded(msgspec.structs.replace(found, busy_s=48.0 * 30, own_s=27.0 * 30))
    assert is_crowded(use(cores=64, own=10, steal_s=16 * 30.0))


@pytest.mark.parametrize(
    ("foreign", "disturbed", "crowded"), [(0.1, False, False), (0.25, True, False), (0.6, True, True)]
)
def test_foreign_programs_on_a_full_host(foreign, disturbed, crowded):
    """A tenth of the cores disturbs a period, a quarter of them ends a run; less is what every host does."""
    found = use(own=1.9 - foreign, foreign=foreign, pressure_s=20.0)
    assert (is_disturbed(found), is_crowded(found)) == (disturbed, crowded)
    assert events_of(period(found)) == (["foreign"] if disturbed else [])


def test_foreign_programs_on_idle_cores_take_nothing():
    """Ten busy cores of 64 of which most are idle, with nobody waiting, disturb nothing."""
    found = use(cores=64, own=8, foreign=10, pressure_s=0.3)
    assert (taken_cores(found), is_disturbed(found)) == (0.0, False)
    waiting = msgspec.structs.replace(found, pressure_s=6.0)
    assert (taken_cores(waiting), is_disturbed(waiting), is_crowded(waiting)) == (10.0, True, False)


def test_without_a_figure_for_waiting_a_full_host_tells():
    """Where the system does not count waiting, no idle core means that somebody waited."""
    assert is_disturbed(use(own=1.2, foreign=0.7, pressure_s=None))
    assert not is_disturbed(use(own=0.5, foreign=0.7, pressure_s=None))


def test_unknown_own_work_accuses_nobody():
    """Where it cannot be told whose work it is, only stolen time counts."""
    assert events_of(period(use(own_s=None, foreign=1.9, pressure_s=29.0))) == []
    assert events_of(period(use(own_s=None, steal_s=12.0))) == ["stolen"]


def test_too_short_a_span_tells_nothing():
    """Over less than a second the kernel's ticks tell of rounding."""
    assert not is_disturbed(use(own=0.5, foreign=1.4, span_s=0.5, pressure_s=0.5))


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (use(own=0.2), ["late"]),
        (use(own=1.9), []),
        (use(own_s=None), []),
        (None, []),
    ],
    ids=["free cores", "own work fills the host", "nobody knows whose work", "no evidence"],
)
def test_a_late_client_is_evidence_only_where_own_work_left_cores_free(host, found):
    """An arm that takes every core makes the client late itself: repeating that would credit its stalls."""
    assert events_of(period(host, event_loop_lag_max_ns=80 * MS)) == found


def test_a_host_that_slept_is_evidence():
    """The clock stood while the service went on."""
    assert events_of(period(use(), suspended_ns=3 * 10**9)) == ["slept"]


def test_accelerators_slowed_down_by_heat_are_evidence():
    """A fifth of the samples, and two at least; one that does not tell is not accused."""
    slowed = AcceleratorUse(index=1, samples=10, throttled=2)
    once = AcceleratorUse(index=0, samples=2, throttled=1)
    silent = AcceleratorUse(index=2, samples=9)
    found = use(accelerators=(once, slowed, silent))
    assert find_throttled(found) == (slowed,)
    assert [str(one) for one in find_host_events([period(found)], LIMIT_MS)] == [
        "heat or its supply slowed accelerator 1 down"
    ]


def test_the_arms_own_slowness_is_no_evidence():
    """A period that took a hundred times as long on a quiet host is the arm's."""
    slow = use(span_s=3000.0)
    assert events_of(period(slow, ended_ns=3_000_000 * MS)) == []


def test_parts_of_a_resumed_period_are_taken_together():
    """Half a minute under others' load and half a minute of quiet are a disturbed minute."""
    parts = [period(use(own=1.2, foreign=0.7, pressure_s=20.0)), period(use(own=1.9))]
    assert events_of(*parts) == ["foreign"]


def test_joined_spans_lose_nothing_and_invent_nothing():
    """Seconds add up; what one span does not tell is not told of both; clocks are means over samples."""
    one = AcceleratorUse(index=0, samples=1, throttled=1, clock_mhz=1000.0, power_limit_w=300.0)
    two = AcceleratorUse(index=0, samples=3, throttled=0, clock_mhz=1400.0, temperature_c=70.0)
    joined = join_uses([use(accelerators=(one,)), use(own_s=None, accelerators=(two,))])
    assert joined is not None
    assert (joined.span_s, joined.own_s, joined.steal_s) == (60.0, None, 0.0)
    assert joined.accelerators == (
        AcceleratorUse(
            index=0, samples=4, throttled=1, clock_mhz=1300.0, power_limit_w=300.0, temperature_c=70.0
        ),
    )
    assert join_uses([]) is None
