"""`draftproof init` on the command line: what it writes, what it says, what it refuses."""

import pytest

from draftproof.plan.loading import load_builtin_plan, load_plan


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
        (("--engine", "tgi", "--method", "mtp"), "has no method 'mtp'. Fix: use one of: ngram"),
        (
            ("--engine", "exllama"),
            "Fix: use one of: vllm, sglang, tensorrt-llm, llamacpp, tgi, openai, reference",
        ),
        (("--method", "ngram"), "add --engine"),
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
