"""`draftproof init` on the command line: what it writes, what it says, what it refuses."""

import sys
from pathlib import Path

import pytest
from tests.builders.scripted_server import ScriptedServer
from tests.builders.scripts import Script

from draftproof.plan.loading import load_builtin_plan, load_plan, parse_plan


def test_init_without_an_engine_is_the_plan_of_the_demo(tmp_path, call):
    """Without --engine the demo's plan is written, byte for byte."""
    assert call("init", "--out", tmp_path / "plan.toml")[0] == 0
    assert (tmp_path / "plan.toml").read_text() == load_builtin_plan("demo")[1]


def test_init_for_an_engine_says_what_is_left_and_check_refuses_it_until_then(tmp_path, call):
    """The file loads, the next step is named, and `check` and `run` stop at the first open key."""
    path = tmp_path / "plan.toml"
    code, out, err = call(
        "init", "--engine", "vllm", "--method", "eagle3", "--draft", "org/head", "--out", path
    )
    assert (code, err) == (0, "")
    assert f"Next: fill in every FILL_IN in it, then draftproof check {path}" in out
    assert load_plan(path)[0].name == "vllm-eagle3"
    for command in ("check", "run"):
        code, out, err = call(command, path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "target.model is not filled in yet" in err


def test_init_with_everything_given_leaves_nothing_to_fill_in(tmp_path, call):
    """With a model at hand the plan is ready."""
    path = tmp_path / "plan.toml"
    code, out, _ = call("init", "--engine", "llamacpp", "--model", "target.gguf", "--out", path)
    assert (code, "FILL_IN" in out, "FILL_IN" in path.read_text()) == (0, False, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "tgi", "--method", "mtp"), "has no method 'mtp' here. Fix: use one of: ngram"),
        (
            ("--engine", "exllama"),
            "Fix: use one of: vllm, sglang, tensorrt-llm, llamacpp, tgi, openai, reference",
        ),
        (("--method", "ngram"), "or an engine with --engine: vllm"),
        (("--serve", "vllm serve m", "--url", "http://x"), "are two services"),
        (("--url", "http://x"), "--candidate-url belong together"),
        (("--serve", "vllm serve m", "--engine", "sglang"), "--engine: the command of --serve has 'vllm'"),
        (("--serve", "docker run vllm"), "outside of this program's reach"),
        (("--segment-by", "task", "--engine", "vllm"), "name it with --from-log"),
        (("--engine", "openai", "--method", "ngram"), "leave --method out"),
    ],
)
def test_init_refuses_what_it_has_no_template_for_and_writes_nothing(tmp_path, call, arguments, words):
    """A wrong call is one sentence with what there is, exits with 2, and leaves no file."""
    code, out, err = call("init", *arguments, "--out", tmp_path / "plan.toml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert not (tmp_path / "plan.toml").exists()


def test_init_never_overwrites_and_names_a_place_it_cannot_write(tmp_path, call):
    """A file that exists stays as it is; a folder that does not exist is an error with its path."""
    path = tmp_path / "plan.toml"
    path.write_text("mine")
    code, _, err = call("init", "--engine", "vllm", "--out", path)
    assert (code, path.read_text()) == (2, "mine")
    assert "choose another name" in err
    code, _, err = call("init", "--engine", "vllm", "--out", tmp_path / "absent" / "plan.toml")
    assert (code, err.count("\n")) == (1, 1)


def test_init_from_a_command_is_a_plan_that_runs(tmp_path, call):
    """Today's service is the baseline as it is started; what the measurement adds is said."""
    path = tmp_path / "plan.toml"
    serve = "HF_HUB_OFFLINE=1 vllm serve org/model --port 8000 --max-model-len 2048 --max-num-seqs 4"
    code, out, err = call("init", "--serve", serve, "--out", path)
    assert (code, err) == (0, "")
    assert "Added to every arm for the measurement: --no-enable-prefix-caching" in out
    plan, _ = load_plan(path)
    baseline, candidate = plan.arms.baseline, plan.arms.candidate
    assert plan.target.model == "org/model"
    assert baseline.env["HF_HUB_OFFLINE"] == candidate.env["HF_HUB_OFFLINE"] == "1"
    assert baseline.command is not None
    assert baseline.command[:7] == (
        "vllm",
        "serve",
        "{model}",
        "--max-model-len",
        "2048",
        "--max-num-seqs",
        "4",
    )
    assert candidate.command is not None
    assert candidate.command[: len(baseline.command)] == baseline.command
    assert len(path.read_text().splitlines()) <= 66


def test_a_plan_is_printed_as_it_is_used_and_with_every_default(tmp_path, call):
    """Both texts read back as the same plan; the full one marks what is a default."""
    path = tmp_path / "plan.toml"
    assert call("init", "--engine", "vllm", "--model", "org/model", "--out", path)[0] == 0
    plan = load_plan(path)[0]
    for arguments in ((), ("--full",)):
        code, out, _ = call("plan", path, *arguments)
        assert code == 0
        assert parse_plan(out) == plan
        assert ("tail_margin = 0.25  # default" in out) is bool(arguments)
    assert "failure_margin = 0.1\n" in out


def test_init_for_services_that_run_asks_them_what_they_serve(tmp_path, call):
    """The model is the one that the address lists; a key is written only where it is wanted."""
    path = tmp_path / "plan.toml"
    with ScriptedServer(Script()) as server:
        code, out, err = call("init", "--url", server.url, "--candidate-url", server.url, "--out", path)
    assert (code, err) == (0, "")
    assert "FILL_IN" not in out
    plan, _ = load_plan(path)
    assert (plan.arms.baseline.url, plan.arms.baseline.headers) == (server.url, {})
    assert plan.arms.baseline.served_model == plan.target.model


def test_init_from_a_log_writes_prompts_and_a_plan_that_a_check_accepts(tmp_path, call):
    """One command, no edit: labels, limits and counts are those of the log, and nothing is cut in silence."""
    log = Path(__file__).parents[2] / "docs" / "examples" / "requests.jsonl"
    path = tmp_path / "plan.toml"
    code, out, err = call("init", "--from-log", log, "--serve", f"{sys.executable} -m vllm.x", "--out", path)
    assert (code, "no engine is known" in err) == (2, True)
    assert list(tmp_path.iterdir()) == []
    code, out, err = call("init", "--from-log", log, "--serve", "vllm serve org/model", "--out", path)
    assert (code, err) == (0, "")
    assert "40 of 40 entries can be sent" in out
    plan, _ = load_plan(path)
    assert plan.workload.segment_by == ("task",)
    assert (plan.workload.items_per_segment, plan.workload.max_tokens) == (None, None)
    assert plan.evidence == "pilot"
    assert max(len(line) for line in out.splitlines() if not line.startswith("Wrote ")) <= 100
    lines = (tmp_path / "plan.prompts.jsonl").read_text().splitlines()
    assert len(lines) == 40
    assert len(path.read_text().splitlines()) <= 60
    code, out, _ = call("check", "--quick", "--quiet", path)
    assert "there is no program 'vllm' here" in out or code == 0
