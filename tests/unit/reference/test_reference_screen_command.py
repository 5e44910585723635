"""`draftproof screen` from end to end on a tiny model: a plan, its files, and what it refuses."""

import json

import pytest
from tiny_engine import byte_tokenizer, tiny_llama
from typer.testing import CliRunner

from draftproof.cli.app import app
from draftproof.cli.screen import parse_lengths
from draftproof.core.errors import UsageError
from draftproof.core.records import ScreenedAnswer
from draftproof.store.tables import load_table

PLAN = """
schema_version = 1
name = "tiny"
[target]
model = "{model}"
[workload]
path = "{workload}"
items_per_segment = 1
max_tokens = 16
[[load]]
name = "single"
concurrency = 1
[arms.baseline]
engine = "reference"
[arms.candidate]
engine = "reference"
[arms.candidate.settings]
"speculation.method" = "ngram"
"speculation.ngram_min" = 1
max_model_len = 256
"""
TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Write a plan for a tiny model and three prompts, one of which samples."""
    folder = tmp_path_factory.mktemp("screened")
    tiny_llama().save_pretrained(folder / "model")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    items = [
        {
            "id": f"p{number}",
            "messages": [{"role": "user", "content": text}],
            "segments": {"task": task},
            "max_tokens": 16,
            "sampling": {"temperature": temperature, "seed": 3},
        }
        for number, (text, task, temperature) in enumerate(
            [("abcabcab", "copy", 0.0), ("xyzxy", "copy", 0.9), ("what", "chat", 0.0)]
        )
    ]
    (folder / "workload.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items), "utf-8")
    text = PLAN.format(model=folder / "model", workload=folder / "workload.jsonl")
    (folder / "plan.toml").write_text(text, "utf-8")
    return folder / "plan.toml"


def call(*arguments):
    """Return the outcome of the command."""
    return CliRunner().invoke(app, ["screen", *map(str, arguments)], catch_exceptions=True)


def test_a_plan_is_screened_with_lookup_and_layers(plan, tmp_path) -> None:
    """All items of the workload are answered and screened, by both drafters, at every length."""
    out = tmp_path / "out"
    found = call(plan, "--methods", "ngram", "--drafter", "layers:1", "--k", "1-3,8", "--out", out)
    assert found.exit_code == 0, found.exception
    assert "Screened 3 answers of the reference engine without speculation" in found.stdout
    assert "self:layers:1" in found.stdout
    assert "k=8" in found.stdout
    rows = load_table(out / "screening.parquet", ScreenedAnswer)
    assert len(rows) == 3 * 2 * 4
    assert {row.draft_length for row in rows} == {1, 2, 3, 8}
    assert {row.segment for row in rows} == {"task=copy", "task=chat"}
    again = call(plan, "--out", out)
    assert "choose another folder" in str(again.exception)


def test_json_is_the_summary(plan, tmp_path) -> None:
    """What is printed for a script is what is written."""
    found = call(plan, "--json", "--k", "2", "--out", tmp_path / "out")
    assert json.loads(found.stdout) == json.loads((tmp_path / "out" / "screening.json").read_text("utf-8"))
    assert json.loads(found.stdout)["lookup"] == {"ngram_min": 1, "ngram_max": 4, "earliest": False}


@pytest.mark.parametrize("text", ["", "0", "3-1", "a", "1-99", "2,-3"])
def test_lengths_that_are_none_are_refused(text) -> None:
    """One sentence with the option and an example."""
    with pytest.raises(UsageError, match=r"--k: is .* such as 1-8 or 1,2,4"):
        parse_lengths(text)
    assert parse_lengths("4,1-2") == (1, 2, 4)


def test_what_cannot_be_used_is_one_sentence(plan, tmp_path) -> None:
    """A plan that is none, costs that are none, a method that is none."""
    for arguments, words in (
        ((tmp_path / "none.toml",), "none.toml"),
        ((plan, "--costs", tmp_path), "these are no costs"),
        ((plan, "--methods", "eagle", "--out", tmp_path / "o"), "no method 'eagle'"),
        ((plan, "--k", "x"), "--k"),
    ):
        refused = call(*arguments)
        assert refused.exit_code != 0
        assert words in str(refused.exception)
