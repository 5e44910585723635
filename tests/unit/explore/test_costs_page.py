"""The page, the terminal's text and the chart's geometry."""

import itertools
import re

import msgspec
import pytest
from cost_builders import build_costs, known

from draftproof.explore.estimate import acceptance_figure
from draftproof.explore.page import (
    HEIGHT,
    WIDTH,
    Reading,
    Scale,
    Series,
    draw_plot,
    render_costs_html,
    render_costs_text,
    scale_for,
)
from draftproof.explore.results import Costs, RunComparison
from draftproof.judge.results.run import Figure

SHARES = Scale(low=0.0, high=1.0, step=0.25, as_share=True)


def without_paying(costs: Costs) -> Costs:
    """Return costs in which one draft at batch 8 takes more than its two tokens are worth."""
    ratio = Figure(value=2.5, low=2.4, high=2.6, level=0.95, n=9)
    steps = tuple(
        msgspec.structs.replace(one, ratio=ratio, acceptance=acceptance_figure(ratio, 1))
        if (one.draft_length, one.batch, one.drafting) == (1, 8, "own")
        else one
        for one in costs.steps
    )
    return msgspec.structs.replace(costs, steps=steps)


def test_page_is_one_file_with_every_figure_and_the_same_bytes_again():
    """No network, no script; tables hold what the charts show; equal costs give equal bytes."""
    page = render_costs_html(build_costs())
    assert page == render_costs_html(build_costs())
    assert not re.search(r"<script|https?://|<link|@import", page)
    assert page.count('role="img" aria-label') >= 2
    assert "Drafts pay from an acceptance of" in page
    assert "K = 4" in page
    assert page.count("<svg") == page.count("</svg>")


def test_where_nothing_pays_the_page_says_so_in_words_and_on_the_chart():
    """A step dearer than all its tokens lies on the shelf and is named in the headline and the tables."""
    costs = without_paying(build_costs())
    page = render_costs_html(costs)
    assert 'class="shelf"' in page
    assert 'class="shelf"' not in render_costs_html(build_costs())
    assert "with 1 draft, batch 8, none is enough" in page
    assert "none pays" in render_costs_text(costs)


def test_strings_from_outside_cannot_change_page_or_terminal():
    """Markup is escaped, control characters are replaced."""
    costs = build_costs(plan_name="<b>x</b>\x1b[2J", method="\x07evil")
    page, text = render_costs_html(costs), render_costs_text(costs)
    assert "<b>x</b>" not in page
    assert "\x1b" not in page + text
    assert "\x07" not in page + text


def test_run_beside_the_costs_is_shown_in_both():
    """The sentence of each cell is on the page and in the text."""
    sentence = "needs 1.31, has 1.12: does not pay at batch 8."
    one = RunComparison(
        segment="task=chat",
        load="busy",
        batch=8,
        draft_length=4,
        needs=Figure(value=1.31),
        has=1.12,
        pays="does_not_pay",
        sentence=sentence,
    )
    costs = build_costs(run="runs/march", comparisons=(one,))
    assert sentence in render_costs_html(costs)
    assert f"task=chat × busy: {sentence}" in render_costs_text(costs)


def test_costs_survive_their_file():
    """costs.json read back is what was written."""
    costs = build_costs()
    assert msgspec.json.decode(msgspec.json.encode(costs), type=Costs) == costs


def test_plot_places_rise_with_values_and_fall_inside_the_frame():
    """A higher value is drawn higher, batches from left to right, nothing outside the view box."""
    readings = tuple(Reading(batch=b, value=v, low=0.0, high=v) for b, v in ((1, 0.1), (2, 0.5), (8, 0.9)))
    (line,) = draw_plot("t", [Series(label="K = 1", readings=readings)], (1, 2, 8), SHARES).lines
    assert [one.y for one in line.places] == sorted((one.y for one in line.places), reverse=True)
    assert [one.x for one in line.places] == sorted(one.x for one in line.places)
    for one in line.places:
        assert 0 < one.x < WIDTH
        assert 0 < known(one.high_y) <= one.y <= known(one.low_y) < HEIGHT


def test_lines_at_one_height_have_labels_apart_and_marks_of_their_own():
    """Labels do not cover each other, and a line is told without its colour."""
    same = (Reading(batch=1, value=0.0), Reading(batch=8, value=0.0))
    plot = draw_plot("t", [Series(label=str(n), readings=same) for n in range(4)], (1, 8), SHARES)
    heights = sorted(line.label_y for line in plot.lines)
    assert all(b - a >= 14.9 for a, b in itertools.pairwise(heights))
    assert heights[-1] <= plot.bottom
    assert len({line.mark for line in plot.lines}) == 4


def test_a_missing_value_lies_on_the_shelf_above_every_other():
    """What does not exist is drawn apart from the axis, and only then is there a shelf."""
    readings = (Reading(batch=1, value=1.0), Reading(batch=8, value=None))
    plot = draw_plot("t", [Series(label="K", readings=readings)], (1, 8), SHARES)
    places = plot.lines[0].places
    assert places[1].is_beyond
    assert places[1].y == plot.shelf_y
    assert places[1].y < plot.top <= places[0].y
    assert draw_plot("t", [Series(label="K", readings=readings[:1])], (1,), SHARES).shelf_y is None


@pytest.mark.parametrize("values", [[1.1], [1.5, 4.4], [80.0], []])
def test_a_scale_holds_all_values_and_one(values):
    """The axis begins at 0, holds every value and the ordinary step, with few grid lines."""
    scale = scale_for(values, unity=1.0)
    assert scale.low == 0.0
    assert scale.high >= max([1.0, *values])
    assert 3 <= scale.high / scale.step <= 8
