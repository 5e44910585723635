"""The table of phases: what is known is shown, what is not is a dash or left out."""

import msgspec
import pytest
from tests.builders.records import MS_NS
from tests.builders.results import build_results

from draftproof.judge.results.inform import PhaseSummary
from draftproof.tell.report import render_html
from draftproof.tell.report.services import build_phases

BASELINE = PhaseSummary(
    arm="baseline",
    load="alone",
    load_time_s=9.5,
    cold_ttft_ns=1_234 * MS_NS,
    warmups=1,
    warmups_stable=1,
    warmup_requests=4,
    warmup_s=4.2,
    warmup_change=0.043,
    warmup_first_ttft_ns=400.0 * MS_NS,
    warmup_last_ttft_ns=100.0 * MS_NS,
    periods=6,
    ramp_ns=250.0 * MS_NS,
    steady_ns=61_000 * MS_NS,
    drain_ns=1_500.0 * MS_NS,
    warm_ttft_ns=98.0 * MS_NS,
)
CANDIDATE = msgspec.structs.replace(
    BASELINE,
    arm="candidate",
    warmups=3,
    warmups_stable=1,
    warmup_change=0.5,
    load_time_s=None,
    cold_ttft_ns=None,
)
SILENT = PhaseSummary(
    arm="candidate",
    load="alone",
    load_time_s=None,
    cold_ttft_ns=None,
    warmups=0,
    warmups_stable=0,
    warmup_requests=2,
    warmup_s=None,
    warmup_change=None,
    warmup_first_ttft_ns=None,
    warmup_last_ttft_ns=None,
    periods=0,
    ramp_ns=None,
    steady_ns=None,
    drain_ns=None,
    warm_ttft_ns=None,
)


@pytest.fixture(scope="module")
def results():
    return build_results()


def rows(results, *phases):
    section = build_phases(msgspec.structs.replace(results, phases=phases))
    return [[cell.text for cell in row.cells] for group in section.table.groups for row in group.rows]


def test_every_phase_of_an_arm_is_one_row(results):
    """Cold start, warm-up, periods, and the first token of each."""
    assert rows(results, BASELINE) == [
        ["Baseline", "9.50", "1,234", "4", "4.20", "400 → 100", "yes", "0.250", "61.0", "1.50", "98.0"]
    ]


def test_a_warm_up_that_did_not_become_stable_stands_out(results):
    """By tone and number, with the largest last change."""
    section = build_phases(msgspec.structs.replace(results, phases=(CANDIDATE,)))
    cell = section.table.groups[0].rows[0].cells[6]
    assert (cell.text, cell.detail, cell.tone) == ("1 of 3", "last change 50.0%", "bad")
    assert "Of 3 warm-ups 1 went on until" in section.sentence
    assert "2 ended before that" in section.sentence


def test_what_is_not_known_is_a_dash(results):
    """Also of a run whose warm-ups left no record."""
    assert rows(results, SILENT) == [["Candidate", "—", "—", "2", "—", "—", "—", "—", "—", "—", "—"]]


def test_other_arms_are_shown_where_they_did_not_become_stable(results):
    """Baseline and candidate decide; what any arm did wrong is shown all the same."""
    other = msgspec.structs.replace(BASELINE, arm="alternative")
    assert rows(results, other) == []
    restless = msgspec.structs.replace(other, warmups_stable=0)
    assert [row[0] for row in rows(results, restless)] == ["Alternative"]


def test_a_run_that_tells_nothing_has_no_table(results):
    """The page leaves the heading out."""
    nothing = msgspec.structs.replace(SILENT, warmup_requests=0)
    assert rows(results, nothing) == []
    title = "How each arm got to its steady state"
    assert title not in render_html(msgspec.structs.replace(results, phases=(nothing,)), None)
    assert title in render_html(msgspec.structs.replace(results, phases=(BASELINE,)), None)
