"""`draftproof verdict --explain` and `--questions`: what a verdict rests on and leaves open."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftproof.cli.printable import print_json, print_text

if TYPE_CHECKING:
    from draftproof.judge.results.run import Results


def print_explanation(run_directory: Path, cell: str | None, *, as_json: bool) -> None:
    """Print the way from the verdict to the requests and exit with the verdict's code.

    Raises:
        UsageError: there is no such cell.
    """
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run import explain_run  # noqa: PLC0415
    from draftproof.tell.report.explanation import render_explanation  # noqa: PLC0415

    explanation = explain_run(run_directory, cell)
    if as_json:
        print_json(explanation)
    else:
        print_text(render_explanation(explanation))
    raise typer.Exit(EXIT_CODES[explanation.decision])


def print_questions(results: "Results", *, as_json: bool) -> None:
    """Print the twelve questions with their answers."""
    from draftproof.tell.report.configuration import render_questions  # noqa: PLC0415

    if as_json:
        print_json(results.questions)
    else:
        print_text(render_questions(results))
