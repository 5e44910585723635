"""Arms that need the whole device: only the one whose turn it is runs, and it is the same at every start."""

import sys
from pathlib import Path

from draftproof.core.errors import PlanError
from draftproof.store import RunDirectory

DRAFTING = ("--acceptance", "active", "--tokens-per-chunk", "2")


def telling(*options: str) -> list[str]:
    """The scripted server behind a shell that writes a line at each start."""
    server = " ".join((sys.executable, "-m tests.builders.serve_script --port $0", *options))
    return ["sh", "-c", f"echo started; exec {server}", "{port}"]


def in_period(stage, **plan):
    """Write a plan whose arms take periods."""
    path = stage.plan(**plan)
    path.write_text(path.read_text().replace("question =", 'placement = "one_at_a_time"\nquestion =', 1))
    return path


def starts_of(log: Path) -> int:
    return log.read_text().count("started")


def test_arms_take_periods_and_every_change_of_period_is_a_restart(stage, call):
    """Two blocks of two arms: each is started for its check and its periods, never beside the other."""
    plan = in_period(stage, block_size=4, baseline=telling(), candidate=telling(*DRAFTING))
    code, _, err = call("run", plan, "--out", stage.out, "--quiet")
    assert code in {0, 10, 20, 30}, err
    stage.assert_no_orphans()
    blocks = RunDirectory.open(stage.out).load().blocks
    periods = [period.arm for period in sorted(blocks, key=lambda period: period.started_ns)]
    assert sorted(periods) == ["baseline", "baseline", "candidate", "candidate"]
    for arm in ("baseline", "candidate"):
        changes = sum(
            now == arm and before != arm for before, now in zip([None, *periods], periods, strict=False)
        )
        assert starts_of(stage.out / "logs" / f"{arm}.log") == 1 + changes
    assert {record["outcome"] for record in stage.measured()} == {"ok"}


def test_a_service_that_is_attached_to_cannot_take_turns(stage, call):
    """It cannot be stopped and started, and the plan is refused before anything is."""
    path = in_period(stage)
    text = path.read_text()
    line = next(line for line in text.splitlines() if line.startswith("command"))
    path.write_text(text.replace(line, 'url = "http://127.0.0.1:9"', 1))
    code, _, err = call("run", path, "--out", stage.out, "--quiet")
    assert code == PlanError.exit_code
    assert "cannot be stopped and started in turn" in err
