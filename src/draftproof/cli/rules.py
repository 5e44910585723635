"""`draftproof rules`: a run's rollback thresholds as Prometheus rules and a Grafana dashboard."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftproof.cli.console import RunArgument, print_text
from draftproof.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from draftproof.tell.monitoring import Watch

_Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to write to.", show_default="monitoring/ in the run directory"),
]
_Jobs = Annotated[
    list[str] | None,
    typer.Option(
        "--job",
        help="Prometheus job that scrapes the candidate; may be repeated.",
        show_default="the plan's name with -candidate",
    ),
]
_Holdout = Annotated[
    list[str] | None,
    typer.Option(
        "--holdout-job",
        help="Job that scrapes the hold-out, which decodes ordinarily; may be repeated.",
        show_default="the plan's name with -holdout if it states a holdout_share, else nothing is compared",
    ),
]


def rules(
    run_directory: RunArgument, *, out: _Out = None, job: _Jobs = None, holdout_job: _Holdout = None
) -> None:
    """Write Prometheus rules and a Grafana dashboard that watch the candidate in operation.

    Limits are those of the plan's table "rollback", and of its thresholds and objectives where that is open.
    What an engine's metrics cannot tell is listed. Where speculation may run nowhere nothing is written, and
    the call exits with the verdict's code.
    """
    from draftproof.judge.results.run import EXIT_CODES  # noqa: PLC0415
    from draftproof.measure.run.reporting import recompute  # noqa: PLC0415
    from draftproof.store import RunDirectory  # noqa: PLC0415
    from draftproof.tell.monitoring import (  # noqa: PLC0415
        DASHBOARD_FILE,
        RULES_FILE,
        render_dashboard,
        render_watch,
        watch_run,
    )

    jobs, holdout = _check_jobs(job, "--job"), _check_jobs(holdout_job, "--holdout-job")
    if shared := set(jobs) & set(holdout):
        raise UsageError(
            f"the job {min(shared)!r} is named for the candidate and for the hold-out",
            fix="scrape the two arms under jobs of their own",
        )
    results = recompute(run_directory, write=False)
    if not results.verdict.envelope:
        print_text(
            "Nothing is written: by this run speculation may run nowhere, so there is nothing to watch."
        )
        raise typer.Exit(EXIT_CODES[results.verdict.decision])
    contents = RunDirectory.open(run_directory).load()
    plan, manifest = contents.plan, contents.manifest
    watch = watch_run(results, plan, manifest, jobs=jobs, holdout_jobs=holdout)
    folder = out or run_directory / "monitoring"
    _write(folder / RULES_FILE, render_watch(watch))
    _write(
        folder / DASHBOARD_FILE,
        render_dashboard(results, plan, manifest, jobs=jobs, holdout_jobs=holdout),
    )
    print_text("\n".join(_summarise(watch, folder / RULES_FILE, folder / DASHBOARD_FILE)))


def _check_jobs(jobs: list[str] | None, option: str) -> tuple[str, ...]:
    if any(not job.strip() or not job.isprintable() for job in jobs or ()):
        raise UsageError("a job without a name cannot be selected", place=option, fix="name the scrape job")
    return tuple(dict.fromkeys(jobs or ()))


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write: {error.strerror}", place=str(path)) from error


def _summarise(watch: "Watch", rules_file: Path, dashboard_file: Path) -> Iterator[str]:
    triggers = [alert.name for alert in watch.alerts if alert.rolls_back]
    others = [alert.name for alert in watch.alerts if not alert.rolls_back]
    yield f"Rules:     {rules_file} ({len(watch.recordings)} series, {len(watch.alerts)} alerts)"
    yield f"Dashboard: {dashboard_file}"
    yield f"Roll back on: {', '.join(triggers) or 'nothing: see below'}"
    yield f"Look at: {', '.join(others) or 'nothing'}"
    yield from watch.notes
    yield "Cannot be watched:"
    yield from (f"  {one.what}: {one.why}" for one in watch.unwatched)
