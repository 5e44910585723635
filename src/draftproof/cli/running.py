"""Runs and resumes qualifications for the command line: model, progress, outcome, exit code.

The qualification and its statistics take seconds to import, so they are imported where they are used.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import typer

from draftproof.cli.console import Display, console_progress
from draftproof.cli.printable import print_json, print_text
from draftproof.core.errors import UsageError

if TYPE_CHECKING:
    from draftproof.judge.results.run import Results
    from draftproof.measure.run import Interrupted, Patience
    from draftproof.plan.schema import Plan

INTERRUPTED_CODE = 130


def run_new(
    plan: "Plan",
    text: str,
    out: Path,
    *,
    as_json: bool,
    quiet: bool = False,
    patience: "Patience | None" = None,
) -> None:
    """Run a plan into a new directory, print the outcome and exit with the verdict's code."""
    from draftproof.measure.run import run_plan  # noqa: PLC0415

    with interruptible(out, lines=True, quiet=quiet) as progress:
        results = run_plan(plan, text, out, model_resolver(progress), progress, patience=patience)
    finish(results, out, as_json=as_json)


def resume(out: Path, *, as_json: bool, quiet: bool = False, patience: "Patience | None" = None) -> None:
    """Continue a run, print the outcome and exit with the verdict's code."""
    from draftproof.measure.run import resume_run  # noqa: PLC0415

    with interruptible(out, lines=True, quiet=quiet) as progress:
        results = resume_run(out, model_resolver(progress), progress, patience=patience)
    finish(results, out, as_json=as_json)


def read_patience(wait_min: float | None, *, keep_going: bool) -> "Patience":
    """Return what becomes of a run that cannot end well.

    Raises:
        UsageError: it is to wait and to go on.
    """
    from draftproof.measure.run import Patience  # noqa: PLC0415

    if wait_min is not None and keep_going:
        raise UsageError("--wait-for-quiet and --keep-going exclude each other", fix="give one of them")
    return Patience(wait_s=None if wait_min is None else 60 * wait_min, keep_going=keep_going)


def finish(results: "Results", out: Path, *, as_json: bool) -> None:
    """Print the outcome of a run and exit with the verdict's code."""
    from draftproof.judge.observe.notices import ENDED_EARLY  # noqa: PLC0415
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.tell.report.text import render_text  # noqa: PLC0415

    if as_json:
        print_verdict(results, as_json=True)
    else:
        print_text(render_text(results))
        print_text(f"Report: {(out / 'report.html').resolve()}")
        print_text(f"Re-compute it anywhere: draftproof report {out}")
        if any(reason.code == ENDED_EARLY for reason in results.verdict.reasons):
            print_text(f"Go on: draftproof run --resume {out} --wait-for-quiet")
    raise typer.Exit(EXIT_CODES[results.verdict.decision])


def print_verdict(results: "Results", *, as_json: bool) -> None:
    """Print the decision, its sentence and its reasons."""
    verdict = results.verdict
    if as_json:
        print_json(verdict)
        return
    print_text(f"{verdict.decision}: {verdict.sentence}")
    for reason in verdict.reasons:
        print_text(f"  - {reason.text} [{reason.evidence}]")


def fresh_directory(name: str) -> Path:
    """Return a directory name that is free for a run: `name`, else `name-2`, `name-3` and so on."""
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in map(Path, candidates) if _is_free(path))


def _is_free(path: Path) -> bool:
    """Tell whether there is nothing, or what is left of a run that measured nothing and goes on no more."""
    from draftproof.core.errors import StoreError  # noqa: PLC0415
    from draftproof.store import RunDirectory  # noqa: PLC0415

    if not path.exists():
        return True
    try:
        with RunDirectory.prepare(path):
            return True
    except StoreError:
        return False


def load_reference(module: str) -> ModuleType:
    """Import a module of the reference engine.

    Raises:
        UsageError: the extra `engine` is not installed.
    """
    import importlib  # noqa: PLC0415 - the engine is optional and heavy

    try:
        return importlib.import_module(f"draftproof.reference.{module}")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the reference engine needs the package {error.name}.",
            fix='install it with: pip install "draftproof[engine]"',
        ) from error


def model_resolver(progress: Display) -> Callable[[str], Path]:
    """Return what turns a plan's target into a folder of files, fetching the demo's model at first use."""

    def resolve(name: str) -> Path:
        folder: Path = load_reference("weights.fetch").resolve_model(name, progress.download)
        return folder

    return resolve


@contextmanager
def interruptible(out: Path | None = None, *, lines: bool = False, quiet: bool = False) -> Iterator[Display]:
    """Yield a progress display; a job stopped by the user says what is kept in `out` and exits with 130.

    Args:
        out: the run directory.
        lines: see `console_progress`.
        quiet: see `console_progress`.
    """
    from draftproof.measure.run import Interrupted  # noqa: PLC0415

    try:
        with console_progress(lines=lines, quiet=quiet) as progress:
            yield progress
    except Interrupted as stopped:
        sys.stderr.write(_describe_stop(stopped, out))
        raise typer.Exit(INTERRUPTED_CODE) from stopped


def _describe_stop(stopped: "Interrupted", out: Path | None) -> str:
    if stopped.run is None:
        return "Stopped before this call measured anything.\n"
    return (
        f"Stopped after {stopped.done} of {stopped.total} turns; everything measured is in {out}.\n"
        f"Report of what is there: draftproof report {out}\n"
        f"Go on:                   draftproof run --resume {out}\n"
    )
