"""The last words of a test run: what it did not run, and what would."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).parents[2] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.skip(reason="there is no lamp: fetch-lamp brings one")
@pytest.mark.parametrize("n", [1, 2])
def test_lamp(n): ...

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.live
def test_live(): ...

def test_plain(): ...
"""


def test_what_was_not_run_is_one_line(tmp_path):
    """Skipped tests with their reason, tests left out by their mark with the command that runs them."""
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "test_lamps.py").write_text(TESTS)
    marks = "markers=slow: s\nlive: l"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not live", "-n", "2",
         "-o", marks, "-p", "xdist", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # what else is installed has no say here
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Not run: ")]
    assert line == (
        "Not run: 1 live (make test-all); 1 slow (make test-all); 2 there is no lamp: fetch-lamp brings one."
    )
