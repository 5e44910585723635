"""What each form of a log comes to: the summary, the notes and the workload that is written, byte by byte.

After a wanted change:

    DRAFTPROOF_REFRESH_GOLDEN=1 python -m pytest tests/golden/logs
"""

import os
from pathlib import Path

import pytest

from draftproof.core.errors import WorkloadError
from draftproof.tell.report.survey import render_log
from draftproof.workload.reader import read_log, write_workload

HERE = Path(__file__).parent
LOGS = HERE.parents[1] / "fixtures" / "files" / "logs"


def _describe(path, folder):
    try:
        log = read_log(path)
    except WorkloadError as error:
        return f"{str(error).replace(str(path), path.name)}\n"
    workload = folder / "w.jsonl"
    write_workload(log, workload)
    return "\n".join([render_log(log), *log.notes, "", workload.read_text("utf-8")])


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir()))
def test_a_log_of_each_form_is_read_the_same(tmp_path, name):
    """Items, labels, checks, notes and counts of every form are what they were."""
    found, expected = _describe(LOGS / name, tmp_path), HERE / "expected" / f"{name}.txt"
    if os.environ.get("DRAFTPROOF_REFRESH_GOLDEN"):
        expected.write_text(found, encoding="utf-8")
    assert expected.read_text("utf-8") == found
