"""A stage for whole runs: plans whose arms are real processes of known timing, and a look for orphans."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from draftproof.cli import main
from draftproof.judge.results.run import Results
from draftproof.measure.run.progress import Patience, Progress
from draftproof.measure.run.runner import resume_run, run_plan
from draftproof.plan.loading import load_plan
from draftproof.services.engines.commands import parse_flags

MARK = "DRAFTPROOF_TEST_STAGE"
SERVER = (sys.executable, "-m", "tests.builders.serve_script", "--port", "{port}")
DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")

PLAN = """\
name = "staged"
question = "Does it pay?"

[workload]
path = "items.jsonl"
{workload}

[[load]]
name = "single"
concurrency = {concurrency}
block_size = {block_size}
repeats = {repeats}

[arms.baseline]
engine = "{engine}"
command = {baseline}
{baseline_settings}

[arms.candidate]
engine = "{engine}"
command = {candidate}
{candidate_settings}

[comparison]
null_arm = false
resamples = 200
statistic = "p50"
{declared}
{comparison}

[thresholds]
ttft_margin = 5.0
e2e_margin = 0.9
failure_margin = 1.0
quality_margin = 1.0
{thresholds}

[limits]
ready_s = {ready_s}
stop_s = {stop_s}
request_s = 10.0
warmup_requests = 1
warmup_max_s = 0.001  # one group alone, so that a test knows how many requests a service has answered
client_lag_ms = 5000.0
repeat_disturbed = {repeat_disturbed}
stall_ms = 5000.0
behaviour_probes = {probes}

{tables}
"""
DEFAULTS = {
    "concurrency": 1,
    "block_size": 4,
    "repeats": 1,
    "engine": "generic",
    "ready_s": 30.0,
    "stop_s": 5.0,
    "workload": "",
    "comparison": "",
    "declared": "",
    "thresholds": "",
    "baseline_settings": "",
    "candidate_settings": "",
    "probes": "false",
    "tables": "",
    # Whoever else uses the cores of a test machine adds no request to a run whose requests are counted.
    "repeat_disturbed": "false",
}


def declare(*arms) -> list[str]:
    """Every flag of the arms' commands, which alone a staged plan changes, and what drafting is."""
    flags = [flag for arm in arms for flag in parse_flags(["server", *arm])]
    return [*dict.fromkeys(flags), "m", "launch", "speculation", "drafter"]


class Stage:
    """A folder with a workload, and what a test does in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "run"
        self.write_items(8)

    def write_items(self, count: int) -> None:
        lines = [
            {
                "id": f"item-{number}",
                "messages": [{"role": "user", "content": f"number {number}"}],
                "segments": {"task": "chat"},
                "checks": [{"type": "contains", "all_of": ["w0"]}],
            }
            for number in range(count)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (self.folder / "items.jsonl").write_text(text)

    def plan(self, *, baseline=(), candidate=DRAFTING, **changes) -> Path:
        """Write a plan; an arm is options of the scripted server, or a whole command as a list."""
        values = DEFAULTS | changes
        for name, arm in (("baseline", baseline), ("candidate", candidate)):
            command = arm if isinstance(arm, list) else [*SERVER, *arm]
            values[name] = json.dumps(command)
        if "candidate_may_differ" not in str(values["comparison"]):
            values["declared"] = f"candidate_may_differ = {json.dumps(declare(baseline, candidate))}"
        path = self.folder / "plan.toml"
        path.write_text(PLAN.format(**values))
        return path

    def start(self, *arguments, program=("-m", "draftproof"), quiet=True, **options) -> subprocess.Popen[str]:
        """Start the command line as a user does; a quiet run says nothing but what went wrong."""
        last = ["--quiet"] if quiet and arguments[0] in {"run", "demo"} else []
        return subprocess.Popen(
            [sys.executable, *program, *map(str, arguments), *last],
            cwd=self.folder,
            env=os.environ | {MARK: str(self.folder)},
            stdin=subprocess.DEVNULL,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
        )

    def call(self, *arguments, **options) -> subprocess.CompletedProcess[str]:
        """Run the command line to its end."""
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def resume(self) -> Results:
        """Finish the run in this process, which has the library loaded already."""
        return resume_run(self.out, self.no_model, Progress())

    def run(self, progress: Progress | None = None, patience: Patience | None = None, **plan) -> Results:
        """Run a plan to its end in this process."""
        checked, text = load_plan(self.plan(**plan))
        return run_plan(
            checked,
            text,
            self.out,
            self.no_model,
            progress or Progress(),
            patience=patience or Patience(keep_going=True),
        )

    @staticmethod
    def no_model(name):
        raise AssertionError(f"no arm of these plans needs the files of {name}")

    def journal(self, out: Path | None = None) -> list[dict[str, Any]]:
        """Return the records of the journal's whole lines; every line but a torn last one must parse."""
        path = (out or self.out) / "journal" / "records.jsonl"
        if not path.exists():
            return []
        whole, _, _torn = path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in whole.splitlines()]

    def measured(self) -> list[dict[str, Any]]:
        """Return the counted requests."""
        lines = [line["record"] for line in self.journal() if line["kind"] == "request"]
        return [record for record in lines if record["phase"] == "measure"]

    def wait_for_records(self, count: int) -> None:
        self.wait_until(lambda: len(self.measured()) >= count, f"{count} measured requests")

    def wait_until(self, holds, what: str, wait_s: float = 90.0) -> None:
        deadline_s = time.monotonic() + wait_s
        while not holds():
            assert time.monotonic() < deadline_s, f"waited in vain for: {what}"
            time.sleep(0.05)

    def processes(self, word: str = "") -> list[psutil.Process]:
        """Return the living processes that came of this stage and have `word` in their command."""
        return [
            process for process in map(self._find, psutil.pids()) if process and word in _command(process)
        ]

    def assert_no_orphans(self) -> None:
        """Wait for every process of this stage to be gone."""
        self.wait_until(lambda: not self.processes(), "the end of every process", wait_s=60.0)

    def _find(self, pid: int) -> psutil.Process | None:
        """Return a process if it lives and is of this stage; waiting looks at all of them again and again."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid == os.getpid() or f"{MARK}={self.folder}".encode() not in environment:
                return None
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (OSError, psutil.Error):
            return None


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a function that calls the command line in this process: exit code, output, errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["draftproof", *map(str, arguments)])
        code = main()
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Return a stage; whatever a test leaves running is ended."""
    monkeypatch.setenv(MARK, str(tmp_path))
    stage = Stage(tmp_path)
    yield stage
    for process in stage.processes():
        process.kill()
