"""Reasons that lead to their rows, the twelve questions, and a map that stays small at 60 × 12."""

import re

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.inform.diagnosis.steps import compute_step_cost, index_arm_cells
from draftproof.judge.results.decide import ContextBand, Question, Reference, refer
from draftproof.judge.results.run import Reason
from draftproof.tell.report import render_html
from draftproof.tell.report.effects import MOST_BANDS, build_bands, build_map
from draftproof.tell.report.explanation import MOST_LINKED, MOST_REASONS, build_evidence, link_reasons


def with_reasons(results, references):
    """Return results whose verdict is based on these references."""
    reasons = tuple(Reason(code="c", text="because.", evidence=one) for one in references)
    return msgspec.structs.replace(results, verdict=msgspec.structs.replace(results.verdict, reasons=reasons))


def every_cell(results):
    return [refer("effects", (cell.segment, cell.load)) for cell in results.cells]


def test_every_reason_at_the_top_links_to_its_row():
    """The link of a reason is the anchor of the row of the effects that it names."""
    results = build_results(segments=2, loads=2)
    results = with_reasons(results, every_cell(results))
    page = render_html(results)
    for reason in link_reasons(results, results.verdict.reasons):
        assert page.count(f'href="#{reason.anchor}"') == 1
        assert re.search(rf'id="{reason.anchor}"[^>]*>{re.escape(reason.evidence)}', page)
    table, _ = build_evidence(results)
    assert {group.rows[0].cells[1].text.partition("[")[0] for group in table.groups} == {"effects"}
    assert all("simultaneous" in group.rows[0].cells[3].text for group in table.groups)


def test_a_reference_without_a_row_is_shown_as_broken():
    """A reason that is based on nothing is not dressed up."""
    results = with_reasons(build_results(), [refer("effects", ("task=none", "alone"))])
    (group,) = build_evidence(results)[0].groups
    assert group.rows[0].cells[-1].text == "no such row in these results"


def test_many_reasons_are_folded_and_counted():
    """Of 720 reasons twelve stand open, the others fold, and the rows left out are counted."""
    results = build_results(segments=60, loads=12, requests=4)
    results = with_reasons(results, every_cell(results))
    page = render_html(results)
    assert f"<summary>{720 - MOST_REASONS} more reasons</summary>" in page
    assert build_evidence(results)[1] == 720 - MOST_LINKED
    assert f"{720 - MOST_LINKED} more references are in results.json." in page


def test_a_wide_map_is_dense_and_repeats_its_heads():
    """Twelve loads: narrow fields, intervals in tooltips, repeated heads; small runs have the chart."""
    results = build_results(segments=60, loads=12, requests=4)
    page = render_html(results)
    area = page[page.index('<table class="map dense">') : page.index("</table>", page.index("map dense"))]
    assert area.count("<td") == 720
    assert area.count('class="again"') == 2
    assert "<small>[" not in area
    assert 'title="' in area
    assert '<table class="map">' in render_html(build_results(segments=13, loads=2))
    assert '<table class="map' not in render_html(build_results(segments=12, loads=2))


def band(number, reading):
    return ContextBand(
        segment="task=rewriting",
        load="alone",
        band=number % 3 + 1,
        bands=3,
        min_context_tokens=10,
        max_context_tokens=20,
        prompts=8,
        pairs=8,
        ratio=1.2,
        low=1.1,
        high=1.3,
        level=0.95,
        reading=reading,
    )


def test_bands_of_contexts_show_harm_first_where_there_are_too_many():
    """No harmed band is among the rows that a long table leaves out."""
    bands = (*(band(n, "gain") for n in range(MOST_BANDS)), band(1, "harm"))
    (panel,) = build_bands(msgspec.structs.replace(build_results(), context_bands=bands))
    rows = [row for group in panel.table.groups for row in group.rows]
    assert len(rows) == MOST_BANDS
    assert "Harm" in rows[0].cells[2].text
    assert "1 band of context lengths shows harm (1 more rows" in panel.title
    assert panel.opened


def test_a_run_without_bands_says_why():
    """Where contexts could not be judged apart one sentence says so."""
    assert build_map(build_results()).bands == ()
    assert "too few prompts, or all of one length" in render_html(build_results())


@pytest.mark.parametrize("standing", ["answered", "partly", "open"])
def test_a_question_shows_its_standing_answer_and_gap(standing):
    """Standing in words and a glyph, the answer, and what would answer the rest."""
    question = Question(
        number=8,
        key="media",
        question="Does <speech> arrive sooner?",
        standing=standing,
        answer="Not measured.",
        evidence=(Reference("cells"),),
        missing=("The media path.",),
    )
    results = msgspec.structs.replace(build_results(), questions=(question,))
    page = render_html(results)
    assert "Does &lt;speech&gt; arrive sooner?" in page
    assert f'class="standing {standing}"' in page
    assert "Would answer it: The media path." in page


def test_results_of_before_the_questions_render():
    """An older results.json gives a page that says what is missing."""
    assert "computes them anew" in render_html(build_results())


def test_a_reason_on_the_cost_of_a_step_leads_to_the_times_of_a_step():
    """Both arms' rows give ms a step, so that "1.03 times an ordinary step" can be divided out."""
    results = build_results(segments=1, loads=1)
    (load, _), (segment,) = results.loads[0], results.segments
    step = compute_step_cost(index_arm_cells(results.arm_cells), segment, load)
    assert step is not None
    results = with_reasons(results, [Reference("arm_cells", name="progress", at=(segment, load))])
    (group,) = build_evidence(results)[0].groups
    found = {
        row.cells[-1].text.partition(",")[0].lower(): float(told[1].replace(",", ""))
        for row in group.rows
        if (told := re.search(r", ([\d.,]+) ms a step", row.cells[-1].text))
    }
    assert found["candidate"] / found["baseline"] == pytest.approx(step.cost, rel=2e-3)
