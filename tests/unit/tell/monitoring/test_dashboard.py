"""The dashboard shows the recorded series, with the limits of the plan as lines."""

from itertools import pairwise

import msgspec
import pytest
from tests.builders.results import build_results
from watched_runs import ENGINES, HOLDOUT, JOB, MANIFEST, RESULTS, make_plan

from draftproof.tell.monitoring import render_dashboard, watch_run


def dashboard(engine="vllm", results=RESULTS, **options):
    """The dashboard as Grafana reads it."""
    plan = make_plan(engine)
    return msgspec.json.decode(render_dashboard(results, plan, MANIFEST, jobs=(JOB,), **options))


def panels_of(board):
    """The graphs of a dashboard by title."""
    return {panel["title"]: panel for panel in board["panels"] if panel["type"] == "timeseries"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_graph_reads_a_series_that_the_rules_record(engine):
    """No graph asks for a series that the rule file of the same run does not make."""
    watch = watch_run(RESULTS, make_plan(engine), MANIFEST, jobs=(JOB,), holdout_jobs=(HOLDOUT,))
    recorded = {f'{one.name}{{run="{watch.run_label}"}}' for one in watch.recordings}
    graphs = panels_of(dashboard(engine, holdout_jobs=(HOLDOUT,)))
    assert graphs
    assert {panel["targets"][0]["expr"] for panel in graphs.values()} <= recorded


def test_limits_are_drawn_and_coloured():
    """A limit is a line: red above it, and below it for acceptance, whose limit is a least value."""
    graphs = panels_of(dashboard(holdout_jobs=(HOLDOUT,)))
    tail = graphs["Time per token, p95"]["fieldConfig"]["defaults"]
    assert tail["thresholds"]["steps"] == [
        {"color": "green", "value": None},
        {"color": "red", "value": 0.04},
    ]
    assert tail["custom"]["thresholdsStyle"]["mode"] == "line"
    acceptance = graphs["Acceptance length"]["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert acceptance == [{"color": "red", "value": None}, {"color": "green", "value": 1.5}]


def test_data_source_is_chosen_on_the_page():
    """Every target and every mark uses the variable, which lists the Prometheus sources."""
    board = dashboard()
    assert board["templating"]["list"][0]["type"] == "datasource"
    assert board["templating"]["list"][0]["query"] == "prometheus"
    uids = {panel["datasource"]["uid"] for panel in panels_of(board).values()}
    assert uids | {board["annotations"]["list"][0]["datasource"]["uid"]} == {"${datasource}"}


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    """Grafana drops one of two panels with an id or a place in common."""
    board = dashboard(holdout_jobs=(HOLDOUT,))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    assert len(board["uid"]) <= 40
    places = sorted((panel["gridPos"]["y"], panel["gridPos"]["x"]) for panel in board["panels"])
    for (y, x), (next_y, next_x) in pairwise(places):
        assert (next_y > y) or (next_x - x >= 12)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in board["panels"])


def test_without_a_hold_out_there_is_no_graph_of_a_comparison():
    """A graph that could never show anything is left out."""
    assert not [title for title in panels_of(dashboard()) if "hold-out" in title]


def test_text_stays_short_with_many_segments():
    """Sixty segments of an envelope are counted, not listed; what is not watched is listed."""
    text = dashboard(results=build_results(segments=60))["panels"][0]["options"]["content"]
    assert len(text) < 3000
    assert "Cannot be watched" in text
    assert RESULTS.plan_sha256 in text


def test_unknown_service_has_a_page_that_says_so():
    """With nothing to watch the dashboard still opens and says why."""
    board = dashboard("generic")
    assert [panel["type"] for panel in board["panels"]] == ["text"]
    assert "nothing is known of this service" in board["panels"][0]["options"]["content"]
