"""`draftproof samples`: its page, its JSON, and what it says to a question it cannot take."""

import json
from pathlib import Path

from typer.testing import CliRunner

from draftproof.cli.app import app

RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "vllm-ngram"


def ask(*arguments):
    """Return the outcome of the command."""
    return CliRunner().invoke(app, ["samples", *map(str, arguments)])


def test_the_demo_plan_has_an_answer_without_any_service():
    """A built-in plan by name: one row per cell, tail and share, and the requests all of it takes."""
    found = ask("builtin:demo")
    assert found.exit_code == 0
    assert "A gain in every cell" in found.stdout
    assert "measured requests over 4 arms; the plan has" in " ".join(found.stdout.split())


def test_an_earlier_run_answers_with_its_own_counts():
    """The JSON names the run, takes spreads from it and counts what it measured."""
    found = ask(RUN / "plan.toml", "--run", RUN, "--gain", "0.5", "--json")
    assert found.exit_code == 0
    answer = json.loads(found.stdout)
    assert answer["question"] == {"gain": 0.5, "statistic": "mean", "power": 0.8}
    gains = [need for need in answer["needs"] if need["aim"] == "gain"]
    assert len(gains) == answer["cells"] == 8
    assert {need["source"] for need in gains} == {"run"}
    assert {need["measured"] for need in gains} == {6}


def test_the_same_question_has_the_same_answer():
    """Byte for byte: seeds come from the plan."""
    assert ask("builtin:demo", "--json").stdout == ask("builtin:demo", "--json").stdout


def test_a_statistic_that_is_none_is_refused_with_the_ones_there_are():
    """One sentence with the option and the fix."""
    refused = ask("builtin:demo", "--quantile", "p42")
    assert refused.exit_code != 0
    assert str(refused.exception).startswith("--quantile: is 'p42', allowed are mean, p50, p95, p99.")


def test_a_gain_below_the_minimum_gain_is_refused():
    """No number of prompts shows it, and the sentence says why."""
    refused = ask("builtin:demo", "--gain", "0.01")
    assert str(refused.exception).startswith("--gain: is 0.01; the plan credits a gain")
    assert "Fix:" in str(refused.exception)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    """The sentence names the place."""
    refused = ask("builtin:demo", "--run", tmp_path)
    assert refused.exit_code != 0
    assert str(tmp_path) in str(refused.exception)


def test_a_gain_of_nearly_all_the_time_and_a_number_without_end_are_refused_in_short():
    """What would read as 100 % is no aim, and no message repeats hundreds of digits."""
    refused = ask("builtin:demo", "--gain", "0.99999999")
    assert str(refused.exception).startswith("--gain: is 0.99999999, allowed are shares up to 0.95")
    for option in ("--gain", "--power", "--quantile"):
        assert len(str(ask("builtin:demo", option, "9" * 300).exception)) < 200
