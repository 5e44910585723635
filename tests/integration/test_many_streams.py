"""Ten thousand streams open at once on this machine."""

import importlib.util
import resource
from pathlib import Path

import pytest

from draftproof.measure.load.sockets import count_descriptors

BENCH = Path(__file__).parents[2] / "bench" / "pacing.py"
STREAMS = 10_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_streams_are_held_without_an_error():
    """Over two workers every stream is open at one time, every answer is whole, and each costs a few KiB."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < count_descriptors(STREAMS // 2):
        pytest.skip(f"this machine allows {hard} open files")
    spec = importlib.util.spec_from_file_location("pacing", BENCH)
    assert spec is not None
    assert spec.loader is not None
    pacing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pacing)
    found = pacing.measure_streams(STREAMS, workers=2)
    assert (found["completed"], found["in_flight_max"], found["errors"]) == (True, STREAMS, {})
    assert set(found["outcomes"]) <= {"ok", "cancelled"}
    assert found["rss_kib_per_stream"] < 64
