"""A whole run over load workers: the same verdict path, and what ends a run before its end."""

import json
import signal

import pytest

from draftproof.store.journal import load_journal

SLOW = {
    "baseline": ("--gap-ms", "20"),
    "candidate": ("--acceptance", "active", "--tokens-per-chunk", "2", "--gap-ms", "30"),
}
SHARED = {"concurrency": 4, "block_size": 4}


@pytest.fixture
def shared(stage):
    """Return a stage whose plans have two load workers."""
    write = stage.plan

    def plan(**changes):
        path = write(**SHARED | changes)
        path.write_text(path.read_text().replace("[limits]\n", "[limits]\nworkers = 2\n"))
        return path

    stage.plan = plan
    return stage


def measured(stage):
    contents = load_journal(stage.out / "journal")
    return [one for one in contents.records if one.phase == "measure"], contents.blocks


def assert_whole(stage):
    """Every item has one counted request in every arm, and every period is complete."""
    records, blocks = measured(stage)
    asked = [(one.arm, one.item_id) for one in records]
    assert len(asked) == len(set(asked)) == 16
    assert {one.outcome for one in records} == {"ok"}
    assert {(one.block, one.arm) for one in blocks if one.completed} == {
        (block, arm) for block in (0, 1) for arm in ("baseline", "candidate")
    }
    results = json.loads((stage.out / "results.json").read_bytes())
    assert (results["counts"]["measured"], results["counts"]["duplicates"]) == (16, 0)


def test_a_run_over_two_workers_is_whole(shared):
    """Results come of the workers' journals, periods tell of both, and no process stays behind."""
    shared.run()
    shared.assert_no_orphans()
    assert_whole(shared)
    _, blocks = measured(shared)
    assert {one.workers for one in blocks} == {2}
    assert all(one.conductor_cpu_s is not None for one in blocks)
    assert {path.name for path in (shared.out / "journal").glob("records*")} == {
        "records.jsonl", "records-w0.jsonl", "records-w1.jsonl",
    }  # fmt: skip
    own = (shared.out / "journal" / "records.jsonl").read_text()
    assert '"phase":"measure"' not in own


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_program_ends_its_workers_and_the_run_can_go_on(shared, number):
    """Stopped or killed: no process is left, what was measured is kept, and a resumed run asks the rest."""
    process = shared.start("run", shared.plan(**SLOW), "--out", shared.out)
    shared.wait_until(
        lambda: (shared.out / "journal").is_dir() and len(measured(shared)[0]) >= 2,
        "two counted requests",
        wait_s=100.0,
    )
    process.send_signal(number)
    _, err = process.communicate(timeout=100)
    assert process.returncode == (130 if number is signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in err
    shared.assert_no_orphans()
    kept = {one.request_id for one in measured(shared)[0]}
    assert kept
    shared.resume()
    shared.assert_no_orphans()
    assert kept <= {one.request_id for one in measured(shared)[0]}
    assert_whole(shared)


def test_a_killed_worker_is_one_sentence_and_the_run_can_go_on(shared):
    """Exit 1, no failure of an arm, and a resumed run asks exactly what is missing."""
    process = shared.start("run", shared.plan(**SLOW), "--out", shared.out)
    shared.wait_until(
        lambda: (shared.out / "journal").is_dir() and len(measured(shared)[0]) >= 2,
        "two counted requests",
        wait_s=100.0,
    )
    shared.processes("workers.process")[0].kill()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 1
    (sentence,) = [line for line in err.splitlines() if "load worker" in line]
    assert "was ended by SIGKILL" in sentence
    assert f"draftproof run --resume {shared.out}" in sentence
    shared.assert_no_orphans()
    records, blocks = measured(shared)
    assert {one.outcome for one in records} == {"ok"}
    assert "no records" in next(one.note for one in blocks if not one.completed)
    shared.resume()
    assert_whole(shared)
