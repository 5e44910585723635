"""`draftproof report`, `verdict` and `judge`: what follows from the records of a run, computed again."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.console import (
    FullOption,
    JsonOption,
    RunArgument,
    interruptible,
    print_either,
    print_text,
)
from draftproof.core.errors import DraftproofError, UsageError


def report(run_directory: RunArgument, *, full: FullOption = False) -> None:
    """Re-compute results.json, envelope.json and report.html of a run; the same bytes each time.

    Exits with the verdict's code, as `run` does: 0 adopt, 10 limited, 20 defer, 30 inconclusive, 40 invalid.
    """
    from draftproof.cli.run import Show, finish  # noqa: PLC0415
    from draftproof.measure.run.reporting import recompute  # noqa: PLC0415

    finish(recompute(run_directory, write=True), run_directory, Show(as_json=False, full=full))


def verdict(
    run_directory: RunArgument,
    *,
    as_json: JsonOption = False,
    full: FullOption = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Walk from the verdict to cells, prompts and raw requests."),
    ] = False,
    cell: Annotated[
        str | None,
        typer.Option("--cell", help="Explain one cell in full: SEGMENT@LOAD.", show_default=False),
    ] = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Answer the twelve questions of a review.")
    ] = False,
) -> None:
    """Re-compute the verdict and exit with its code.

    0 adopt, 10 adopt in a limited envelope, 20 defer, 30 inconclusive, 40 invalid run.
    """
    from draftproof.cli.run import Show, finish  # noqa: PLC0415
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run.reporting import recompute  # noqa: PLC0415
    from draftproof.tell.report.configuration import render_questions  # noqa: PLC0415

    if questions and (explain or cell is not None):
        raise UsageError("--questions and --explain are two views", fix="ask for one of them at a time")
    if explain or cell is not None:
        _explain(run_directory, cell, as_json=as_json)
    results = recompute(run_directory, write=False)
    if not questions:
        finish(results, run_directory, Show(as_json=as_json, full=full))
    print_either(results.questions, partial(render_questions, results), as_json=as_json)
    raise typer.Exit(EXIT_CODES[results.verdict.decision])


def _explain(run_directory: Path, cell: str | None, *, as_json: bool) -> None:
    """Print the way from the verdict to the requests and exit with the verdict's code."""
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run.reporting import explain_run  # noqa: PLC0415
    from draftproof.tell.report.explanation import render_explanation  # noqa: PLC0415
    from draftproof.tell.report.summary import summarise  # noqa: PLC0415

    explanation, results = explain_run(run_directory, cell)
    blocks = summarise(results, str(run_directory)).blocks
    print_either(explanation, partial(render_explanation, explanation, blocks), as_json=as_json)
    raise typer.Exit(EXIT_CODES[explanation.decision])


def judge(run_directory: RunArgument) -> None:
    """Ask the functions and the judge model of a workload for every judgement that a run still lacks.

    What they say is kept in the run, which is then computed again. Nothing is asked twice. 0 all is judged, 1
    something is left.
    """
    from draftproof.measure.run.answer_judging import run_judging  # noqa: PLC0415
    from draftproof.measure.run.reporting import recompute  # noqa: PLC0415
    from draftproof.store import RunDirectory  # noqa: PLC0415

    with interruptible(run_directory) as progress:
        report = run_judging(run_directory, progress)
        if report.judged:
            progress.phase("Computing the verdict")
            RunDirectory.open(run_directory).compact()
            recompute(run_directory, write=True)
    if report.wanted:
        print_text(f"Judged {report.judged} of {report.wanted} answers that were not judged yet.")
    else:
        print_text("Nothing to judge: no answer of this run lacks a judgement.")
    for problem in report.problems:
        print_text(f"  - {' '.join(problem.split())}")
    if report.left:
        raise typer.Exit(DraftproofError.exit_code)
