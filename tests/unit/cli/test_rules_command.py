"""`draftproof rules` writes both files, tells what it cannot watch, and refuses jobs that say nothing."""

from pathlib import Path

import msgspec
import pytest
from tests.builders.results import build_results
from typer.testing import CliRunner

from draftproof.cli.app import app
from draftproof.core.errors import DraftproofError, UsageError

RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "vllm-ngram"


@pytest.fixture(autouse=True)
def _computed(monkeypatch):
    """Stand in for the verdict, which is not what these tests are about."""
    monkeypatch.setattr(
        "draftproof.measure.run.reporting.recompute", lambda _path, **_options: build_results()
    )


def run_rules(*arguments):
    """The outcome of one call."""
    return CliRunner().invoke(app, ["rules", str(RUN), *map(str, arguments)])


def test_both_files_are_written_and_the_gaps_told(tmp_path):
    """The call writes rules and dashboard, names the triggers and lists what no rule watches."""
    done = run_rules("--out", tmp_path / "m", "--job", "spec", "--holdout-job", "a", "--holdout-job", "b")
    assert done.exit_code == 0
    written = sorted(path.name for path in (tmp_path / "m").iterdir())
    assert written == ["draftproof.dashboard.json", "draftproof.rules.yml"]
    rules = (tmp_path / "m" / "draftproof.rules.yml").read_text(encoding="utf-8")
    assert 'job="spec"' in rules
    assert 'job=~"a|b"' in rules
    assert "Roll back on: DraftproofNetSlowdown" in done.stdout
    assert "Cannot be watched:" in done.stdout
    assert "critical errors of the application" in done.stdout


def test_second_call_writes_the_same_bytes(tmp_path):
    """Rules can be written again over the old ones."""
    first, second = (run_rules("--out", tmp_path) for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--job", "x", "--holdout-job", "x"), "'x' is named for the candidate and for the hold-out"),
        (("--job", " "), "--job: a job without a name"),
        (("--holdout-job", "a\nb"), "--holdout-job: a job without a name"),
    ],
)
def test_jobs_that_select_nothing_or_both_arms_are_refused(tmp_path, arguments, said):
    """A job of both arms would compare the candidate with itself."""
    done = run_rules("--out", tmp_path, *arguments)
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    """A file in the place of the folder is named."""
    (tmp_path / "taken").write_text("", encoding="utf-8")
    done = run_rules("--out", tmp_path / "taken")
    assert isinstance(done.exception, DraftproofError)
    assert "cannot write" in str(done.exception)


def test_nothing_is_written_where_speculation_may_run_nowhere(tmp_path, monkeypatch):
    """An empty envelope has nothing to watch: one sentence, the verdict's exit code, and no file."""
    usual = build_results()
    empty = msgspec.structs.replace(usual.verdict, decision="inconclusive", envelope=())
    monkeypatch.setattr(
        "draftproof.measure.run.reporting.recompute",
        lambda _path, **_options: msgspec.structs.replace(usual, verdict=empty),
    )
    done = run_rules("--out", tmp_path / "m")
    assert done.exit_code == 30
    assert "speculation may run nowhere" in done.stdout
    assert not (tmp_path / "m").exists()
