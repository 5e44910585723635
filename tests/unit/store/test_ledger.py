"""The ledger of runs: what came before is counted by question, and a line that was taken out is noticed."""

import msgspec
import pytest
from tests.builders.records import build_manifest

from draftproof.core.manifests import EarlierRuns
from draftproof.store.ledger import LEDGER_NAME, begin, end, hash_question


def run(number, **changes):
    """Return the manifest of run `number` of one question."""
    return build_manifest(folder=f"run{number}", created_wall_ns=number, **changes)


def test_earlier_runs_of_a_question_are_counted_by_their_decisions(tmp_path):
    """The first has none; the third knows one that ended and one that did not, and no other question."""
    assert begin(tmp_path, run(1)) == EarlierRuns(runs=0)
    end(tmp_path, run(1), "inconclusive")
    assert begin(tmp_path, run(2)) == EarlierRuns(runs=1, decisions={"inconclusive": 1})
    other = run(3, workload_sha256="another")
    assert hash_question(other) != hash_question(run(3))
    assert begin(tmp_path, other) == EarlierRuns(runs=0)
    assert begin(tmp_path, run(4)) == EarlierRuns(runs=2, decisions={"inconclusive": 1, "not ended": 1})


def test_a_run_that_is_judged_again_adds_a_line_only_if_it_says_otherwise(tmp_path):
    """The last decision counts; the same once more is no line, nor is that of a run that never began here."""
    begin(tmp_path, run(1))
    for decision in ("defer", "defer", "adopt"):
        end(tmp_path, run(1), decision)
    end(tmp_path, run(2), "adopt")
    assert len((tmp_path / LEDGER_NAME).read_bytes().splitlines()) == 3
    assert begin(tmp_path, run(3)) == EarlierRuns(runs=1, decisions={"adopt": 1})


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0].replace(b"run1", b"run9"), *lines[1:]],
        lambda lines: [*lines, b"no line"],
        lambda lines: [*lines[:-1], lines[-1][:-5]],
    ],
)
def test_a_chain_that_is_not_whole_says_nothing_and_is_left_alone(tmp_path, spoil):
    """Without its first or second line, with a cut, changed or strange one: earlier runs are unknown."""
    path = tmp_path / LEDGER_NAME
    for number in (1, 2, 3):
        begin(tmp_path, run(number))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(spoil(lines)))
    spoiled = path.read_bytes()
    assert begin(tmp_path, run(4)) == EarlierRuns(runs=None)
    end(tmp_path, run(4), "adopt")
    assert path.read_bytes() == spoiled


def test_a_folder_that_takes_no_ledger_ends_no_run(tmp_path):
    """Where the file cannot be opened, earlier runs are unknown, and that is all."""
    (tmp_path / LEDGER_NAME).mkdir()
    assert begin(tmp_path, run(1)) == EarlierRuns(runs=None)
    assert msgspec.to_builtins(EarlierRuns(runs=None)) == {"runs": None, "decisions": {}}
