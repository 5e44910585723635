"""The view model: what the page says, before any markup."""

import msgspec
import pytest
from tests.builders.manifest import build_manifest
from tests.builders.results import build_results

from draftproof.judge.results.decide import Reference
from draftproof.judge.results.run import EnvelopeEntry, EstimatorRow, Figure, Reason
from draftproof.tell.report import kit, words, write
from draftproof.tell.report.kit import Footnotes
from draftproof.tell.report.page import build_model
from draftproof.tell.report.summary import describe_envelope
from draftproof.tell.report.tokens import is_ours
from draftproof.tell.report.write import MISSING


def test_the_map_has_a_field_for_every_cell():
    """Segments are rows, loads are columns, and every cell has its word, change and interval."""
    grid = build_model(build_results(segments=3, loads=2), None).envelope
    assert (len(grid.rows), len(grid.loads)) == (3, 2)
    fields = [field for _, row in grid.rows for field in row]
    assert all(field and field.status and field.figure.value and field.figure.low for field in fields)


def test_a_cell_that_was_not_run_leaves_its_field_empty():
    """A missing cell is None, not a made-up status."""
    results = build_results(segments=2, loads=2)
    grid = build_model(msgspec.structs.replace(results, cells=results.cells[1:]), None).envelope
    assert grid.rows[0][1][0] is None


def test_the_deciding_metric_comes_first_with_the_plans_margins():
    """The chart is of the metric that decides, its bands are the frozen thresholds, and its row leads."""
    model = build_model(build_results(), None)
    assert [band.tone for band in model.chart.axis.bands] == ["gain", "harm"]
    table = model.ratios[0].table
    assert [column.label for column in table.columns][:3] == ["Arms", "Time per token", "Time to first token"]
    allowed = [cell.text for cell in table.groups[0].rows[-1].cells]
    assert allowed == [
        "Allowed for the candidate",
        "gain below 0.95, harm above 1.05",
        "at most 1.25",
        "at most 1.10",
    ]


def test_a_two_sided_guardrail_is_shaded_on_both_sides():
    """Output length may move neither up nor down."""
    results = build_results(segments=1, loads=1)
    shorter = tuple(msgspec.structs.replace(e, metric="output_tokens") for e in results.effects[:3])
    panel = build_model(msgspec.structs.replace(results, effects=shorter), None).ratios[0]
    assert panel.table.groups[0].rows[-1].cells[1].text == "0.90 to 1.10"


def test_the_null_is_drawn_behind_every_cell_of_its_load():
    """What equal services differ by is where a reader looks for the effect."""
    results = build_results(segments=2, loads=2)
    chart = build_model(results, None).chart
    assert all(row.noise and row.noise.tone == "noise" for group in chart.groups for row in group.rows)
    bare = msgspec.structs.replace(results, headline=None)
    assert not build_model(bare, None).chart.has_noise


def test_all_tasks_come_first_and_their_means_hide_none():
    """Percentiles are over all tasks; the means of every task stand beside the baseline's."""
    results = build_results(segments=4, loads=1)
    model = build_model(results, None)
    assert len(model.latency[0].table.groups) == 1
    (panel,) = model.means
    (group,) = panel.table.groups
    assert [row.cells[0].text for row in group.rows] == [words.segment(s) for s in results.segments]


def test_what_holds_in_every_cell_of_a_load_is_said_once():
    """A reason that all cells of a load share has a row of its own and is in no other."""
    results = build_results(segments=3, loads=1)
    shared = Reason(code="guardrail_failures", text="failures are not shown", evidence=Reference("cells"))
    own = [Reason(code="effect", text=f"its own {n}", evidence=Reference("cells")) for n in range(3)]
    pairs = zip(results.cells, own, strict=True)
    cells = tuple(msgspec.structs.replace(cell, reasons=(one, shared)) for cell, one in pairs)
    (group,) = build_model(msgspec.structs.replace(results, cells=cells), None).envelope.reasons.groups
    first, *others = (
        " ".join([row.cells[-1].text, *(t for t, _ in row.cells[-1].more)]) for row in group.rows
    )
    assert first == "Failures are not shown"
    assert others == ["Its own 0", "Its own 1", "Its own 2"]


def test_a_figure_below_its_floor_says_what_it_needs_and_why():
    """The dash carries how many more are needed and a footnote with the reason."""
    figure = Figure(value=None, needed=52, reason="48 of at least 100 requests")
    columns: tuple[kit.Column[Figure], ...] = (kit.right("Ratio", lambda one: kit.figure(one, write.ratio)),)
    table = kit.table("Ratios", columns, [("", [figure])])
    cell = table.groups[0].rows[0].cells[0]
    assert (cell.text, cell.detail, cell.mark) == (MISSING, "52 more needed", "a")
    assert table.notes == (("a", "48 of at least 100 requests"),)


def test_reasons_that_differ_in_numbers_share_a_footnote():
    """A large table does not drown in notes of one kind."""
    notes = Footnotes()
    marks = [notes.mark(reason) for reason in ("3 of 10", "4 of 10", "no baseline", "3 of 10")]
    assert marks == ["a", "a", "b", "a"]
    assert notes.notes()[0][1] == "3 of 10 (and 1 more of this kind, with other numbers)"


def test_footnote_marks_go_on_after_z():
    """The 27th kind of reason is marked aa."""
    notes = Footnotes()
    marks = [notes.mark("reason " + chr(ord("A") + i)) for i in range(27)]
    assert marks[25:] == ["z", "aa"]


def test_our_estimator_is_marked_and_leads():
    """The report's own estimator is the first row and the only one marked."""
    rows = build_model(build_results(), None).estimators.panels[0].rows
    assert [is_ours(row) for row in rows] == [True, False, False, False, False]


def test_the_disagreement_of_estimators_is_put_in_a_sentence():
    """The sentence gives the range of the means and how many see a gain."""
    sentence = build_model(build_results(), None).estimators.panels[0].sentence
    assert "−46%" in sentence
    assert "+48%" in sentence
    assert "4 of 5 see the candidate faster, 1 slower" in sentence


def test_estimators_without_a_baseline_conclude_nothing():
    """No ratio, no range."""
    row = EstimatorRow(
        load="alone",
        estimator="tpot_ns",
        used_by="draftproof",
        baseline_mean_ns=None,
        candidate_mean_ns=1e6,
        ratio_mean=None,
        ratio_p50=None,
        ratio_p99=None,
    )
    results = msgspec.structs.replace(build_results(loads=1), estimators=(row,))
    panel = build_model(results, None).estimators.panels[0]
    assert panel.sentence == "No estimator had both arms to compare."
    assert panel.rows[0].ratio_mean is None


def test_the_two_lengths_are_named_apart():
    """Conditional and unconditional tokens stand in two named columns."""
    (panel,) = build_model(build_results(loads=1), None).acceptance
    labels = [column.label for column in panel.table.columns]
    assert "Mean acceptance length (conditional)" in labels
    assert "Per decode step (unconditional)" in labels


def test_stacked_time_adds_up_to_the_bar():
    """Draft, verification, sampling and scheduling together are as long as the total says."""
    chart = build_model(build_results(segments=1, loads=1), None).progress
    candidate = chart.panels[0].groups[0].rows[1]
    total_ns = candidate.progress.time_per_committed_token_ns
    assert sum(candidate.split) == pytest.approx(total_ns, rel=0.01)
    assert candidate.parts[-1].start + candidate.parts[-1].width <= 100


def test_agreement_is_read_against_the_null():
    """The sentence names the candidate's agreement and the baseline's with itself."""
    model = build_model(build_results(), None)
    assert model.agreement_sentence == (
        "The candidate gave the baseline's greedy output in 478 of 480 cases; the baseline repeated itself "
        "in 479 of 480."
    )


def test_agreement_without_a_null_says_so():
    """Without an off-off null, the page states what cannot be told."""
    results = build_results()
    kept = tuple(a for a in results.agreements if a.arm == "candidate")
    model = build_model(msgspec.structs.replace(results, agreements=kept), None)
    assert "without an off-off null" in model.agreement_sentence


def test_every_outcome_is_counted_per_arm_and_load():
    """Each row of the outcome table adds up to what was attempted."""
    table = build_model(build_results(failing=True), None).outcomes
    assert len(table.groups) == 2
    for row in (row for group in table.groups for row in group.rows):
        attempted, *counts = (int(cell.text.replace(",", "")) for cell in row.cells[1:])
        assert attempted == sum(counts)


def test_settings_that_differ_between_arms_are_marked():
    """Differing settings carry the mark; equal ones and addresses do not."""
    configuration = build_model(build_results(), build_manifest()).configuration
    assert configuration is not None
    rows = {row.cells[0].text: row.tone for group in configuration.arms.groups for row in group.rows}
    assert rows["speculation.method ≠"] == "differs"
    assert rows["dtype"] == rows["Address"] == ""
    assert configuration.sentence.startswith("The arms differ in 4 settings")


def test_envelope_entries_of_one_limit_share_a_line():
    """Segments are grouped by limit, the widest first; an unmeasured context is left out."""
    entries = (
        EnvelopeEntry(segment="task=chat", max_concurrency=1, max_context_tokens=None),
        EnvelopeEntry(segment="task=rewriting", max_concurrency=8, max_context_tokens=1024),
        EnvelopeEntry(segment="task=code_edit", max_concurrency=8, max_context_tokens=1024),
    )
    assert describe_envelope(entries) == (
        "up to 8 requests in flight, context up to 1,024 tokens: rewriting, code_edit",
        "up to 1 request in flight: chat",
    )


@pytest.mark.parametrize(
    ("segment", "label"),
    [("all", "All tasks"), ("task=code_edit,language=ar", "code_edit · ar"), ("anything", "anything")],
)
def test_segments_read_as_words(segment, label):
    """Labels are as given, without their dimension; an unusual name stays as it is."""
    assert words.segment(segment) == label


def test_the_heading_names_dimensions_only_where_all_share_them():
    """Mixed or unnamed segments have a plain heading."""
    assert words.segment_heading(("task=a,language=ar", "task=b,language=en")) == "Segment (task · language)"
    assert words.segment_heading(("task=a", "other=b")) == words.segment_heading(("plain",)) == "Segment"


def test_long_tables_fold_and_short_ones_stand_open():
    """With many rows only the first load is open; with few, all are."""
    big = build_model(build_results(segments=20, loads=3), None).means
    small = build_model(build_results(segments=1, loads=3), None).means
    assert [panel.opened for panel in big] == [True, False, False]
    assert all(panel.opened for panel in small)
