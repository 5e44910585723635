"""The command line around runs: exit codes, JSON, help, and what a terminal sees."""

import json
import os
import re
import signal

import msgspec
import pytest
from tests.builders.records import MS_NS, build_block_record, build_item, build_manifest, build_record

from draftproof.core.records import SpecCounts
from draftproof.plan.loading import parse_plan, plan_sha256, thresholds_sha256
from draftproof.store import RunDirectory
from draftproof.workload.items import ContainsCheck

LOADS = {"low": 1, "high": 8}
PLAN = (
    'name = "stored"\n[workload]\nsegment_by = ["task"]\n'
    + "".join(
        f'[[load]]\nname = "{name}"\nconcurrency = {count}\nblock_size = 2\n' for name, count in LOADS.items()
    )
    + "[arms.baseline]\n[arms.candidate]\n[comparison]\nnull_arm = false\nresamples = 200\n"
    "[thresholds]\nfailure_margin = 1.0\nquality_margin = 1.0\n"
)
ITEMS = [
    build_item(f"item-{number}", segments={"task": "chat"}, checks=(ContainsCheck(all_of=("answer",)),))
    for number in range(8)
]
DRAFTED, IDLE = SpecCounts(4, 16, 4, (0, 4)), SpecCounts(0, 0, 0)
COMMANDS = (
    *("demo", "init", "plan", "check", "run", "report", "verdict", "judge", "compare", "package", "verify"),
    *("samples", "costs", "screen", "rules", "client-check", "fetch", "serve"),
)


def store_run(path, *, low: float, high: float, counts: SpecCounts = DRAFTED, items=ITEMS) -> None:
    """Write a run in which the candidate's gaps are `low` and `high` times the baseline's at the loads."""
    plan = parse_plan(PLAN)
    manifest = build_manifest(plan_sha256=plan_sha256(PLAN), thresholds_sha256=thresholds_sha256(plan))
    with RunDirectory.create(path, PLAN, plan, manifest, ITEMS) as run:
        for place, (load, factor) in enumerate({"low": low, "high": high}.items()):
            for order, (arm, pace) in enumerate({"baseline": 1.0, "candidate": factor}.items()):
                for number, item in enumerate(items):
                    record = build_record(
                        arm=arm,
                        load=load,
                        block=4 * place + number // 2,
                        item_id=item.id,
                        concurrency=LOADS[load],
                        tokens_per_chunk=(1,) * 10,
                        gap_ns=round((20 + 0.1 * number) * pace * MS_NS),
                        speculation=counts if arm == "candidate" else None,
                    )
                    run.journal.append(record)
                for block in range(4 * place, 4 * place + 4):
                    period = (order + block // 2) % 2  # each arm follows itself as often as the other
                    at_ns = (2 * block + period) * 1000 * MS_NS
                    times = {"started_ns": at_ns, "ended_ns": at_ns + 1000 * MS_NS}
                    run.journal.append(
                        build_block_record(block=block, load=load, arm=arm, order=period, **times)
                    )


@pytest.mark.parametrize(
    ("code", "decision", "said", "run"),
    [
        (0, "adopt", "▲ Adopt on trial: ", {"low": 0.5, "high": 0.6}),
        (10, "adopt_limited", "◐ Adopt on trial: ", {"low": 0.5, "high": 1.5}),
        (20, "defer", "▼ Do not enable: ", {"low": 1.3, "high": 1.5}),
        (30, "inconclusive", "? Inconclusive: ", {"low": 0.5, "high": 0.5, "items": ITEMS[:7]}),
        (40, "invalid", "✕ Invalid run: ", {"low": 0.5, "high": 0.5, "counts": IDLE}),
    ],
)
def test_verdict_exits_with_the_code_of_its_decision(tmp_path, call, *, code, decision, said, run):
    """Every decision has its exit code and answer; --json states it, --full has its sentence."""
    store_run(tmp_path / "run", **run)
    found, out, err = call("verdict", tmp_path / "run", "--json")
    assert out, err
    verdict = json.loads(out)
    assert (found, verdict["decision"], err) == (code, decision, "")
    plain_code, plain, _ = call("verdict", tmp_path / "run")
    assert plain_code == code
    assert plain.startswith(said)
    assert f"draftproof report {tmp_path / 'run'} writes report.html" in plain
    _, full, _ = call("verdict", tmp_path / "run", "--full")
    assert verdict["sentence"] in " ".join(full.split())
    assert not (tmp_path / "run" / "results.json").exists()


def test_report_writes_the_same_bytes_each_time_and_says_where(tmp_path, call):
    """`report` exits with the verdict's code, as `run` does, names the file, and repeats itself exactly."""
    run = tmp_path / "run"
    store_run(run, low=1.3, high=1.5)
    code, out, err = call("report", run)
    first = (run / "results.json").read_bytes(), (run / "report.html").read_bytes()
    assert (code, err) == (20, "")
    assert str(run / "report.html") in out
    assert call("report", run)[1] == out
    assert ((run / "results.json").read_bytes(), (run / "report.html").read_bytes()) == first


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(call, command):
    """--help shows how the command is called."""
    code, out, _ = call(command, "--help")
    assert code == 0
    assert f"draftproof {command}" in out.partition("Example")[2]


def test_help_lists_every_command(call):
    """No command is without its test of help."""
    _, out, _ = call("--help")
    listed = [line.split()[1] for line in out.splitlines() if line.startswith("│ ") and line[2].isalpha()]
    assert listed == list(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "name either a plan file or --resume RUN"),
        (("run", "--resume", "x", "--out", "y"), "--resume continues in its own directory"),
        (("run", "builtin:other"), "there is no built-in plan 'other'"),
        (("serve", "--ngram-min", "5", "--ngram-max", "2"), "--ngram-min 5 is above --ngram-max 2"),
    ],
)
def test_calls_that_make_no_sense_are_one_sentence(call, arguments, words):
    """A wrong call exits with 2 and says in one line what is wrong and what to do."""
    code, out, err = call(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert "Fix: " in err


def test_init_writes_a_plan_that_is_valid_and_never_overwrites(tmp_path, call):
    """`init` gives a plan that loads; a second call leaves the file alone."""
    path = tmp_path / "plan.toml"
    assert call("init", "--out", path)[0] == 0
    text = path.read_text()
    assert parse_plan(text).name == "demo"
    code, _, err = call("init", "--out", path)
    assert (code, err.count("\n")) == (2, 1)
    assert path.read_text() == text


def test_a_run_leaves_plain_lines_in_a_log_and_states_its_verdict_as_json(stage, call):
    """A line for each phase, warm-up and period, no control character; --json prints only the verdict."""
    code, out, err = call("run", stage.plan(), "--out", stage.out, "--json")
    lines = err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d \S", line) for line in lines)
    assert all(line.isprintable() for line in lines)
    texts = [line[9:] for line in lines]
    host = ("Other programs ", "While ")  # a busy host is named, and tests share theirs
    assert [text for text in texts if not text.startswith(("period ", "warm-up ", *host))] == [
        "Starting the arms",
        "Measuring",
        "Computing the verdict",
    ]
    periods = [text for text in texts if text.startswith("period ")]
    assert [text.split()[1] for text in periods] == ["1/4", "2/4", "3/4", "4/4"]
    assert all("4 requests, 0 failed, " in text and " ms per token" in text for text in periods)
    assert all(" left" in text for text in periods[:-1])
    assert sum(text.startswith("warm-up single ") for text in texts) == 2
    verdict = json.loads(out)
    assert set(verdict) >= {"decision", "sentence", "reasons", "envelope"}
    results = msgspec.json.decode((stage.out / "results.json").read_bytes())
    assert verdict == results["verdict"]
    assert code == {"adopt": 0, "adopt_limited": 10, "defer": 20, "inconclusive": 30}[verdict["decision"]]


def test_a_quiet_run_leaves_nothing_in_a_log(stage, call):
    """--quiet: standard error is for what went wrong."""
    code, _, err = call("run", stage.plan(block_size=8), "--out", stage.out, "--quiet")
    assert code in {0, 10, 20, 30}
    assert err == ""


def test_ctrl_c_ends_a_check(stage):
    """SIGINT to a check that waits for a service: exit 130, one line, no process left."""
    process = stage.start("check", "-q", stage.plan(candidate=("--never-ready",)))
    stage.wait_until(lambda: stage.processes("--never-ready"), "the candidate")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err == "Stopped before this call measured anything.\n"
    stage.assert_no_orphans()


def test_a_terminal_sees_the_progress_of_a_run(stage):
    """With a terminal on standard error every phase is told there, and the cursor is shown again."""
    leader, follower = os.openpty()
    stage.write_items(4)
    slow = ("--gap-ms", "150", "--answer-tokens", "4")  # the view looks twice a second
    plan = stage.plan(baseline=slow, candidate=slow, block_size=2)
    process = stage.start("run", plan, "--out", stage.out, "--json", quiet=False, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # how Linux reports that the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    out, _ = process.communicate(timeout=60)
    text = seen.decode()
    for phase in ("Starting the arms", "Measuring", "Computing the verdict"):
        assert phase in text
    for word in ("candidate", "measuring", " of 4, load single", " left"):
        assert word in text
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0
    assert json.loads(out)["decision"]
