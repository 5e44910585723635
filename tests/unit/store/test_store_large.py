"""A long run is kept, read and judged within memory in proportion to its records."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "core/records.py"
BASE_GIB, GIB_PER_MILLION = 0.35, 3.6  # libraries and the draws of a thousand prompts; 4 GiB at a million


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_of_96000_records_stays_within_its_memory(tmp_path):
    """Every stage of a run of that length keeps to the share that leaves 4 GiB for a million records."""
    out = tmp_path / "records.json"
    command = [sys.executable, BENCH, "--records", "96000", "--out", out, "--folder", tmp_path]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (run,) = json.loads(out.read_text())["runs"]
    allowed = BASE_GIB + GIB_PER_MILLION * run["records"] / 1e6
    assert {
        name: stage["peak_gib"] for name, stage in run["stages"].items() if stage["peak_gib"] > allowed
    } == {}
    assert run["stages"]["report"]["report_bytes"] < 2_000_000
