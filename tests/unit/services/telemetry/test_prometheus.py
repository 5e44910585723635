"""Prometheus text becomes numbers, and counters become gains."""

import pytest

from draftproof.services.telemetry.scrape import name_series, parse_exposition

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
    values = parse_exposition(TEXT)
    assert values['draftproof:requests_total{model_name="m",status="bad"}'] == 1.0
    assert values["running"] == 2.0
    assert values['wait_seconds_bucket{le="+Inf"}'] == 4.0


def test_text_that_is_no_exposition_is_refused():
    """Something else than metrics is a ValueError, not an empty result."""
    with pytest.raises(ValueError, match=r".+"):
        parse_exposition("<html>not metrics</html>")


def test_label_values_are_quoted_safely():
    """A quote inside a label value cannot make two different series look alike."""
    assert name_series("a", {"x": '1",y="2'}) != name_series("a", {"x": "1", "y": "2"})
