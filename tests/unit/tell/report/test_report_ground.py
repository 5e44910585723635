"""Tail, order, drift, null difference on the page: present, absent, and at scale."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.results.decide import (
    BlockPoint,
    DriftRow,
    GuardrailStanding,
    NoiseRow,
    OrderSummary,
    PlaceRow,
    Reference,
)
from draftproof.judge.results.run import Effect, Figure
from draftproof.tell.report import render_html
from draftproof.tell.report.latency import build_tails, tails_sentence, tails_title
from draftproof.tell.report.order import build_order

TPOT = "tpot_ns"


def make_tails(results, ratio):
    """Return the results with a tail row for every cell, arm and metric."""
    rows = tuple(
        Effect(
            metric=metric,
            statistic="p95",
            arm=arm,
            versus="baseline",
            segment=segment,
            load=load,
            ratio=ratio,
            simultaneous=ratio,
            pairs=60,
            prompts=30,
        )
        for metric in (TPOT, "ttft_from_schedule_ns")
        for arm in ("candidate", "baseline_null")
        for load, _ in results.loads
        for segment in ("all", *results.segments)
    )
    return msgspec.structs.replace(results, tail_effects=rows)


def make_order(results, *, blocks=10, adjusted_p=0.5, covers_one=True):
    """Return the results with points, one drift, one place and one noise row per load."""
    loads = [load for load, _ in results.loads]
    null = Figure(value=1.0, low=0.97, high=1.04, level=0.95, n=10)
    return msgspec.structs.replace(
        results,
        order=OrderSummary(
            places=tuple(
                PlaceRow(
                    arm="all",
                    load=load,
                    metric=TPOT,
                    ratios=(1.1, 0.9),
                    p=0.5,
                    adjusted_p=adjusted_p,
                    blocks=10,
                )
                for load in loads
            ),
            drifts=tuple(
                DriftRow(
                    arm="candidate",
                    versus="baseline",
                    load=load,
                    metric=TPOT,
                    factor_per_hour=None,
                    change=None,
                    hours=0.5,
                    p=None,
                    adjusted_p=None,
                    blocks=5,
                    reason="5 of at least 8 values",
                    needed=3,
                )
                for load in loads
            ),
            noise=tuple(
                NoiseRow(
                    load=load,
                    metric=TPOT,
                    statistic="mean",
                    null=null,
                    joint=null,
                    covers_one=covers_one,
                    noise_floor=1.04,
                    effect_beyond=True,
                )
                for load in loads
            ),
            points=tuple(
                BlockPoint(
                    arm=arm, load=load, block=block, hours=block / 10, ratio=0.5 + 0.01 * block, pairs=8
                )
                for arm in ("candidate", "baseline_null")
                for load in loads
                for block in range(blocks)
            ),
        ),
    )


def test_a_tail_row_shows_ratio_and_null_of_both_metrics():
    """One panel per load: all tasks, two ratios and a count per metric; and tasks that are worse."""
    results = make_tails(build_results(segments=3, loads=2), Figure(value=1.1, low=0.9, high=1.2))
    panels = build_tails(results)
    assert len(panels) == 2
    (group,) = panels[0].table.groups
    assert group.rows[0].cells[0].text == "All tasks"
    assert len(group.rows) == 1
    assert [cell.text for cell in group.rows[0].cells[1:]] == ["1.10", "1.10", "60 / 30"] * 2
    worse = GuardrailStanding(
        code="guardrail_tail_tpot", standing="violated", text="worse", evidence=Reference("cells")
    )
    first = msgspec.structs.replace(results.cells[0], guardrails=(worse,))
    harmed = msgspec.structs.replace(results, cells=(first, *results.cells[1:]))
    (group,) = build_tails(harmed)[0].table.groups
    assert [row.cells[0].text for row in group.rows] == ["All tasks", "rewriting"]
    assert tails_title(results) == "The tail: p95 against the baseline"


def test_a_tail_without_a_figure_shows_what_it_needs():
    """The dash, the prompts that are missing, and the reason as a note."""
    results = make_tails(build_results(segments=1, loads=1), Figure(value=None, needed=44, reason="6 of 50"))
    table = build_tails(results)[0].table
    assert table.groups[0].rows[0].cells[1].detail == "44 more needed"
    assert table.notes == (("a", "6 of 50"),)


def test_results_from_before_say_what_is_missing():
    """No tail, no order: one sentence each, and the page renders."""
    results = build_results(segments=2, loads=1)
    assert build_tails(results) == ()
    assert "hold no comparison of the tail" in tails_sentence(results)
    section = build_order(results)
    assert "say nothing of order" in section.sentence
    assert (section.plots, section.noise.groups, section.drifts.groups) == ((), (), ())
    assert "say nothing of order" in render_html(results, None)


def test_every_block_is_a_mark_inside_its_plot():
    """Marks run from left to right within the figure, the slower the higher."""
    plot = build_order(make_order(build_results(segments=1, loads=1))).plots[0]
    marks = [mark for mark in plot.marks if mark.tone == "candidate"]
    assert len(marks) == 10
    assert all(0 <= mark.x <= 100 and 0 <= mark.y <= 100 for mark in plot.marks)
    assert [mark.x for mark in marks] == sorted(mark.x for mark in marks)
    assert [mark.y for mark in marks] == sorted((mark.y for mark in marks), reverse=True)
    assert plot.left_out == 0


def test_a_plot_of_very_many_blocks_is_thinned_and_says_so():
    """1,000 blocks of two arms: at most 150 marks each, and the number left out."""
    plot = build_order(make_order(build_results(segments=1, loads=1), blocks=1000)).plots[0]
    assert len(plot.marks) <= 300
    assert plot.left_out == 2000 - len(plot.marks)


def test_one_block_alone_stands_in_the_middle():
    """No time passes between first and last block: no division by zero."""
    plot = build_order(make_order(build_results(segments=1, loads=1), blocks=1)).plots[0]
    assert {mark.x for mark in plot.marks} == {50.0}


@pytest.mark.parametrize(("p", "found"), [(0.5, "0 of 1 tests"), (0.01, "1 of 1 tests")])
def test_the_sentence_counts_what_was_found_and_what_could_not_be_tested(p, found):
    """Tests without a p-value are no tests that found nothing."""
    section = build_order(make_order(build_results(segments=1, loads=1), adjusted_p=p))
    assert section.sentence.startswith(found)
    assert "1 more had too few blocks" in section.sentence


@pytest.mark.parametrize(
    ("covers", "words"),
    [(True, "show no difference in any of 1"), (False, "differ in 1 of 1"), (None, "not known")],
)
def test_the_sentence_says_how_clean_the_null_is(covers, words):
    """Clean, not clean, and not known are three answers."""
    assert words in build_order(make_order(build_results(segments=1, loads=1), covers_one=covers)).sentence


def test_a_drift_below_the_floor_shows_what_it_needs():
    """The dash, three more blocks, and why."""
    table = build_order(make_order(build_results(segments=1, loads=1))).drifts
    cell = table.groups[0].rows[0].cells[1]
    assert (cell.text, cell.detail) == ("—", "3 more needed")
    assert table.notes[0][1] == "5 of at least 8 values"


@pytest.mark.parametrize(("segments", "loads"), [(1, 1), (60, 12)])
def test_the_page_holds_one_cell_and_720(segments, loads):
    """Both sizes render; the large one folds its tails, shows part of them, and says so."""
    results = build_results(segments=segments, loads=loads)
    figure = Figure(value=None, needed=44, reason="6 of 50")
    page = render_html(make_order(make_tails(results, figure)), None)
    assert page.count("<details") >= loads
    assert ("more tasks: status and effect" in page) is (segments > 12)
    panels = build_tails(make_tails(results, figure))
    assert sum(len(group.rows) for panel in panels for group in panel.table.groups) <= 13 * loads
