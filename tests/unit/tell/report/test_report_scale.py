"""A large run stays readable and keeps everything that decides; a small one shows everything."""

import re

import msgspec
import pytest
from tests.builders.manifest import build_manifest
from tests.builders.results import build_results

from draftproof.judge.results.run import CheckSummary
from draftproof.tell.report import render_html, words
from draftproof.tell.report.answers import build_checks
from draftproof.tell.report.kit import candidate_ratios, choose_segments, describe_left_out
from draftproof.tell.report.page import build_model
from draftproof.tell.report.text import render_full

LARGE, SMALL, FAILED = (
    build_results(segments=60, loads=12),
    build_results(),
    build_results(segments=30, loads=2, failing=True),
)
MANIFEST = build_manifest()


@pytest.fixture(scope="module")
def large_page():
    """The page of sixty segments at twelve loads, rendered once."""
    return render_html(LARGE, MANIFEST)


@pytest.fixture(scope="module")
def large_model():
    """What that page is made of."""
    return build_model(LARGE, MANIFEST)


def test_page_of_720_cells_opens_in_a_browser(large_page):
    """Sixty segments at twelve loads make a page of a few megabytes."""
    assert len(large_page.encode()) < 6_500_000


def test_every_cell_of_a_large_run_stands_in_map_and_reasons(large_model):
    """No cell is left out of the map or of the table of reasons, whatever the tables of details do."""
    model = large_model
    assert sum(field is not None for _, fields in model.envelope.rows for field in fields) == 720
    assert sum(len(group.rows) for group in model.envelope.reasons.groups) >= 720


def test_a_large_run_has_a_map_in_the_place_of_the_chart(large_model):
    """Seven hundred bars are no chart: the map shows all segments at every load, tables of details part."""
    assert large_model.chart is None
    assert {len(row) for _, row in large_model.envelope.rows} == {12}
    whole, *by_task = large_model.ratios
    assert len(whole.table.groups) == 12
    assert {len(panel.table.groups[0].rows) for panel in by_task} == {12}


def test_tables_of_a_large_run_say_how_many_segments_they_leave_out(large_page):
    """A table that shows twelve of sixty says that forty-eight are missing and where they are."""
    said = re.findall(r"(\d+) more tasks: status and effect of each stand in the envelope", large_page)
    assert said
    assert set(said) == {"48"}


def test_small_run_leaves_nothing_out():
    """A run of a few segments shows them all."""
    assert "more tasks" not in render_html(SMALL, MANIFEST)


def test_slowest_and_fastest_segments_are_kept():
    """Of sixty segments the six slowest and the six fastest are shown, and the pooled one."""
    load = LARGE.loads[0][0]
    ratios = {name: 0.5 + index / 60 for index, name in enumerate(LARGE.segments)}
    kept = choose_segments(LARGE, load, ratios)
    assert kept == frozenset({words.POOLED, *LARGE.segments[:6], *LARGE.segments[-6:]})


def test_segment_without_a_ratio_counts_as_the_slowest():
    """A ratio that cannot be given is never what is left out first."""
    load = LARGE.loads[0][0]
    ratios = dict.fromkeys(candidate_ratios(LARGE, load), 1.0) | {LARGE.segments[31]: None}
    kept = choose_segments(LARGE, load, ratios)
    assert kept is not None
    assert LARGE.segments[31] in kept


def test_critical_failure_is_shown_wherever_it_is():
    """A segment with a critical failure has its row, however near to the baseline it lies."""
    load = LARGE.loads[0][0]
    kept = choose_segments(LARGE, load, candidate_ratios(LARGE, load)) or frozenset()
    hidden = next(segment for segment in LARGE.segments if segment not in kept)
    failing = CheckSummary(judged=4, passed=3, critical_failed=1, unjudged=0)
    cells = tuple(
        msgspec.structs.replace(cell, checks=failing) if (cell.segment, cell.load) == (hidden, load) else cell
        for cell in LARGE.arm_cells
    )
    panels = build_checks(msgspec.structs.replace(LARGE, arm_cells=cells))
    assert words.segment(hidden) in {group.title for group in panels[0].table.groups}


def test_left_out_line_stands_last_and_only_where_needed(large_model):
    """The line follows the rows, and with all segments shown there is none."""
    groups = large_model.means[0].table.groups
    assert groups[-1].rows == ()
    assert groups[-1].title == describe_left_out(60, len(groups[0].rows))
    assert describe_left_out(5, 5) == ""


def test_terminal_names_every_status_of_a_large_run():
    """Seven hundred cells are told by segment in a few hundred lines, and each load's status is in one."""
    text = render_full(LARGE)
    assert len(text.splitlines()) < 400
    assert "rewriting: Gain at alone, full; Not settled at level-2; Harm at level-3 to level-11." in text
    joined = " ".join(text.split())
    assert all(f"- {words.segment(segment)}: " in joined for segment in LARGE.segments)


def test_terminal_gives_the_figures_of_a_small_run():
    """A run of a few cells has each with its change and interval."""
    assert "Changes and intervals of all cells" not in render_full(SMALL)


def test_run_without_a_number_has_no_empty_axes():
    """Where no effect has a value the map stands in the place of the chart, and the cells say why."""
    page = render_html(FAILED, MANIFEST)
    assert "Not known: too few pairs of answers have times that count." in page
    assert 'id="grid-cells"' not in page
    assert len(re.findall(r'<td class="invalid"', page)) == 60


def test_run_without_the_alternative_has_a_page():
    """An arm that is missing is missing from every chart, and the page stands."""
    results = msgspec.structs.replace(
        SMALL,
        arms=tuple(arm for arm in SMALL.arms if arm != "alternative"),
        arm_cells=tuple(cell for cell in SMALL.arm_cells if cell.arm != "alternative"),
        effects=tuple(effect for effect in SMALL.effects if effect.arm != "alternative"),
    )
    assert results.headline is not None
    rows = tuple(msgspec.structs.replace(row, alternative_change=None) for row in results.headline.rows)
    results = msgspec.structs.replace(results, headline=msgspec.structs.replace(results.headline, rows=rows))
    model = build_model(results, MANIFEST)
    assert [column.label for column in model.figures.columns][-1] == "Equal services"
    shown = [row.cells[0].text for group in model.ratios[0].table.groups for row in group.rows]
    assert shown
    assert not [name for name in shown if "Alternative" in name]
