"""`draftproof compare`: two runs or packages, computed again from their records, side by side."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import FullOption, JsonOption, console_progress, print_either

if TYPE_CHECKING:
    from draftproof.judge.observe.run_data import RunData


def compare(
    before: Annotated[
        Path,
        typer.Argument(metavar="A", help="Run directory or package of the earlier run.", show_default=False),
    ],
    after: Annotated[
        Path,
        typer.Argument(metavar="B", help="Run directory or package of the later run.", show_default=False),
    ],
    arm: Annotated[
        str | None, typer.Option("--arm", help="Compare this arm alone.", show_default=False)
    ] = None,
    *,
    as_json: JsonOption = False,
    full: FullOption = False,
) -> None:
    """Say what changed between two runs: configuration, delivery, effects, envelope, verdict.

    0 nothing changed beyond noise, 10 behaviour or configuration changed, 30 no change was seen and too
    little could be compared, 40 one of the runs is invalid, 50 a package is not whole.
    """
    from draftproof.judge.compare import EXIT_CODES, compare_runs  # noqa: PLC0415
    from draftproof.tell.report.comparison import render_comparison  # noqa: PLC0415

    with console_progress() as progress:
        progress.phase("Computing both runs again")
        comparison = compare_runs(_load(before), _load(after), arm)
    render = partial(render_comparison, comparison, full=full)
    print_either(comparison, lambda: render().rstrip("\n"), as_json=as_json)
    raise typer.Exit(EXIT_CODES[comparison.conclusion])


def _load(path: Path) -> "RunData":
    """Return a run's records, of a package once its bytes were checked; its results are not trusted."""
    from draftproof.store import RunDirectory  # noqa: PLC0415
    from draftproof.tell.handover.verifying import load_package  # noqa: PLC0415

    return load_package(path) if path.is_file() else RunDirectory.open(path).load()
