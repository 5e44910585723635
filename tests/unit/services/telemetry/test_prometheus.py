"""Prometheus text becomes numbers, and counters become gains."""

import pytest

from draftproof.services.telemetry.scrape import compute_deltas, name_series, parse_exposition

TEXT = """\
# HELP draftproof:requests_total Requests.
# TYPE draftproof:requests_total counter
draftproof:requests_total{model_name="m",status="ok"} 3.0
draftproof:requests_total{status="bad",model_name="m"} 1.0
# TYPE running gauge
running 2.0
# TYPE wait_seconds histogram
wait_seconds_bucket{le="0.1"} 1
wait_seconds_bucket{le="+Inf"} 4
wait_seconds_sum 2.5
wait_seconds_count 4
"""


def test_samples_are_keyed_by_name_and_ordered_labels():
    """The key of a sample does not depend on the order in which labels are written."""
    values = parse_exposition(TEXT).values
    assert values['draftproof:requests_total{model_name="m",status="bad"}'] == 1.0
    assert values["running"] == 2.0
    assert values['wait_seconds_bucket{le="+Inf"}'] == 4.0


def test_counters_and_histograms_count_and_gauges_do_not():
    """Only series that can only grow are taken as counting."""
    exposition = parse_exposition(TEXT)
    assert "running" not in exposition.counting
    assert {"wait_seconds_sum", "wait_seconds_count"} <= exposition.counting


def test_delta_is_what_was_gained():
    """A counter's gain is the difference; a series that appears started from zero."""
    before = parse_exposition("# TYPE a_total counter\na_total 3\n")
    after = parse_exposition('# TYPE a_total counter\na_total 5\na_total{x="1"} 2\n')
    assert compute_deltas(before, after) == {"a_total": 2.0, 'a_total{x="1"}': 2.0}


@pytest.mark.parametrize("after", ["# TYPE a_total counter\na_total 1\n", ""])
def test_restarted_service_gives_no_gain(after):
    """A counter that fell or vanished has no known gain: never a negative number, never zero."""
    before = parse_exposition("# TYPE a_total counter\na_total 3\n")
    assert compute_deltas(before, parse_exposition(after)) == {"a_total": None}


def test_text_that_is_no_exposition_is_refused():
    """Something else than metrics is a ValueError, not an empty result."""
    with pytest.raises(ValueError, match=r".+"):
        parse_exposition("<html>not metrics</html>")


def test_label_values_are_quoted_safely():
    """A quote inside a label value cannot make two different series look alike."""
    assert name_series("a", {"x": '1",y="2'}) != name_series("a", {"x": "1", "y": "2"})
