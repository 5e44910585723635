"""A run without a folder of its own takes the first that is free."""

from draftproof.cli.console import fresh_directory
from draftproof.store import RunDirectory


def test_what_an_aborted_run_left_is_taken_again(tmp_path, monkeypatch):
    """It measured nothing: the next demo is where its page says, and not in demo-run-2."""
    monkeypatch.chdir(tmp_path)
    assert str(fresh_directory("demo-run")) == "demo-run"
    (tmp_path / "demo-run" / "logs").mkdir(parents=True)
    (tmp_path / "demo-run" / "logs" / "baseline.log").write_text("ended")
    assert str(fresh_directory("demo-run")) == "demo-run"


def test_a_folder_in_use_or_with_something_in_it_is_left_alone(tmp_path, monkeypatch):
    """A run that begins there, one that is there, and a file of that name."""
    monkeypatch.chdir(tmp_path)
    with RunDirectory.prepare(tmp_path / "demo-run"):
        assert str(fresh_directory("demo-run")) == "demo-run-2"
    (tmp_path / "demo-run" / "manifest.json").write_text("{}")
    (tmp_path / "demo-run-2").write_text("a file")
    assert str(fresh_directory("demo-run")) == "demo-run-3"
