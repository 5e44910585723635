"""Geometry of the charts."""

import itertools

import pytest

from draftproof.judge.results.decide import Figure
from draftproof.tell.report.charts import (
    linear_ticks,
    log_position,
    ratio_axis,
    stacked_parts,
    whisker,
)


def test_equal_factors_are_equal_distances():
    """On the log axis, halving and doubling lie equally far from 1."""
    assert log_position(0.5, 0.25, 4.0) == 25.0
    assert log_position(1.0, 0.25, 4.0) == 50.0
    assert log_position(2.0, 0.25, 4.0) == 75.0


def test_values_beyond_the_axis_stay_on_it():
    """A value outside the axis is held at its edge."""
    assert [log_position(v, 0.5, 2.0) for v in (0.0, 0.1, 9.0)] == [0.0, 0.0, 100.0]


def test_the_axis_holds_every_value_the_margins_and_one():
    """All values, both margins and 1 lie inside the axis."""
    axis = ratio_axis([0.4, 1.7, None, float("inf"), 0.0], below=0.95, above=1.05)
    assert axis.low < 0.4
    assert axis.high > 1.7
    assert 0 < axis.unity < 100


def test_an_axis_without_values_still_shows_one():
    """A run without any ratio has an axis around 1."""
    axis = ratio_axis([], below=None, above=None)
    assert axis.low < 1.0 < axis.high
    assert [tick.label for tick in axis.ticks if tick.at == axis.unity] == ["1.00"]


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 2.0), (0.97, 1.03), (0.02, 60.0), (0.99, 30.0), (0.3, 1.001)]
)
def test_tick_labels_never_touch(low, high):
    """Neighbouring ticks keep their distance, and 1 is always labelled."""
    axis = ratio_axis([low, high], below=None, above=None)
    places = [tick.at for tick in axis.ticks]
    assert all(later - earlier > 9 for earlier, later in itertools.pairwise(places))
    assert axis.unity in places


def test_bands_start_at_the_margins():
    """The gain band ends at its threshold and the harm band starts at its own and reaches the edge."""
    axis = ratio_axis([0.5, 2.0], below=0.9, above=1.1)
    gain, harm = axis.bands
    assert gain.start == 0.0
    assert gain.width == log_position(0.9, axis.low, axis.high)
    assert harm.start == log_position(1.1, axis.low, axis.high)
    assert harm.start + harm.width == pytest.approx(100.0)


def test_a_missing_value_draws_nothing():
    """No mark and no line for a ratio that is not known."""
    mark = whisker(ratio_axis([1.0], below=None, above=None), Figure(value=None), "candidate")
    assert (mark.at, mark.start, mark.end) == (None, None, None)


def test_an_interval_beyond_the_widest_axis_has_no_end_cap():
    """An end that is clipped is marked as clipped."""
    axis = ratio_axis([1.0, 1e6], below=None, above=None)
    mark = whisker(axis, Figure(value=2.0, low=1e-9, high=1e6), "candidate")
    assert (mark.clipped_low, mark.clipped_high) == (True, True)


def test_arms_differ_by_shape_and_not_by_colour_alone():
    """The three compared arms have three shapes."""
    axis = ratio_axis([], below=None, above=None)
    shapes = {
        whisker(axis, Figure(value=1.0, low=1.0, high=1.0), arm).style
        for arm in ("candidate", "alternative", "baseline_null")
    }
    assert len(shapes) == 3


def test_stacked_parts_lie_end_to_end_and_leave_missing_out():
    """Widths are in proportion, parts touch, and an unknown part takes no room."""
    parts = stacked_parts([("a", "A", 10.0), ("b", "B", None), ("c", "C", 30.0)], 80.0)
    assert [(p.tone, p.start, p.width) for p in parts] == [("a", 0.0, 12.5), ("c", 12.5, 37.5)]


def test_linear_ticks_are_round_and_start_at_zero():
    """Ticks are round numbers from 0 on."""
    assert [tick.label for tick in linear_ticks(52.0)] == ["0", "10", "20", "30", "40", "50"]
    assert [tick.label for tick in linear_ticks(0.0)] == ["0"]
