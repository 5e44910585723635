"""The section on output equivalence: statements, plots of where outputs part, and what is missing."""

import re
import sys
from pathlib import Path

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.compute import compute_results
from draftproof.tell.report.answers import build_equivalence, equivalence_sentence
from draftproof.tell.report.page import render_html
from draftproof.tell.report.text import render_full

sys.path.insert(0, str(Path(__file__).parents[2] / "judge"))
from output_worlds import OutputWorld, Said, differs_in, hotter_draw, sampled_world


@pytest.fixture(scope="module")
def batching():
    """Results of a run that agrees alone and differs in a batch."""
    return compute_results(OutputWorld(answer=differs_in(8, load="busy", place=3)).run())


def test_every_arm_and_load_has_one_statement(batching):
    """All loads first, then each load, the candidate and the null in each."""
    section = build_equivalence(batching)
    assert [group.title for group in section.statements.groups] == [
        "All loads",
        "single, 1 in flight",
        "busy, 4 in flight",
    ]
    told = [[row.cells[1].text for row in group.rows] for group in section.statements.groups]
    assert [one[0].partition(":")[0] for one in told] == ["differs", "tested", "differs"]
    assert {len(one) for one in told} == {2}


def test_the_sentence_says_the_overall_statement_and_the_null(batching):
    """One sentence for those who read no table, on the page and at the terminal."""
    sentence = equivalence_sentence(batching)
    assert sentence.startswith(
        "Over all loads, the candidate's outputs against the baseline's: differs: batching."
    )
    assert "Two equal services: tested: no difference larger than 11.7 %" in sentence
    assert "differs: batching" in render_full(batching)
    assert "differs: batching" in render_html(batching)


def test_the_line_falls_where_outputs_part(batching):
    """8 of 24 part at token 3: the candidate's line falls there from 100 % to 67 %, the null's stays."""
    (plot,) = build_equivalence(batching).plots
    lines = {line.arm: line.points.split() for line in plot.lines}
    assert plot.title == "busy, 4 in flight"
    assert lines["baseline_null"] == ["0.00,1.00", "100.00,1.00"]
    heights = [float(point.split(",")[1]) for point in lines["candidate"]]
    assert heights[0] == 1.0
    assert heights[-1] == pytest.approx(30 - 28 * (16 / 24) - 1, abs=0.01)
    assert {point.split(",")[0] for point in lines["candidate"]} == {"0.00", "75.00", "100.00"}


def test_outputs_without_token_ids_are_counted_and_not_placed():
    """Texts tell that outputs differ and not at which token: said, not drawn."""
    world = OutputWorld(
        answer=lambda asked: Said(None, text=f"{asked.arm == 'candidate' and asked.number < 3}")
    )
    section = build_equivalence(compute_results(world.run()))
    assert section.plots == ()
    assert section.unplaced == "6 differing outputs cannot be placed: the service states no token ids."


def test_tests_of_sampled_answers_are_shown_with_what_they_say():
    """Each statistic has a row; one that differs says so, one that cannot tell says that."""
    results = compute_results(sampled_world(candidate=hotter_draw, prompts=20, repeats=4).run())
    rows = [
        [cell.text for cell in row.cells]
        for panel in build_equivalence(results).tests
        for group in panel.table.groups
        for row in group.rows
    ]
    assert any(row[-1] == "differs" for row in rows)
    assert {row[1] for row in rows} >= {"mean length", "finish reason", "first token", "bigrams"}


def test_results_of_an_earlier_version_say_what_is_missing():
    """Old results hold no tests: one sentence, and the agreement table as before."""
    old = msgspec.structs.replace(build_results(segments=3), equivalence=())
    page = render_html(old)
    assert "hold no test of equivalence" in page
    assert "No statement of equivalence" in page


def test_a_run_in_which_every_request_failed_reads_as_unknown():
    """Nothing to compare is no agreement."""
    results = compute_results(OutputWorld(answer=lambda _: Said((1,), outcome="timeout")).run())
    assert "unknown: no prompt was answered in both arms" in equivalence_sentence(results)
    assert render_html(results)


@pytest.mark.parametrize("loads", [1, 12])
def test_one_load_or_twelve(loads):
    """Readable with either: no load is left out; tests are those over all loads, and any that differs."""
    world = OutputWorld(
        loads=tuple((f"c{n}", n) for n in range(1, loads + 1)), prompts=3, answer=differs_in(1)
    )
    section = build_equivalence(compute_results(world.run()))
    assert len(section.statements.groups) == loads + 1
    assert len(section.plots) == loads
    shown = [panel for panel in section.tests if panel.title != "All loads"]
    assert len(section.tests) == len(shown) + 1
    assert all(row.cells[-1].text == "differs" for p in shown for g in p.table.groups for row in g.rows)


def test_a_contradiction_stands_out():
    """The page warns, and the statement is set apart."""
    promised = {"candidate": "guaranteed by method"}
    world = OutputWorld(answer=differs_in(8), contracts=promised, precision="float32")
    results = compute_results(world.run())
    assert "the outputs contradict it" in equivalence_sentence(results)
    assert re.search(r'class="prose bad"[^>]*>differs: algorithm', render_html(results))
