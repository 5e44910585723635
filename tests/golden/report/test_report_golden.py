"""The terminal's answer compared whole with its golden text.

Refresh after a wanted change, then read the difference before committing it:

    DRAFTPROOF_REFRESH_GOLDEN=1 python -m pytest tests/golden/report
"""

import os
from pathlib import Path

import pytest
from tests.builders.results import build_results

from draftproof.tell.report import render_text

CASES = {
    "usual": build_results(),
    "one_cell": build_results(segments=1, loads=1, requests=120),
    "all_failed": build_results(segments=2, loads=1, failing=True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_terminal_summary_is_as_it_was_last_read(case):
    """The text equals the golden file, byte for byte."""
    golden = Path(__file__).parent / f"{case}.txt"
    text = render_text(CASES[case])
    if os.environ.get("DRAFTPROOF_REFRESH_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
