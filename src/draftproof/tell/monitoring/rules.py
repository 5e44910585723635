"""A Prometheus rule file in YAML. Pure text; the same run and plan give the same bytes."""

from collections.abc import Iterator, Sequence
from itertools import chain
from textwrap import wrap

from draftproof.core.manifests import Manifest
from draftproof.judge.results.run import Results
from draftproof.plan.schema import Plan
from draftproof.tell.monitoring.alerts import Alert, literal
from draftproof.tell.monitoring.recordings import Recording, indent, quote
from draftproof.tell.monitoring.watch import Watch, watch_run

_WIDTH = 110


def render_rules(
    results: Results,
    plan: Plan,
    manifest: Manifest,
    *,
    jobs: Sequence[str] = (),
    holdout_jobs: Sequence[str] = (),
) -> str:
    """Return the recording and alerting rules of a run's candidate as YAML; see `watching.watch_run`.

    An engine whose metrics are unknown gives a file without a rule that says so.
    """
    return render_watch(watch_run(results, plan, manifest, jobs=jobs, holdout_jobs=holdout_jobs))


def render_watch(watch: Watch) -> str:
    """Return the rule file of what is watched."""
    lines = [*_head(watch)]
    if not watch.recordings and not watch.alerts:
        return "\n".join([*lines, "groups: []"]) + "\n"
    # One group: its rules run in order, so an alert sees the series of the same moment.
    lines += ["groups:", f"  - name: {quote('draftproof ' + watch.run_label)}", "    rules:"]
    for recording in watch.recordings:
        lines += _recording(recording, watch.run_label)
    for alert in watch.alerts:
        lines += _alert(alert, watch)
    return "\n".join(lines) + "\n"


def _head(watch: Watch) -> Iterator[str]:
    yield "# Prometheus rules for speculative decoding, written by `draftproof rules` from a run's plan."
    yield from chain.from_iterable(_comment(f"{label}: {text}") for label, text in watch.facts)
    yield "#"
    yield '# Load the file with rule_files in prometheus.yml. Alerts with action="rollback" are the plan\'s'
    yield '# rollback triggers; those with action="look" ask for a person.'
    yield from chain.from_iterable(map(_comment, watch.notes))
    yield "#"
    yield "# Cannot be watched:"
    for one in watch.unwatched:
        yield from _comment(f"- {one.what}: {one.why}")
    yield ""


def _comment(text: str, indentation: str = "") -> Iterator[str]:
    """Yield comment lines of a readable width: a text with line ends of its own would leave the comment."""
    opening = f"{indentation}# "
    further = opening + ("  " if text.startswith("- ") else "")
    yield from wrap(text, _WIDTH, initial_indent=opening, subsequent_indent=further)


def _recording(recording: Recording, run: str) -> Iterator[str]:
    yield from _comment(recording.comment, " " * 6)
    yield f"      - record: {recording.name}"
    yield from _block("expr", recording.expr)
    yield "        labels:"
    if recording.arm is not None:
        yield f"          arm: {quote(recording.arm)}"
    yield f"          run: {quote(run)}"


def _alert(alert: Alert, watch: Watch) -> Iterator[str]:
    evidence = f"run {watch.run_name}, plan SHA-256 {dict(watch.facts)['plan_sha256']}"
    yield f"      - alert: {alert.name}"
    yield from _block("expr", alert.expr)
    yield f"        for: {alert.for_s}s"
    yield "        labels:"
    yield f"          severity: {quote(alert.severity)}"
    yield f"          action: {quote('rollback' if alert.rolls_back else 'look')}"
    yield f"          run: {quote(watch.run_label)}"
    yield "        annotations:"
    yield f"          summary: {quote(alert.summary)}"
    yield f"          description: {quote(alert.description)}"
    yield f"          runbook: {quote(alert.runbook)}"
    yield f"          evidence: {quote(literal(evidence))}"


def _block(key: str, text: str) -> Iterator[str]:
    yield f"        {key}: |-"
    yield indent(text, " " * 10)
