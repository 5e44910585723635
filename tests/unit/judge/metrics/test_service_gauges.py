"""Means, maxima, energy and lines over time, each against a value worked out by hand."""

import pytest

from draftproof.core.records import TelemetrySample
from draftproof.judge.metrics import host_use as host
from draftproof.judge.metrics.telemetry import (
    LONGEST_LINE,
    GaugeSummary,
    collect_periods,
    draw_line,
    gain_of_counter,
    integrate_power,
    read_mean,
    read_sum,
    summarise_gauge,
)


def periods(*points, source="engine"):
    """Return the periods of (seconds, mark, replica, values[, period])."""
    samples = [
        TelemetrySample(
            arm="candidate", at_ns=round(point[0] * 1e9), mark=point[1], replica=point[2],
            values=point[3], period=point[4] if len(point) > 4 else "low/0", source=source,
        )
        for point in points
    ]  # fmt: skip
    return list(collect_periods(samples).values())


def test_a_mean_rests_on_samples_during_periods_and_a_maximum_on_all():
    """At the ends of a period nothing runs, so they would pull a mean down; a maximum may be anywhere."""
    found = summarise_gauge(
        periods(
            (0, "start", 0, {"q": 9.0}),
            (1, "during", 0, {"q": 2.0}),
            (2, "during", 0, {"q": 4.0}),
            (3, "end", 0, {"q": 0.0}),
        ),
        read_sum(("q",)),
    )
    assert found == GaugeSummary(mean=3.0, maximum=9.0, samples=2)


def test_a_period_too_short_to_be_sampled_has_no_mean():
    """Without a sample during the period the mean is unknown and not that of its ends."""
    found = summarise_gauge(periods((0, "start", 0, {"q": 0.0}), (1, "end", 0, {"q": 0.0})), read_sum(("q",)))
    assert found == GaugeSummary(mean=None, maximum=0.0, samples=0)


def test_what_no_sample_shows_is_none():
    """An engine without the gauge has no summary, which is not a queue of 0."""
    assert summarise_gauge(periods((0, "during", 0, {"other": 1.0})), read_sum(("q",))) is None
    assert draw_line(periods((0, "during", 0, {"other": 1.0})), read_sum(("q",))) is None


def test_replicas_add_up_for_counts_and_average_for_shares():
    """Two queues of 1 and 3 are a queue of 4; caches used by 20 % and 60 % are used by 40 %, at most 60 %."""
    both = periods(
        (1, "during", 0, {"q": 1.0, "used": 0.2}),
        (1, "during", 1, {"q": 3.0, "used": 0.6}),
    )
    assert summarise_gauge(both, read_sum(("q",))) == GaugeSummary(4.0, 4.0, 1)
    shares = summarise_gauge(both, read_mean(("used",)), is_share=True)
    assert shares is not None
    assert shares.mean == pytest.approx(0.4)
    assert shares.maximum == 0.6


def test_a_time_at_which_a_replica_is_missing_is_left_out():
    """One replica's queue alone is not the service's queue."""
    found = summarise_gauge(
        periods(
            (1, "during", 0, {"q": 1.0}),
            (1, "during", 1, {"q": 3.0}),
            (2, "during", 0, {"q": 50.0}),
        ),
        read_sum(("q",)),
    )
    assert found == GaugeSummary(4.0, 4.0, 1)


def test_a_share_is_averaged_over_the_series_of_one_sample():
    """Two engines behind one address, used by 10 % and 30 %, are used by 20 %."""
    values = {'used{engine="0"}': 0.1, 'used{engine="1"}': 0.3}
    assert read_mean(("used",))(values) == pytest.approx(0.2)
    assert read_mean(("absent", "used"))(values) == pytest.approx(0.2)


def test_units_of_the_dcgm_exporter_are_turned_into_ours():
    """Millijoules become joules, mebibytes bytes."""
    assert read_sum((host.DCGM_MEMORY_MIB,))({f'{host.DCGM_MEMORY_MIB}{{gpu="0"}}': 3.0}) == 3 * 2**20
    (period,) = periods(
        (0, "start", 1, {host.DCGM_ENERGY_MILLIJOULES: 1_000.0}),
        (2, "end", 1, {host.DCGM_ENERGY_MILLIJOULES: 61_000.0}),
        source="host",
    )
    assert gain_of_counter(period, host.DCGM_ENERGY_MILLIJOULES) == pytest.approx(60.0)


def test_a_machine_counter_that_fell_is_unknown():
    """Energy or processor time that falls tells nothing, and is not 0."""
    (period,) = periods(
        (0, "start", 0, {"e": 5.0}), (1, "during", 0, {"e": 1.0}), (2, "end", 0, {"e": 9.0}), source="host"
    )
    assert gain_of_counter(period, "e") is None
    assert gain_of_counter(period, "absent") is None


def test_energy_from_power_is_the_area_under_it():
    """100 W rising to 300 W over 2 s are 400 J, then 3 s at 300 W are 900 J."""
    (period,) = periods(
        (0, "start", 0, {"w": 100.0}), (2, "during", 0, {"w": 300.0}), (5, "end", 0, {"w": 300.0}),
        source="host",
    )  # fmt: skip
    assert integrate_power(period, "w") == pytest.approx(1300.0)


def test_one_reading_of_power_is_no_energy():
    """An area needs two readings."""
    (period,) = periods((0, "start", 0, {"w": 100.0}), source="host")
    assert integrate_power(period, "w") is None


def test_periods_are_laid_end_to_end_in_a_line():
    """The time between two periods of an arm, in which others ran, is not on the axis."""
    line = draw_line(
        periods(
            (10, "start", 0, {"q": 0.0}, "low/0"), (12, "end", 0, {"q": 1.0}, "low/0"),
            (90, "start", 0, {"q": 2.0}, "low/4"), (93, "end", 0, {"q": 3.0}, "low/4"),
        ),
        read_sum(("q",)),
    )  # fmt: skip
    assert line is not None
    assert (line.times_s, line.values) == ((0.0, 2.0, 2.0, 5.0), (0.0, 1.0, 2.0, 3.0))


def test_a_long_line_is_thinned_to_means():
    """Results stay small: 120 readings become 60, each the mean of two."""
    line = draw_line(periods(*((t, "during", 0, {"q": float(t)}) for t in range(120))), read_sum(("q",)))
    assert line is not None
    assert len(line.values) == LONGEST_LINE
    assert (line.times_s[0], line.values[0], line.values[-1]) == (0.5, 0.5, 118.5)
