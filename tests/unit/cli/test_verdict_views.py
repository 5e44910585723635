"""`draftproof verdict --explain`, `--cell` and `--questions`, on a run that a real engine left behind."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.cli.app import app

RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "vllm-ngram"
INCONCLUSIVE = 30


def ask(*arguments):
    """Return the outcome of the command."""
    return CliRunner().invoke(app, ["verdict", str(RUN), *arguments])


@pytest.fixture(scope="module")
def explained():
    """The explanation as JSON."""
    return ask("--explain", "--json")


def test_the_explanation_leads_to_rows_on_disk(explained):
    """Every request of every cell names its row in the table, and the exit code is the verdict's."""
    assert explained.exit_code == INCONCLUSIVE
    told = json.loads(explained.stdout)
    requests = [r for cell in told["cells"] for prompt in cell["prompts"] for r in prompt["requests"]]
    assert len(told["cells"]) == 8
    assert requests
    assert all(place.startswith("records.parquet:") for r in requests for place in r["places"])
    assert all(r["places"] for r in requests)


def test_a_cell_by_its_labels_is_told_in_full():
    """--cell implies --explain and shows all six prompts of that cell alone."""
    found = ask("--cell", "rewriting@busy")
    assert found.exit_code == INCONCLUSIVE
    assert "rewriting@busy (4 in flight)" in found.stdout
    assert "chat@busy" not in found.stdout
    assert found.stdout.count(" without it") == 6


def test_the_questions_are_printed_and_exit_like_the_verdict():
    """Twelve questions, as text and as JSON."""
    found = ask("--questions", "--json")
    assert found.exit_code == INCONCLUSIVE
    assert [one["number"] for one in json.loads(found.stdout)] == list(range(1, 13))


def test_two_views_at_once_are_refused():
    """One sentence names both options."""
    refused = ask("--questions", "--explain")
    assert str(refused.exception).startswith("--questions and --explain are two views.")


def test_an_unknown_cell_is_refused_with_the_ones_there_are():
    """A wrong cell is the user's error and lists the right names."""
    refused = ask("--cell", "rewriting@none")
    assert refused.exception.exit_code == 2
    assert "rewriting@busy" in str(refused.exception)
