"""The answer on one page: short, complete, and the same on the terminal and on the page."""

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.results.decide import Reference
from draftproof.judge.results.inform import Exploratory
from draftproof.judge.results.run import Cell, EnvelopeEntry, Figure, Reason, Results
from draftproof.tell.report.summary import MOST_WORDS, answer, summarise
from draftproof.tell.report.text import MOST_LINES, render_text
from draftproof.tell.report.write import WIDTH_COLUMNS

USUAL = build_results()
SIZES = [(1, 1), (2, 1), (5, 2), (5, 3), (8, 4), (60, 12)]


def with_cells(results: Results, decision: str, *statuses: str, **verdict) -> Results:
    """Results whose cells have these statuses in turn, with this decision."""
    cells = tuple(
        msgspec.structs.replace(cell, status=statuses[place % len(statuses)])
        for place, cell in enumerate(results.cells)
    )
    changed = msgspec.structs.replace(results.verdict, decision=decision, **verdict)
    return msgspec.structs.replace(results, cells=cells, verdict=changed)


@pytest.mark.parametrize(("segments", "loads"), SIZES)
@pytest.mark.parametrize("failing", [False, True])
def test_the_answer_fits_a_screen(segments, loads, failing):
    """Twenty-five lines of a hundred columns, whatever the run, and the report named last."""
    text = render_text(build_results(segments=segments, loads=loads, failing=failing), "my-run")
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH_COLUMNS
    assert lines[-1].startswith("Report:  my-run/report.html")


@pytest.mark.parametrize(
    ("decision", "statuses", "said"),
    [
        ("inconclusive", ("inconclusive",), "Inconclusive: no task settled at either load."),
        ("inconclusive", ("inconclusive", "harm"), "Inconclusive: 5 of 10 cells not settled, 5 harmful."),
        ("defer", ("harm",), "Do not enable: harmful at both loads."),
        ("defer", ("neutral",), "Do not enable: no task gains at either load."),
        ("defer", ("neutral", "harm"), "Do not enable: no task gains, 5 of 10 cells harmful."),
        ("invalid", ("invalid",), "Invalid run: nothing can be concluded."),
    ],
)
def test_the_verdict_has_at_most_twelve_words(decision, statuses, said):
    """Harm and what is not shown are never one word."""
    assert answer(with_cells(USUAL, decision, *statuses)) == said
    assert len(said.split()) <= MOST_WORDS


@pytest.mark.parametrize("evidence", ["synthetic", "representative"])
@pytest.mark.parametrize("tasks", [1, 2, 3, 5])
@pytest.mark.parametrize("limits", [(4,), (1, 4)])
def test_an_adoption_names_its_tasks_and_its_limit(evidence, tasks, limits):
    """Only one's own traffic is more than a trial."""
    entries = tuple(
        EnvelopeEntry(segment=name, max_concurrency=limits[place % len(limits)], max_context_tokens=None)
        for place, name in enumerate(USUAL.segments[:tasks])
    )
    run = with_cells(
        msgspec.structs.replace(USUAL, evidence=evidence), "adopt_limited", "gain", envelope=entries
    )
    said = answer(run)
    assert said.startswith("Adopt on trial: " if evidence == "synthetic" else "Adopt: ")
    assert len(said.split()) <= MOST_WORDS
    ends = {one.limit.short for one in entries}
    assert said.endswith(f", up to {ends.pop()}." if len(ends) == 1 else ", within the limits below.")


def test_a_run_that_was_not_finished_says_how_to_go_on():
    """The command that continues it stands whole on its line."""
    ended = Reason(code="ended_early", text="The host was busy.", evidence=Reference("cells"))
    run = with_cells(USUAL, "inconclusive", "inconclusive", reasons=(ended,))
    assert answer(run) == "Inconclusive: the run is not complete."
    assert "Next:    draftproof run --resume a-run --wait-for-quiet\n" in render_text(run, "a-run")


def test_a_cell_below_the_floor_shows_its_value_as_exploratory():
    """The value is there, in brackets and with its number of prompts, and no interval beside it."""
    first = USUAL.cells[0]
    bare = msgspec.structs.replace(first, status="inconclusive", effect=Figure(value=None, needed=2))
    explored = Exploratory(segment=first.segment, load=first.load, ratio=0.88, prompts=4)
    assert USUAL.headline is not None
    headline = msgspec.structs.replace(USUAL.headline, exploratory=(explored,))
    run = msgspec.structs.replace(USUAL, cells=(bare, *USUAL.cells[1:]), headline=headline)
    cell = summarise(run).grid[0][1][0]
    assert cell is not None
    assert cell.text == "(−12%, n = 4)"
    assert (cell.figure.low, cell.figure.high) == (None, None)
    assert "( ) exploratory" in summarise(run).legend


def test_what_is_safe_is_said_beside_what_equal_services_do():
    """Failures, checks and changed answers of the candidate, each beside the baseline or the null."""
    said = summarise(USUAL).safe
    assert said.startswith("Failed 1 of 480 (off 0).")
    assert "Answers changed 2 of 480 (equal services 1 of 480)." in said


def test_harm_is_named_first_and_with_its_figure():
    """A reader sees where it is slower before what is merely open."""
    harmed = [cell for cell in USUAL.cells if cell.status == "harm"]
    worst: Cell = max(harmed, key=lambda cell: cell.effect.value or 0)
    assert summarise(USUAL).blocks[0].startswith(f"Harmful in {len(harmed)} of 10 cells, most in")
    assert worst.load in summarise(USUAL).blocks[0]


def test_results_without_a_first_page_still_give_an_answer():
    """Those of a run folder from before it existed say what is not known."""
    found = summarise(msgspec.structs.replace(USUAL, headline=None))
    assert found.rows == ()
    assert found.faster.startswith("Not known")
    assert found.noise.startswith("Not known")
