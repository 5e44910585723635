"""Writes everything that a user reads into a folder, so that two trees are compared with `diff -r`.

    python tests/golden/outputs/write_outputs.py FOLDER

The runs are those that real engines left behind and one of known requests; the texts are those of the
commands, called as a user calls them. Paths and the digest of the source are replaced: they differ between
checkouts and say nothing about what is read.
"""

import contextlib
import functools
import importlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

# A tool of development brings this; jsonschema would compile its grammars for seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

ROOT = Path(__file__).parents[3]
for folder in (".", "bench", "tests/unit/explore", "tests/unit/judge"):
    sys.path.insert(0, str(ROOT / folder))

import cost_builders  # noqa: E402 - found by the path above
import knee_searches  # noqa: E402

from draftproof.cli.app import app  # noqa: E402
from draftproof.cli.app import main as call_draftproof  # noqa: E402
from draftproof.core.records import BehaviourProbe, Judgement, Notice, TokenCounts, Warmup  # noqa: E402
from draftproof.core.rounding import round_figures  # noqa: E402
from draftproof.explore.page import render_costs_html, render_costs_text  # noqa: E402
from draftproof.judge.compute import compute_results  # noqa: E402
from draftproof.judge.results.run import Results  # noqa: E402
from draftproof.judge.stats import resampling  # noqa: E402
from draftproof.measure.run.reporting import recompute  # noqa: E402
from draftproof.store import RunDirectory  # noqa: E402
from draftproof.store.journal import encode_line  # noqa: E402
from draftproof.tell.monitoring import (  # noqa: E402
    DASHBOARD_FILE,
    RULES_FILE,
    render_dashboard,
    render_watch,
    watch_run,
)
from draftproof.tell.report import render_full, render_html, render_text  # noqa: E402

records_run: Any = importlib.import_module("records_run")
KEPT_RUNS = ROOT / "tests" / "fixtures" / "runs"
PLANS = ("reference", "vllm", "llamacpp", "sglang", "tensorrt-llm", "tgi", "openai")
WIDTH = "100"


def main() -> None:
    """Write all outputs below the folder that the command line names."""
    target = Path(sys.argv[1])
    for name, content in collect_outputs().items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def collect_outputs() -> dict[str, bytes]:
    """Return every output by its name, e.g. "vllm-ngram/report.html"."""
    with tempfile.TemporaryDirectory() as scratch, _steady(Path(scratch)):
        work = Path(scratch)
        runs = [shutil.copytree(run, work / run.name) for run in sorted(KEPT_RUNS.iterdir())]
        runs.append(_make_run(work / "synthetic"))
        found = {f"{run.name}/{name}": content for run in runs for name, content in _read_run(run)}
        found |= dict(_read_commands(work))
    found |= {f"journal/{kind}.jsonl": line for kind, line in _read_lines().items()}
    return found | dict(_read_costs()) | dict(_read_knee())


@contextlib.contextmanager
def _steady(folder: Path) -> Iterator[None]:
    """Take out what differs between checkouts, terminals and days; work in a folder of its own."""
    before = Path.cwd()
    terminal = {"COLUMNS": WIDTH, "TERMINAL_WIDTH": WIDTH, "NO_COLOR": "1", "TERM": "dumb"}
    os.chdir(folder)
    try:
        with (
            patch.dict(os.environ, terminal),
            patch("draftproof.tell.handover.packing.source_sha256", lambda: "0" * 64),
            patch("draftproof.tell.handover.verifying.source_sha256", lambda: "0" * 64),
            patch("draftproof.measure.run.reporting.recompute", _recompute_once()),
            patch.object(resampling, "_draw_counts", _draw_once()),
        ):
            yield
    finally:
        os.chdir(before)


def _recompute_once() -> Callable[..., Results]:
    """Return a `recompute` that computes a run's results once for all commands; `report` comes first."""
    kept: dict[Path, Results] = {}

    def find(run: Path, **options: bool) -> Results:
        if run not in kept:
            kept[run] = recompute(run, **options)
        return kept[run]

    return find


def _draw_once() -> Callable[..., Any]:
    """Return the function of drawn counts, which here keeps those of a run until its last command."""
    return functools.lru_cache(maxsize=512)(resampling._draw_counts.__wrapped__)


def _make_run(folder: Path) -> Path:
    """Write a run of four arms, two loads and four tasks, of requests that a seed draws."""
    shape = records_run.Shape(records=1536, items=96, block_size=24)
    with records_run.make_directory(folder, shape) as run:
        for *requests, block in records_run.make_periods(shape):
            for record in (*sorted(requests, key=lambda one: one.end_ns), block):
                run.journal.append(record)
    return folder


def _read_run(run: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what is made of a run: its files, its texts, its rules and its package."""
    yield "report.txt", _call("report", run.name)
    yield "report--full.txt", _call("report", run.name, "--full")
    yield "verdict.txt", _call("verdict", run.name)
    yield "verdict.json", _call("verdict", run.name, "--json")
    for view in ("--explain", "--questions"):
        yield f"verdict{view}.txt", _call("verdict", run.name, view)
    yield "package.txt", _call("package", run.name, "--out", f"{run.name}.tar")
    yield "verify.txt", _call("verify", f"{run.name}.tar")
    yield "package.tar", (run.parent / f"{run.name}.tar").read_bytes()
    yield "rules.txt", _call("rules", run.name)
    yield from _render_rules(run)
    for name in ("results.json", "envelope.json", "report.html"):
        yield name, (run / name).read_bytes()


def _render_rules(run: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what would be watched; the command writes it only where speculation may run."""
    contents = RunDirectory.open(run).load()
    facts = (importlib.import_module("draftproof.measure.run.reporting").recompute(run, write=False),
             contents.plan, contents.manifest)  # fmt: skip
    yield f"rules/{RULES_FILE}", render_watch(watch_run(*facts, jobs=(), holdout_jobs=())).encode()
    yield f"rules/{DASHBOARD_FILE}", render_dashboard(*facts, jobs=(), holdout_jobs=()).encode()


def _read_commands(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the help of every command, and the plans that `init` writes."""
    yield "help/draftproof.txt", _call("--help")
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "").replace("_", "-")
        yield f"help/{name}.txt", _call(name, "--help")
    yield "samples.txt", _call("samples", "synthetic/plan.toml", "--run", "synthetic")
    yield "compare.txt", _call("compare", "vllm-ngram", "vllm-draft-model")
    yield "compare-alike.txt", _call("compare", "vllm-ngram", "vllm-ngram")
    for engine in PLANS:
        said = _call("init", "--engine", engine, "--out", f"{engine}.toml")
        yield f"init/{engine}.txt", said
        yield f"init/{engine}.toml", (folder / f"{engine}.toml").read_bytes()


def _read_lines() -> dict[str, bytes]:
    """Return one journal line of each kind."""
    shape = records_run.Shape(records=16, items=2, block_size=2)
    *requests, block = next(iter(records_run.make_periods(shape)))
    request_id, digest = requests[0].request_id, "a" * 64
    records = (
        requests[0],
        block,
        TokenCounts(request_id=request_id, end_ns=1, cumulative_tokens=(1, 2)),
        Judgement(
            request_id=request_id, item_id="chat-0001", check=0, kind="judge", passed=None,
            detail="no answer", by="judge", source_sha256=digest, answer_sha256=digest,
        ),
        BehaviourProbe(arm="candidate", probe="cancel", status="unknown", detail="no metrics", at_ns=1),
        Warmup(
            arm="baseline", load="single", block=0, start=1, started_ns=0, ended_ns=9, stable=True,
            tolerance=0.1, change=None, groups=(),
        ),
        Notice(code="client_late", severity="note", text="late", remedy="wait"),
    )  # fmt: skip
    lines = [encode_line(record) + b"\n" for record in records]
    return {json.loads(line)["kind"]: line for line in lines}


def _read_costs() -> Iterator[tuple[str, bytes]]:
    """Yield the files and the text of costs of known step times."""
    costs = round_figures(cost_builders.build_costs())
    yield "costs/costs.json", msgspec.json.format(msgspec.json.encode(costs)) + b"\n"
    yield "costs/costs.html", render_costs_html(costs).encode()
    yield "costs/costs.txt", render_costs_text(costs).encode()


def _read_knee() -> Iterator[tuple[str, bytes]]:
    """Yield results, report and text of a search for the knee of services of known speed."""
    run, _ = knee_searches.find(prompts=20, requests=40)
    results = compute_results(run)
    yield (
        "knee/results.json",
        msgspec.json.format(msgspec.json.encode(results, order="sorted", enc_hook=str)) + b"\n",
    )
    yield "knee/report.html", render_html(results, run.manifest).encode()
    yield "knee/report.txt", render_text(results).encode()
    yield "knee/report--full.txt", render_full(results).encode()


def _call(*arguments: str) -> bytes:
    """Return what a command says, with its exit code as the last line."""
    out = io.StringIO()
    called = patch.object(sys, "argv", ["draftproof", *arguments])
    with called, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = call_draftproof()
    text = out.getvalue().replace(str(Path.cwd().resolve()), "FOLDER")
    return f"{text}exit code {code}\n".encode()


if __name__ == "__main__":
    main()
