"""What ends a run before its end: nothing measured is lost, no service stays behind, the run goes on."""

import fcntl
import json
import os
import pty
import resource
import select
import signal
import subprocess
import sys
import termios
import threading
import time

import pytest

from draftproof.core.errors import StoreError
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.reporting import recompute
from draftproof.measure.run.runner import resume_run

DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")
SLOW_PLAN = {"baseline": ("--gap-ms", "20"), "candidate": (*DRAFTING, "--gap-ms", "40"), "block_size": 2}
# A service that does not heed the polite signal: what is left of it must be killed.
STUBBORN = (
    "import runpy, signal, sys; "
    "signal.signal = lambda *_: None; sys.argv[0] = 'serve_script'; "
    "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGTERM, s.SIGINT]); "
    "runpy.run_module('tests.builders.serve_script', run_name='__main__')"
)


def end(process: subprocess.Popen[str], wait_s: float = 90.0) -> tuple[int, str, str]:
    """Wait for a started command line; return exit code, standard output and standard error."""
    out, err = process.communicate(timeout=wait_s)
    return process.returncode, out, err


def assert_finished_without_doubles(stage, items: int) -> None:
    """Every item has one counted request in every arm, under an id of its own."""
    asked = [(record["arm"], record["item_id"]) for record in stage.measured()]
    assert len(asked) == len(set(asked)) == 2 * items
    ids = [record["request_id"] for record in stage.measured()]
    assert len(ids) == len(set(ids))
    results = json.loads((stage.out / "results.json").read_bytes())
    assert results["counts"]["measured"] == 2 * items
    assert results["counts"]["duplicates"] == 0


def test_an_arm_that_dies_is_named_and_the_run_can_go_on(stage, call):
    """A service that ends in mid-run: one sentence, exit 1, its requests fail, and a resumed run finishes."""
    dying = (*DRAFTING, "--die-after", "5", "--die-once", str(stage.folder / "died"))
    plan = stage.plan(candidate=dying, block_size=8)
    code, _, err = call("run", plan, "--out", stage.out, "--quiet")
    assert code == 1
    assert err.count("\n") == 1
    assert "arm candidate ended with exit code 70" in err
    assert f"draftproof run --resume {stage.out}" in err
    stage.assert_no_orphans()
    before = stage.measured()
    failed = {record["item_id"] for record in before if record["outcome"] != "ok"}
    assert len(failed) == 5
    assert {record["arm"] for record in before if record["outcome"] != "ok"} == {"candidate"}
    results = stage.resume()
    stage.assert_no_orphans()
    assert "The arm candidate failed 5 requests." in results.warnings
    assert_finished_without_doubles(stage, items=8)
    after = {(record["arm"], record["item_id"]): record["outcome"] for record in stage.measured()}
    assert {item for (arm, item), outcome in after.items() if outcome != "ok"} == failed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_first_signal_keeps_what_was_measured_and_the_run_can_go_on(stage, number):
    """Exit 130, whole journal, no process left; a partial run is no adoption; resume finishes it."""
    process = stage.start("run", stage.plan(**SLOW_PLAN), "--out", stage.out)
    stage.wait_for_records(3)
    process.send_signal(number)
    code, out, err = end(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert f"draftproof run --resume {stage.out}" in err
    stage.assert_no_orphans()
    assert (stage.out / "journal" / "records.jsonl").read_bytes().endswith(b"\n")
    kept = {record["request_id"] for record in stage.measured()}
    assert 3 <= len(kept) < 16
    assert recompute(stage.out, write=True).verdict.decision in {"inconclusive", "invalid"}
    assert (stage.out / "report.html").stat().st_size > 1000
    stage.resume()
    stage.assert_no_orphans()
    assert_finished_without_doubles(stage, items=8)
    assert kept <= {record["request_id"] for record in stage.measured()}


def test_ctrl_c_while_the_arms_start_ends_them(stage):
    """SIGINT before anything is measured: exit 130, no process left, and the directory can be used again."""
    plan = stage.plan(candidate=("--never-ready",))
    process = stage.start("run", plan, "--out", stage.out)
    stage.wait_until(lambda: stage.processes("--never-ready"), "the candidate")
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert code == 130
    assert err == "Stopped before this call measured anything.\n"
    stage.assert_no_orphans()
    assert stage.run().counts["measured"] == 16


def test_a_second_ctrl_c_ends_at_once(stage):
    """Where a service does not heed the stop signal, a second SIGINT kills it and leaves with exit 130."""
    stubborn = [sys.executable, "-c", STUBBORN, "--port", "{port}", "--gap-ms", "30"]
    process = stage.start("run", stage.plan(**SLOW_PLAN | {"baseline": stubborn}), "--out", stage.out)
    stage.wait_for_records(2)
    process.send_signal(signal.SIGINT)
    stage.wait_until(lambda: len(stage.processes("serve_script")) < 2, "the end of the arm that heeds")
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, err = end(process)
    assert time.monotonic() - began_s < 4.0
    assert (code, out) == (130, "")
    assert err.count("\n") == 1
    stage.assert_no_orphans()


def test_a_second_sigterm_ends_at_once_and_the_watchdogs_do_the_rest(stage):
    """The program dies of it, the services end by themselves, and the run can go on."""
    stubborn = [sys.executable, "-c", STUBBORN, "--port", "{port}", "--gap-ms", "30"]
    plan = stage.plan(**SLOW_PLAN | {"baseline": stubborn, "stop_s": 2.0})
    process = stage.start("run", plan, "--out", stage.out)
    stage.wait_for_records(2)
    process.send_signal(signal.SIGTERM)
    stage.wait_until(lambda: len(stage.processes("serve_script")) < 2, "the end of the arm that heeds")
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == -signal.SIGTERM
    stage.assert_no_orphans()
    stage.resume()
    assert_finished_without_doubles(stage, items=8)


def test_a_closed_terminal_ends_the_run_in_good_order(stage):
    """With the terminal gone nothing can be said; records, services and exit code are as after Ctrl-C."""
    master, terminal = pty.openpty()
    process = stage.start(
        "run", stage.plan(**SLOW_PLAN), "--out", stage.out, quiet=False, stdout=terminal, stderr=terminal,
        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(1, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(terminal)
    reader = threading.Thread(target=_read_until, args=(master, stage))
    reader.start()
    reader.join(120)
    os.close(master)
    assert process.wait(90) == 130
    stage.assert_no_orphans()
    assert (stage.out / "journal" / "records.jsonl").read_bytes().endswith(b"\n")
    assert any(line["kind"] == "block" and not line["record"]["completed"] for line in stage.journal())
    stage.resume()
    assert_finished_without_doubles(stage, items=8)


def _read_until(master: int, stage) -> None:
    """Read a terminal, as something that shows it does, until there are records."""
    while len(stage.measured()) < 3:
        if select.select([master], [], [], 0.05)[0]:
            os.read(master, 65536)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_is_finished_without_loss(stage):
    """SIGKILL at three places, once while the arms start: each part goes on where the last one ended."""
    process = stage.start("run", stage.plan(**SLOW_PLAN), "--out", stage.out)
    for count in (1, 6):
        stage.wait_for_records(count)
        process.kill()
        end(process)
        stage.assert_no_orphans()
        process = stage.start("run", "--resume", stage.out)
    stage.wait_until(lambda: stage.processes("serve_script"), "an arm")
    process.kill()
    end(process)
    stage.assert_no_orphans()
    kept = {record["request_id"]: record for record in stage.measured()}
    stage.resume()
    assert_finished_without_doubles(stage, items=8)
    after = {record["request_id"]: record for record in stage.measured()}
    assert kept == {name: after[name] for name in kept}


def test_a_killed_program_leaves_no_service_behind(stage):
    """SIGKILL to the program: the arms and what they started end by themselves, and the run can go on."""
    launcher = ["sh", "-c", f"{sys.executable} -m tests.builders.serve_script --port $0; true", "{port}"]
    process = stage.start("run", stage.plan(**SLOW_PLAN | {"baseline": launcher}), "--out", stage.out)
    stage.wait_for_records(3)
    assert len(stage.processes("serve_script")) == 3
    process.kill()
    assert end(process)[0] == -signal.SIGKILL
    stage.assert_no_orphans()
    stage.resume()
    assert_finished_without_doubles(stage, items=8)


def test_a_full_disk_is_one_sentence_and_the_run_can_go_on(stage):
    """When the journal cannot grow: exit 1, whole lines only, no process left; with space it finishes."""

    def limit_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))

    run = stage.call("run", stage.plan(), "--out", stage.out, preexec_fn=limit_files)
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "records.jsonl: the disk is full" in run.stderr
    assert "Fix: free some space" in run.stderr
    stage.assert_no_orphans()
    assert (stage.out / "journal" / "records.jsonl").read_bytes().endswith(b"\n")
    kept = len(stage.measured())
    assert 1 <= kept < 16
    assert recompute(stage.out, write=False).verdict.decision in {"inconclusive", "invalid"}
    stage.resume()
    assert_finished_without_doubles(stage, items=8)


def test_a_finished_run_is_resumed_without_its_services(stage, call):
    """Resuming a run that lacks nothing but its results starts no arm and gives the same results."""
    stage.run()
    wanted = (stage.out / "results.json").read_bytes()
    (stage.out / "results.json").unlink()
    logs = {path: path.stat().st_mtime_ns for path in (stage.out / "logs").iterdir()}
    records = stage.journal()
    code, out, err = call("run", "--resume", stage.out, "--quiet")
    assert code in {0, 10, 20, 30}
    assert (err, "Report: " in out) == ("", True)
    assert (stage.out / "results.json").read_bytes() == wanted
    assert stage.journal() == records
    assert {path: path.stat().st_mtime_ns for path in (stage.out / "logs").iterdir()} == logs


def test_a_period_that_lost_a_line_is_one_period_in_the_count(stage):
    """Its own line says that it ended and a request is missing: it is taken again, and not counted twice."""
    told = []

    class Telling(Progress):
        def advance(self, done, total, text):
            told.append((done, total, text))

    stage.run()
    path = stage.out / "journal" / "records.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"phase":"measure"' in line)
    path.write_bytes(b"".join(lines[:last] + lines[last + 1 :]))
    resume_run(stage.out, stage.no_model, Telling())
    periods = [one for one in told if one[2] == "measured" or ": " in one[2]]
    assert periods[-1][0] == periods[-1][1]
    assert [done for done, total, _ in periods] == [periods[-1][1] - 1, periods[-1][1]]


def test_two_programs_do_not_write_to_one_run(stage):
    """A second resume of a run that goes on is refused before it starts a service."""
    process = stage.start("run", stage.plan(**SLOW_PLAN), "--out", stage.out)
    stage.wait_for_records(1)
    before = {one.pid for one in stage.processes("serve_script")}
    with pytest.raises(StoreError, match=rf"another process \(id {process.pid}\) is writing to this run"):
        stage.resume()
    assert {one.pid for one in stage.processes("serve_script")} == before
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 130
    stage.assert_no_orphans()
