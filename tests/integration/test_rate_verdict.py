"""A run at a rate, from the plan to its results: what was offered, what was sent, and how it is named."""

import pytest

from draftproof.measure.run.progress import Progress
from draftproof.measure.run.runner import run_plan
from draftproof.plan.loading import load_plan


def test_a_run_at_a_rate_says_what_its_client_did(stage):
    """Rates are those of the schedule, sent as they were due, and device time has a window."""
    path = stage.plan()
    path.write_text(
        path.read_text().replace("concurrency = 1", 'arrivals = { rps = 40.0, spacing = "even" }')
    )
    results = run_plan(*load_plan(path), stage.out, stage.no_model, Progress())
    assert results.loads == (("single", None),)
    assert results.sizes["single"].label == "40 requests/s"
    assert {(one.concurrency, one.offered_rps) for one in results.cells} == {(None, 40.0)}
    for row in results.clients:
        assert row.offered_rps == pytest.approx(40.0)
        assert row.achieved_rps is not None
        assert row.send_lag_p99_ns is not None
        if row.send_lag_p99_ns < 2e6:  # a client held up by a busy machine sends late and then in a rush
            assert row.achieved_rps == pytest.approx(40.0, rel=0.1)
        assert row.connections > 0
        assert row.in_flight_max is not None
        assert row.in_flight_mean is not None
    assert results.economics is not None
    fit = {(one.arm, one.load) for one in results.clients if one.unfit < one.periods}
    for use in results.economics.uses:
        assert (use.window_s is not None) == ((use.arm, use.load) in fit)
