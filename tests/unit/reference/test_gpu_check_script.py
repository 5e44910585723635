"""The script that checks a GPU runs its checks where there is none, and fails when something is wrong."""

import importlib.util
from pathlib import Path

import pytest
import torch

from draftproof.reference.models import ragged

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_check.py"


@pytest.fixture
def script():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("family", ["gpt2", pytest.param(None, marks=pytest.mark.slow)])
def test_the_checks_pass_on_a_cpu(script, capsys, family) -> None:
    """One line per check, none of them a failure, exit code 0."""
    chosen = [] if family is None else ["--family", family]
    assert script.main(["--device", "cpu", *chosen]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop() == "all checks passed on cpu"
    assert len(lines) == 6 * (1 if family else len(script.FAMILIES))
    assert all(line.startswith("ok ") for line in lines)


def test_attention_that_looks_ahead_fails_the_checks(script, capsys, monkeypatch) -> None:
    """With new tokens that see their future every check of the family fails, and so does the script."""
    monkeypatch.setattr(ragged.RaggedBatch, "_causal_mask", lambda _self, _index: None)
    assert script.main(["--device", "cpu", "--family", "qwen2"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "6 checks failed on cpu"


def test_a_drafter_that_changes_tokens_fails_the_greedy_check(script, monkeypatch) -> None:
    """Texts that part where the model has a clear best token are a failure."""
    generate = script._generate

    def wrong(target, prompts, drafts, batch):
        texts, proposed = generate(target, prompts, drafts, batch)
        return [[(text[0] + bool(drafts)) % 256, *text[1:]] for text in texts], proposed

    monkeypatch.setattr(script, "_generate", wrong)
    with pytest.raises(AssertionError, match="texts part after 0 tokens"):
        script.check_greedy("qwen2", "float32", "cpu", 1)


def test_a_missing_gpu_is_one_sentence(script, capsys, monkeypatch) -> None:
    """Without a GPU the default says so, with the fix, and exits with 2."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert script.main([]) == 2
    assert "Fix: " in capsys.readouterr().out
