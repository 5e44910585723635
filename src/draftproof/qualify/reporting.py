"""From a run directory to results and report. No clock, no network: the same bytes on any machine."""

from pathlib import Path

from draftproof.report import render_html
from draftproof.store import RunContents, RunDirectory
from draftproof.verdict.compute import compute_results
from draftproof.verdict.results import Results
from draftproof.verdict.run_data import RunData


def recompute(path: Path, *, write: bool) -> Results:
    """Compute the results of a run from its journal and, if `write`, renew results.json and report.html.

    Raises:
        StoreError: there is no run, or a line of it cannot be read.
        InvalidRunError: plan or thresholds were changed after the run had begun.
    """
    run = RunDirectory.open(path)
    contents = run.load()
    results = compute_results(run_data(contents))
    if write:
        run.write_results(results)
        run.write_report(render_html(results, contents.manifest))
    return results


def run_data(contents: RunContents) -> RunData:
    """Return the part of a run directory that a verdict depends on."""
    return RunData(
        plan=contents.plan,
        manifest=contents.manifest,
        records=contents.records,
        blocks=contents.blocks,
        items=contents.items,
    )
