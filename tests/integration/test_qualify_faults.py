"""Everything a user can get wrong around a run: one sentence with place and fix, the right code, no rest."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from draftproof.core.errors import EngineError

SERVE = [sys.executable, "-m", "tests.builders.serve_script"]
DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")
REFERENCE = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=8")


def assert_one_sentence(stage, call, code: int, *words: str) -> None:
    """The call failed with `code` and one line that has all the words, and left no process and no run."""
    assert call.returncode == code, call.stderr
    assert call.stdout == ""
    assert call.stderr.count("\n") == 1
    assert call.stderr.startswith("draftproof: ")
    for word in words:
        assert word in call.stderr
    assert not (stage.out / "manifest.json").exists()
    stage.assert_no_orphans()


@pytest.fixture
def run(stage, call):
    """Return a function that runs a plan by the command line in this process, which has everything loaded."""

    def run(plan: Path) -> subprocess.CompletedProcess[str]:
        code, out, err = call("run", plan, "--out", stage.out, "--quiet")
        return subprocess.CompletedProcess((), code, out, err)

    return run


def test_unknown_plan_key(stage, run):
    """A mistyped key is named with the file and the key that is meant."""
    plan = stage.plan(thresholds="minimum_gian = 0.1")
    call = run(plan)
    assert_one_sentence(stage, call, 2, "plan.toml", "unknown key thresholds.minimum_gian", "Fix: perhaps ")
    assert not stage.out.exists()


def test_threshold_out_of_range(stage, run):
    """A threshold beyond its range is named with its value and what is allowed."""
    call = run(stage.plan(thresholds="minimum_gain = 1.5"))
    assert_one_sentence(stage, call, 2, "thresholds.minimum_gain is 1.5, allowed is", "Fix: change ")


def test_plan_that_is_not_there(stage, run):
    """A plan file that does not exist is named."""
    assert_one_sentence(stage, run(stage.folder / "no.toml"), 2, "no.toml: there is no such file", "Fix")


def test_workload_line_that_is_not_json(stage, run):
    """A broken line of the workload is named by file and line before anything starts."""
    plan = stage.plan()
    with (stage.folder / "items.jsonl").open("a") as items:
        items.write('{"id": "half"\n')
    assert_one_sentence(stage, run(plan), 2, "items.jsonl:9: the line is not JSON", "Fix: write one")
    assert not stage.out.exists()


def test_item_ids_that_repeat(stage, run):
    """An id that is used twice is named with both places."""
    plan = stage.plan()
    items = stage.folder / "items.jsonl"
    items.write_text(items.read_text() * 2)
    call = run(plan)
    assert_one_sentence(
        stage, call, 2, "items.jsonl:9: the id 'item-0' is already used at", "items.jsonl:1", "Fix"
    )


def test_model_folder_without_weights(stage, run):
    """An arm of the reference engine is not started when the model's folder lacks its weights."""
    model = stage.folder / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    plan = stage.folder / "plan.toml"
    plan.write_text(
        'name = "r"\n[target]\nmodel = "./model"\n[workload]\npath = "items.jsonl"\n'
        '[[load]]\nname = "single"\nconcurrency = 1\n'
        '[arms.baseline]\n[arms.candidate.settings]\n"speculation.method" = "ngram"\n'
    )
    call = run(plan)
    assert_one_sentence(
        stage, call, 2, f"{model}: this model folder holds no weights", "Fix: complete the folder"
    )


def test_port_that_is_taken(stage, run):
    """A service that cannot listen says so in its own words, with the fix for that."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        command = [*SERVE, "--port", str(port), "--setting", "free={port}"]
        call = run(stage.plan(baseline=command))
    assert_one_sentence(
        stage, call, 1, "baseline.log: arm baseline ended with exit code 2", "Fix: another program"
    )


def test_command_that_is_not_there(stage, run):
    """A launch command that does not exist is named with the plan's key."""
    call = run(stage.plan(candidate=["no-such-server", "{port}"]))
    assert_one_sentence(
        stage, call, 1, "arm candidate cannot be started", "no-such-server", "arms.candidate.command"
    )


def test_service_that_never_gets_ready(stage, run):
    """A service that never answers ends the wait at the plan's limit and is stopped."""
    call = run(stage.plan(candidate=("--never-ready",), ready_s=1.0))
    assert_one_sentence(stage, call, 1, "arm candidate did not answer", "within 1 s", "limits.ready_s")


def test_second_difference_that_is_not_declared(stage, run):
    """A candidate that differs in more than the plan declares is refused with key and both values."""
    other = ("--engine", "draftproof-reference", "--setting", "max_num_seqs=16")
    plan = stage.plan(engine="reference", baseline=REFERENCE, candidate=(*DRAFTING, *other))
    words = ("arms.candidate: ", "max_num_seqs (8 / 16)", "comparison.candidate_may_differ")
    assert_one_sentence(stage, run(plan), 2, *words)


def test_speculation_that_is_configured_and_idle(stage, run):
    """A candidate that never drafts is an invalid run before anything is measured."""
    call = run(stage.plan(candidate=("--acceptance", "idle")))
    assert_one_sentence(
        stage, call, 40, "arms.candidate: speculation is not active", "Fix: switch speculation on"
    )


def test_baseline_that_speculates(stage, run):
    """A baseline that drafts although its settings say off is an invalid run."""
    off = ("--engine", "draftproof-reference", "--setting", "speculation.method=off")
    ngram = ("--engine", "draftproof-reference", "--setting", "speculation.method=ngram")
    plan = stage.plan(engine="reference", baseline=(*DRAFTING, *off), candidate=(*DRAFTING, *ngram))
    call = run(plan)
    assert_one_sentence(stage, call, 40, "arms.baseline: speculation must be off", "Fix: start this service")


def test_run_directory_that_is_in_use(stage, run):
    """A folder with other files in it is left alone."""
    stage.out.mkdir()
    (stage.out / "notes.txt").write_text("mine")
    assert_one_sentence(stage, run(stage.plan()), 1, "run: this folder is not empty", "Fix: choose another")
    assert [entry.name for entry in stage.out.iterdir()] == ["notes.txt"]


def test_run_directory_that_cannot_be_made(stage, run):
    """A place where no folder can be made is found before an arm starts, and named as a folder."""
    stage.out = stage.folder / "items.jsonl" / "run"
    assert_one_sentence(
        stage, run(stage.plan()), 1, "items.jsonl/run: cannot be written", "Fix: check the folder"
    )


@pytest.mark.parametrize("command", [("report",), ("verdict",), ("run", "--resume")])
def test_folder_without_a_run(tmp_path, call, command):
    """Commands on a folder that holds no run say so."""
    code, out, err = call(*command, tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"{tmp_path}: there is no run in this folder" in err


@pytest.fixture
def half_run(stage):
    """Return a stage with a run whose candidate has died once; its options are in a file."""
    options = {}
    for name, extra in (("baseline", ()), ("candidate", DRAFTING)):
        options[name] = stage.folder / f"{name}.options"
        options[name].write_text("\n".join([*REFERENCE, *extra]))
    dying = ["--die-after", "3", "--die-once", str(stage.folder / "died")]
    arms: dict[str, tuple[str, ...]] = {name: (f"@{path}",) for name, path in options.items()}
    arms["candidate"] = (*arms["candidate"], *dying)
    with pytest.raises(EngineError, match="arm candidate ended with exit code 70"):
        stage.run(engine="reference", block_size=2, **arms)
    return stage


def test_plan_that_was_edited_after_the_run_began(half_run, call):
    """No verdict and no further measuring under thresholds that were chosen after the first request."""
    plan = half_run.out / "plan.toml"
    plan.write_text(plan.read_text().replace("ttft_margin = 5.0", "ttft_margin = 0.1"))
    before = half_run.journal()
    for command in (("run", "--resume"), ("report",), ("verdict",)):
        code, _, err = call(*command, half_run.out)
        assert (code, err.count("\n")) == (40, 1)
        assert "run/plan.toml: the plan's thresholds differ from those hashed" in err
        assert "Fix: restore the plan" in err
    assert half_run.journal() == before
    half_run.assert_no_orphans()


def test_service_that_is_not_what_it_was_when_the_run_began(half_run, call):
    """A resumed run refuses arms with another setting, both arms alike, and names the key and both values."""
    for name in ("baseline", "candidate"):
        path = half_run.folder / f"{name}.options"
        path.write_text(path.read_text().replace("max_num_seqs=8", "max_num_seqs=16"))
    before = half_run.journal()
    code, _, err = call("run", "--resume", half_run.out, "--quiet")
    assert (code, err.count("\n")) == (2, 1)
    assert "arms.baseline: it is not what it was when the run began: max_num_seqs (8 -> 16)" in err
    assert half_run.journal() == before
    half_run.assert_no_orphans()


def test_check_finds_the_same_without_a_run_directory(stage, call):
    """`check` states findings and its exit code, starts and stops the arms, and leaves no folder."""
    code, out, err = call("check", stage.plan(), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["items"], report["segments"]) == (8, {"task=chat": 8})
    code, out, _ = call("check", stage.plan(candidate=("--acceptance", "idle")))
    assert code != 0
    assert "speculation is not active" in out
    assert {entry.name for entry in stage.folder.iterdir()} == {"items.jsonl", "plan.toml"}
    stage.assert_no_orphans()
