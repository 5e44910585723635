"""`draftproof judge`: asks functions and judge models what a run still lacks, and computes it again."""

from pathlib import Path
from typing import Annotated

import typer

from draftproof.cli.printable import print_text
from draftproof.cli.running import interruptible
from draftproof.core.errors import DraftproofError


def judge(
    run_directory: Annotated[Path, typer.Argument(help="A run directory.", show_default=False)],
) -> None:
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
