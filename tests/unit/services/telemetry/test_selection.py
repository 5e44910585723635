"""Of a scrape only what is asked for is kept, and a page that is no exposition is no sample."""

import pytest

from draftproof.services.engines.facts import Series
from draftproof.services.telemetry.scrape import MOST_UNKNOWN, name_series_of, select_values

TEXT = """\
# HELP eng:tokens_total Tokens.
# TYPE eng:tokens_total counter
eng:tokens_total{model="m"} 12
eng:steps_bucket{le="1"} 3
eng:steps_bucket{le="+Inf"} 9
eng:steps_count 9
eng:ratio NaN
eng:limit +Inf
python_gc_total 4
process_start_time_seconds 1700000000
http_requests_total 4
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 210.5
DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1200
"""


def test_named_series_are_kept_and_nothing_else():
    """Of an engine with known names those are kept, and the time its process began."""
    found = select_values(TEXT, {"eng:tokens_total", "eng:steps_count"})
    assert found.engine == {
        'eng:tokens_total{model="m"}': 12.0,
        "eng:steps_count": 9.0,
        "process_start_time_seconds": 1.7e9,
    }


def test_an_unknown_engine_keeps_all_but_buckets_and_the_runtime():
    """Without names everything of the engine's own is kept, as far as it is a number."""
    found = select_values(TEXT, ())
    assert found.engine == {
        'eng:tokens_total{model="m"}': 12.0,
        "eng:steps_count": 9.0,
        "process_start_time_seconds": 1.7e9,
    }


def test_an_unknown_engine_is_kept_up_to_a_cap():
    """A service with thousands of series does not fill the run."""
    text = "".join(f"s{number} 1\n" for number in range(MOST_UNKNOWN + 50))
    assert len(select_values(text, ()).engine) == MOST_UNKNOWN


def test_a_gpu_exporter_is_recognised_and_kept_apart():
    """DCGM's power is of the machine, whatever names the engine has; its clocks are not asked for."""
    assert select_values(TEXT, {"eng:tokens_total"}).host == {'DCGM_FI_DEV_POWER_USAGE{gpu="0"}': 210.5}


def test_an_undefined_value_is_not_known():
    """NaN and infinity are left out: they are no readings, and JSON has no word for them."""
    assert select_values(TEXT, {"eng:ratio", "eng:limit"}).engine == {"process_start_time_seconds": 1.7e9}


@pytest.mark.parametrize(
    "page",
    ["<html><body>Sign in 1</body></html>", "", "{}", "# HELP only comments\n", "404 page not found"],
)
def test_what_is_no_exposition_is_refused(page):
    """An error page or an empty answer is no sample without series, but none at all."""
    with pytest.raises(ValueError, match="no line of it is a sample"):
        select_values(page, ())


def test_the_names_of_an_engine_are_those_of_its_facts():
    """Counters, gauges and positions are asked for by their bare names."""
    series = Series(
        spec_steps=('a_total{position="0"}',), accepted_by_position=("b_total", "p"), running=("c",)
    )
    assert name_series_of(series) == {"a", "a_total", "b", "b_total", "c"}
