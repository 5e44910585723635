"""What the client did, as a table: rates only where a load has one, nothing where nothing is known."""

import msgspec
from tests.builders.results import build_results

from draftproof.judge.results.inform import ClientUse
from draftproof.judge.results.run import EnvelopeEntry
from draftproof.plan.limits import LoadSize
from draftproof.tell.report.page import render_html
from draftproof.tell.report.services import build_clients
from draftproof.tell.report.summary import describe_envelope


def make_row(**changes):
    row = ClientUse(
        arm="candidate",
        load="full",
        periods=4,
        unfit=0,
        offered_rps=12.0,
        achieved_rps=11.98,
        on_time_share=0.99,
        goodput_rps=11.8,
        in_flight_mean=7.25,
        in_flight_max=16,
        send_lag_p99_ns=400_000.0,
        connections=3,
        connect_p50_ns=2_300_000.0,
        connect_max_ns=9_000_000,
        lag_max_ns=3_000_000,
        gc_pause_max_ns=0,
        core_share=0.21,
        workers=2,
    )
    return msgspec.structs.replace(row, **changes)


def make_results(*rows):
    sizes = {"alone": LoadSize(concurrency=1), "full": LoadSize(offered_rps=12.0, shape="bursts")}
    loads = (("alone", 1), ("full", None))
    return msgspec.structs.replace(build_results(), clients=rows, load_sizes=sizes, loads=loads)


def texts(section):
    return [[cell.text for cell in row.cells] for group in section.table.groups for row in group.rows]


def test_a_row_has_rates_flight_lateness_and_connections():
    """Times in ms, shares in per cent, and the title names the shape and the mean rate of the load."""
    section = build_clients(make_results(make_row()))
    assert [group.title for group in section.table.groups] == ["full, bursts, 12 requests/s on average"]
    assert texts(section) == [
        [
            *("Candidate", "12.0", "12.0", "99.0%", "11.8", "7.25", "16", "0.400", "3", "2.30, 9.00"),
            *("3.00", "0", "21.0%", "0 of 4"),
        ]
    ]
    assert "all 4 periods" in section.sentence


def test_closed_loops_alone_have_no_column_of_rates():
    """A closed loop offers no rate, so a run of nothing else shows none."""
    closed = make_row(load="alone", offered_rps=None, achieved_rps=None, connect_p50_ns=None)
    labels = [column.label for column in build_clients(make_results(closed)).table.columns]
    assert "offered" not in labels
    assert "offered" in [one.label for one in build_clients(make_results(make_row())).table.columns]


def test_an_unfit_client_is_said_and_marked():
    """How many periods were left out stands in the sentence and in the row."""
    section = build_clients(make_results(make_row(unfit=1)))
    assert "In 1 of 4 periods" in section.sentence
    assert section.table.groups[0].rows[0].cells[-1].tone == "bad"


def test_the_page_shows_the_table_and_the_size_of_every_load():
    """The heading, the offered rate and the map's columns are on the page; without rows it is not."""
    page = render_html(make_results(make_row()), None)
    assert "<h4>What the client did</h4>" in page
    assert "full, bursts, 12 requests/s on average" in page
    assert "<h4>What the client did</h4>" not in render_html(build_results(), None)


def test_the_envelope_names_both_axes():
    """A limit by rate and one by requests in flight stand in one line, the wider ones first."""
    entries = (
        EnvelopeEntry(segment="task=chat", max_concurrency=None, max_rps=4.5, max_context_tokens=None),
        EnvelopeEntry(segment="task=code", max_concurrency=8, max_rps=2.0, max_context_tokens=900),
    )
    assert describe_envelope(entries) == (
        "up to 8 requests in flight and 2 requests/s, context up to 900 tokens: code",
        "up to 4.5 requests/s: chat",
    )
