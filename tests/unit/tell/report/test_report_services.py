"""The section on the services' own figures: what is told is shown, what is not is a dash or left out."""

import re

import msgspec
import pytest
from tests.builders.results import build_results

from draftproof.judge.results.inform import (
    Gauge,
    ServiceAgreement,
    ServiceLine,
    ServiceStart,
    ServiceUse,
)
from draftproof.tell.report import render_full, render_html
from draftproof.tell.report.services import build_services

USE = ServiceUse(
    arm="candidate",
    load="alone",
    periods=20,
    periods_used=19,
    samples=90,
    seconds=50.0,
    unused=("period alone/3: tokens_total fell during it",),
    generation_tokens=1600.0,
    tokens_per_engine_step=2.5,
    mean_acceptance_length=3.0,
    accepted_by_position=(30.0, 10.0, 4.0),
    drafted_by_position=(40.0, 40.0),
    waiting=Gauge(mean=0.5, maximum=4.0, samples=50),
    cache_usage=Gauge(mean=0.25, maximum=0.5, samples=50),
    resident_max_bytes=2.0**31,
    machine_seconds=50.0,
    cpu_seconds=75.0,
    energy_per_output_token_joules=0.125,
)
PLAIN = ServiceUse(arm="baseline", load="alone", periods=20, periods_used=20, samples=40, seconds=80.0)
ROWS = (
    ServiceAgreement(
        arm="candidate", load="alone", quantity="output_tokens", client=1600.0, service=1600.0,
        difference=0.0, standing="exact", text="over 19 of 20 periods",
    ),
    ServiceAgreement(
        arm="candidate", load="alone", quantity="num_draft_tokens", client=900.0, service=1000.0,
        difference=100.0, standing="differs", text="over 19 of 20 periods",
    ),
)  # fmt: skip
LINES = (
    ServiceLine(
        arm="candidate", load="alone", quantity="waiting", times_s=(0.0, 5.0, 10.0), values=(0.0, 4.0, 1.0)
    ),
    ServiceLine(arm="baseline", load="alone", quantity="waiting", times_s=(0.0, 20.0), values=(2.0, 2.0)),
    ServiceLine(arm="baseline", load="alone", quantity="cache_usage", times_s=(0.0, 20.0), values=(0.0, 0.0)),
)
STARTS = (
    ServiceStart(
        arm="candidate", load_time_s=2.5, cold_outcome="ok", cold_ttft_ns=5_000_000, cold_e2e_ns=None
    ),
)


@pytest.fixture(scope="module")
def told():
    """Return results in which the services tell something."""
    return msgspec.structs.replace(
        build_results(segments=1, loads=1),
        services=(PLAIN, USE),
        service_agreements=ROWS,
        service_lines=LINES,
        service_starts=STARTS,
    )


def rows(table):
    return {
        row.cells[0].text: [cell.text for cell in row.cells[1:]]
        for group in table.groups
        for row in group.rows
    }


def test_quantities_are_rows_and_arms_columns(told):
    """Baseline and candidate stand side by side; a dash is what one of them does not tell."""
    (panel,) = build_services(told).use
    found = rows(panel.table)
    assert [column.label for column in panel.table.columns] == ["Quantity", "Baseline", "Candidate"]
    assert found["Periods used"] == ["20 of 20", "19 of 20"]
    assert found["Queue, mean"] == ["—", "0.500, at most 4.00"]
    assert found["Cache in use, mean"] == ["—", "25.0%, at most 50.0%"]
    assert found["Processor time"] == ["—", "75.0 s (1.5 cores)"]
    assert found["Energy per output token"] == ["—", "0.125 J"]


def test_what_no_service_tells_is_left_out_and_named(told):
    """A row of dashes is noise; one sentence names what is missing."""
    section = build_services(told)
    assert "Preemptions" not in rows(section.use[0].table)
    assert "preemptions" in section.untold
    assert section.untold.endswith("GPU memory, GPU busy, GPU power.")


def test_acceptance_by_position_is_a_share_only_where_drafts_are_counted(told):
    """Of 40 drafts at the first place 30 were kept; of the third place nobody says how many there were."""
    found = rows(build_services(told).use[0].table)
    assert found["Accepted drafts by position"][1] == "75.0%, 25.0%, 4"


def test_agreement_gives_both_sides_and_the_difference(told):
    """Client, service, their difference with its sign, and a word; figures that agree are only counted."""
    (panel,) = build_services(told).agreement
    found = rows(panel.table)
    assert found == {"Drafted tokens": ["900", "1,000", "+100", "differs"]}
    assert panel.table.notes == (("a", "over 19 of 20 periods"),)
    assert build_services(told).sentence.startswith(
        "Of 2 figures that client and service both tell, 1 are the"
    )


def test_periods_whose_counters_were_not_used_are_named(told):
    """The reader sees which arm lost a period and why."""
    (note,) = build_services(told).notes
    assert note.startswith("Candidate at alone, 1 in flight: period alone/3: tokens_total fell")


def test_lines_share_the_axes_of_their_plot(told):
    """The longest line ends at the right edge, the highest value near the upper one, zero at the lower."""
    (((_, (plot,)),), *_) = [build_services(told).plots]
    assert (plot.title, plot.highest, plot.length) == ("Queue (requests)", "4.00", "20.0 s")
    assert [line.points for line in plot.lines] == [
        "0.00,29.00 25.00,1.00 50.00,22.00",
        "0.00,15.00 100.00,15.00",
    ]


def test_a_gauge_that_never_moves_from_zero_is_not_drawn(told):
    """An empty cache has no picture."""
    assert {plot.title for _, plots in build_services(told).plots for plot in plots} == {"Queue (requests)"}


def test_starts_are_shown_apart(told):
    """Load time and the first request after it, whose end is not known."""
    found = rows(build_services(told).starts)
    assert found["Time to load"] == ["2.50 s"]
    assert found["First request: first token (ms)"] == ["5.00"]
    assert found["First request: whole answer (ms)"] == ["—"]


def test_the_page_has_the_section_in_its_place(told):
    """All below the first page is folded under six headings; services are in how it was measured."""
    page = render_html(told)
    folds = re.findall(r'<details class="fold" id="([a-z]+)"', page)
    assert folds == ["cells", "times", "quality", "causes", "measurement", "cost"]
    assert page.index('id="measurement"') < page.index('id="services"') < page.index('id="cost"')
    assert page.count("<polyline") == 2
    assert "What the services say of themselves" in page


def test_a_run_without_telemetry_says_so():
    """Without samples the section is one sentence, and the terminal has none of it."""
    results = build_results(segments=1, loads=1)
    section = build_services(results)
    assert (section.use, section.agreement, section.plots, section.untold) == ((), (), (), "")
    assert "metrics were read during the run, so only" in render_html(results)
    assert "services say" not in render_full(results)


def test_the_terminal_shows_agreement_and_what_each_load_tells(told):
    """The same figures in plain lines, none wider than the rest of the summary."""
    text = render_full(told)
    _, _, part = text.partition("What the services say of themselves\n")
    part = part.partition("\n\n")[0]
    assert "Drafted tokens 900 by the client, 1,000 by the service" in " ".join(part.split())
    assert re.search(r"Periods used\s+20 of 20\s+19 of 20", part)
    assert max(map(len, part.splitlines())) <= 100
