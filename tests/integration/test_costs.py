"""`draftproof costs` from plan to page, on a process that stands for vLLM, and on the reference engine."""

import json
import signal
import sys
from pathlib import Path

import pytest

from draftproof.explore.batches import Wave
from draftproof.explore.results import Costs

SERVER = [sys.executable, str(Path(__file__).with_name("cost_server.py")), "--port", "{port}"]
PLAN = """\
name = "staged"
[workload]
path = "items.jsonl"
[[load]]
name = "single"
concurrency = 1
[arms.baseline]
engine = "{engine}"
command = {baseline}
[arms.candidate]
engine = "{engine}"
command = {candidate}
[limits]
ready_s = 30.0
request_s = 20.0
stop_s = 5.0
"""
SMALL = (
    *("--draft-lengths", "2", "--batches", "1,2", "--repeats", "1"),
    *("--answer-tokens", "24", "--acceptance", "0.5"),
)


def write_plan(stage, *options, engine="vllm", method="draft_model"):
    config = json.dumps({"method": method, "model": "draft", "num_speculative_tokens": 5})
    candidate = [*SERVER, *options, "--speculative-config", config]
    path = stage.folder / "plan.toml"
    path.write_text(PLAN.format(engine=engine, baseline=json.dumps(SERVER), candidate=json.dumps(candidate)))
    return path


def call_costs(call, stage, plan, *options):
    return call("costs", plan, "--out", stage.out, *SMALL, *options)


def test_costs_are_measured_from_plan_to_page(stage, call):
    """Ordinary steps first and last, the drafter's and the lookup's between; every file is written."""
    code, out, err = call_costs(call, stage, write_plan(stage), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found == json.loads((stage.out / "costs.json").read_bytes())
    titles = [title for title, _ in found["commands"]]
    assert titles == [
        "ordinary decoding",
        "2 drafts a step",
        "2 drafts a step by n-gram lookup",
        "ordinary decoding",
    ]
    assert "--speculative-config" not in " ".join(found["commands"][0][1])
    kinds = {(one["draft_length"], one["batch"], one["drafting"]) for one in found["steps"]}
    assert kinds == {(length, batch, "own") for length in (0, 2) for batch in (1, 2)} | {
        (2, 1, "ngram"),
        (2, 2, "ngram"),
    }
    assert all(one["drafted"] == 2.0 for one in found["steps"] if one["draft_length"])
    assert {one["source"] for one in found["splits"]} == {"ngram"}
    assert [one["batch"] for one in found["drifts"]] == [1, 2]
    assert "<svg" in (stage.out / "costs.html").read_text()
    waves = (stage.out / "waves.jsonl").read_text().splitlines()
    assert len(waves) == 8
    stage.assert_no_orphans()


def test_the_terminal_is_told_what_each_step_needs(stage, call):
    """Without --json the outcome is a table and the page's place; a candidate that looks up needs no twin."""
    code, out, err = call_costs(call, stage, write_plan(stage, method="ngram"))
    assert (code, err) == (0, "")
    assert "Needs acceptance" in out
    assert "n-gram steps" in out
    assert f"Page: {stage.out / 'costs.html'}" in out
    logs = {log.name for log in (stage.out / "logs").iterdir()}
    assert logs == {"start-0-0-own.log", "start-1-2-own.log", "start-2-0-own.log"}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--idle", "the drafter does not draft 2 tokens a step but 0.00 on average"),
        ("--accepts", "drafts although its synthetic mode must accept none"),
        ("--in-period", "the service never decoded 2 requests at once"),
        ("--refuses", "unexpected value 'synthetic'"),
    ],
)
def test_what_shows_no_cost_is_one_sentence(stage, call, option, words):
    """An idle drafter, accepted drafts, a batch never full, a refused start: exit 1 and the reason."""
    code, out, err = call_costs(call, stage, write_plan(stage, option))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert words in err
    assert not (stage.out / "costs.json").exists()
    stage.assert_no_orphans()


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"engine": "generic"}, (), "step costs cannot be measured on generic"),
        ({"engine": "tgi"}, (), "no option that fixes the acceptance"),
        ({}, ("--draft-lengths", "2,x"), "allowed are whole numbers with commas"),
        ({}, ("--batches", "0"), "--batches: is 0"),
        ({}, ("--answer-tokens", "5"), "too short for drafts of 2"),
        ({}, ("--acceptance", "1.5"), "allowed is a share from 0 to 1"),
    ],
)
def test_calls_that_cannot_be_measured_start_nothing(stage, call, changes, options, words):
    """A wrong call exits with 2 in one sentence, before a folder is made."""
    code, out, err = call_costs(call, stage, write_plan(stage, **changes), *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not stage.out.exists()


def test_a_build_without_synthetic_mode_is_measured_by_its_chunks(stage, call):
    """The refusal names the way out, and --no-synthetic takes it; where a chunk is no step it is refused."""
    plan = write_plan(stage, "--refuses", method="ngram")
    refused = call_costs(call, stage, plan)[2]
    assert "may do with --no-synthetic" in refused
    code, out, err = call("costs", plan, "--out", stage.folder / "again", *SMALL, "--no-synthetic", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert "synthetic" not in str(found["commands"])
    assert found["acceptance_while_timing"].startswith("as it comes")
    assert "every chunk of the stream" in found["assumptions"][0]
    llama = write_plan(stage, engine="llamacpp")
    code, _, err = call("costs", llama, "--out", stage.folder / "other", *SMALL, "--no-synthetic")
    assert code == 2
    assert "does not hold a step" in err


def test_a_run_beside_the_costs_is_read_first_and_shown(stage, call):
    """--run adds a sentence for each cell of the run; a folder without a run is refused before any start."""
    stage.run()
    costs = stage.folder / "costs"
    plan = write_plan(stage, method="ngram")
    code, out, err = call("costs", plan, "--out", costs, *SMALL, "--run", stage.out)
    assert (code, err) == (0, "")
    assert "Beside the run" in out
    assert "The run's candidate was generic" in out
    assert "does not say how many tokens its candidate drafts a step" in out
    assert str(stage.out) in (costs / "costs.html").read_text()
    code, _, err = call("costs", plan, "--out", stage.folder / "other", *SMALL, "--run", stage.folder)
    assert (code, err.count("\n")) == (1, 1)
    assert not (stage.folder / "other").exists()


def test_ctrl_c_keeps_what_was_recorded(stage):
    """SIGINT ends a wave, stops the engine, and says where the waves lie; exit 130."""
    process = stage.start("costs", write_plan(stage), "--out", stage.out, *SMALL, "--repeats", "400")
    waves = stage.out / "waves.jsonl"
    stage.wait_until(lambda: waves.exists() and waves.read_bytes().count(b"\n") >= 2, "two waves")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("Stopped after ")
    assert str(waves) in err
    stage.assert_no_orphans()


def test_records_of_waves_are_read_back(stage, call):
    """A line of waves.jsonl is a wave, and costs.json the costs: both typed, nothing lost."""
    import msgspec

    assert call_costs(call, stage, write_plan(stage), "--no-split", "--json")[0] == 0
    lines = (stage.out / "waves.jsonl").read_bytes().splitlines()
    waves = [msgspec.json.decode(line, type=Wave) for line in lines]
    assert {len(wave.records) == wave.batch for wave in waves} == {True}
    costs = msgspec.json.decode((stage.out / "costs.json").read_bytes(), type=Costs)
    assert costs.splits == ()
    assert costs.engine_version == "0.32.0"
