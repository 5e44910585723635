"""From a run directory to results and report. No clock, no network: the same bytes on any machine.

The statistics take a second or more to import. They are imported here when a verdict is computed, so that a
check, or a run that does not get that far, need not wait for them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.judge.results.run import Results
from draftproof.store import RunDirectory
from draftproof.store.tables import no_collection

if TYPE_CHECKING:
    from draftproof.judge.inform.explain import Explanation


def recompute(path: Path, *, write: bool) -> Results:
    """Compute the results of a run from its journal.

    If `write`, renew results.json, envelope.json and report.html. Raises StoreError: there is no run, or a
    line of it cannot be read; InvalidRunError: plan or thresholds were changed after the run had begun.
    """
    from draftproof.judge.compute import compute_results  # noqa: PLC0415
    from draftproof.judge.decide.envelope import build_envelope  # noqa: PLC0415
    from draftproof.tell.report import render_html  # noqa: PLC0415

    run = RunDirectory.open(path)
    with no_collection():
        contents = run.load()
        results = compute_results(contents)
    if write:
        run.write_results(results)
        run.write_envelope(build_envelope(results, contents.manifest))
        run.write_report(render_html(results, contents.manifest))
    return results


def explain_run(path: Path, cell: str | None) -> tuple["Explanation", Results]:
    """Compute a run's results and return the way from the verdict to raw requests, for one cell or for all.

    `cell`: "SEGMENT@LOAD", None for all. Raises StoreError: there is no run, or a line of it cannot be read;
    InvalidRunError: plan or thresholds were changed after the run had begun; UsageError: there is no such
    cell.
    """
    from draftproof.judge.compute import compute_results  # noqa: PLC0415
    from draftproof.judge.inform.explain import explain  # noqa: PLC0415
    from draftproof.store.tables import locate_requests  # noqa: PLC0415

    run = RunDirectory.open(path).load()
    results = compute_results(run)
    return explain(run, results, locate_requests(path), cell), results
