"""The knee search over real sockets: services of known capacity, a run that was cut off, a package."""

import json
import shutil

import pytest

from draftproof.measure.load.workers.process import ProcessWorker
from draftproof.measure.run.progress import Progress
from draftproof.measure.run.runner import resume_run, run_plan
from draftproof.plan.loading import load_plan
from draftproof.store import RunDirectory
from draftproof.store.journal import load_journal
from draftproof.tell.handover.packing import PackOptions, pack_run
from draftproof.tell.handover.verifying import verify_package
from draftproof.tell.report import render_html
from draftproof.tell.report.text import render_full

KNEE = """
[objectives]
e2e_ms = {deadline_ms}

[knee]
axis = "{axis}"
low = {low}
high = {high}
points_per_doubling = 1
on_time_share = 0.9
requests = 30
window_s = 1.5
trials = 2
time_budget_s = 120
spacing = "{spacing}"
"""
QUICK = {"axis": "concurrency", "low": 1, "high": 2, "deadline_ms": 2000, "spacing": "poisson"}


def run_search(stage, *, knee, **plan):
    """Run a staged plan with a search to its end and return its results."""
    path = stage.plan(comparison="confidence = 0.8", **plan)
    path.write_text(path.read_text() + KNEE.format(**knee))
    checked, text = load_plan(path)
    return run_plan(checked, text, stage.out, stage.no_model, Progress())


def finish(stage):
    return resume_run(stage.out, stage.no_model, Progress())


def arm(results, name):
    return next(one for one in results.knee.arms if one.arm == name)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A place for the one run of which every test gets a copy, and its results."""
    return {"folder": tmp_path_factory.mktemp("knee") / "run"}


@pytest.fixture
def searched(stage, kept):
    """Results of the run, which lies on this test's stage."""
    if "results" not in kept:
        kept["results"] = run_search(stage, knee=QUICK)
        shutil.copytree(stage.out, kept["folder"])
    elif not stage.out.exists():
        shutil.copytree(kept["folder"], stage.out)
    return kept["results"]


def test_a_run_searches_after_its_levels_and_reports_what_it_found(stage, searched):
    """Two loads that both arms hold: the knee is at least the highest, and page and terminal say so."""
    assert {(one.arm, one.holds, one.fails) for one in searched.knee.arms} == {
        ("baseline", 2.0, None),
        ("candidate", 2.0, None),
    }
    assert {one["load"] for one in stage.measured()} == {"single", "knee-1", "knee-2"}
    assert "set a higher high" in " ".join(searched.knee.notes)
    assert "Capacity knee" in render_full(searched)
    assert 'id="knee"' in render_html(searched)
    assert {load for load, _ in searched.loads} == {"single"}
    assert not any("knee" in text for text in searched.warnings)


def test_a_search_that_was_cut_off_is_finished_without_asking_anything_twice(stage, searched):
    """From a journal that ends inside a trial the run goes on: same trials, each request recorded once."""
    journal = stage.out / "journal" / "records.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    records = [json.loads(line)["record"] for line in lines]
    inside = next(at for at, one in enumerate(records) if one["load"] == "knee-2") + 12
    journal.write_bytes(b"".join(lines[:inside]))
    for table in stage.out.glob("*.parquet"):
        table.unlink()
    again = finish(stage)
    ids = [one["request_id"] for one in stage.measured()]
    assert len(ids) == len(set(ids))
    assert [(one.arm, one.load, one.trials) for one in again.knee.points] == [
        (one.arm, one.load, one.trials) for one in searched.knee.points
    ]
    assert again.knee.ended == "settled"


def test_a_finished_search_is_not_begun_again(stage, searched):
    """Resuming a run whose search has ended starts no service and changes nothing."""
    before = (stage.out / "journal" / "records.jsonl").read_bytes()
    assert finish(stage).knee == searched.knee
    assert (stage.out / "journal" / "records.jsonl").read_bytes() == before


def test_a_compacted_run_and_a_withheld_package_have_the_same_knee(stage, searched, tmp_path):
    """The search is computed from the tables alone too, and from texts that were replaced by digests."""
    copy = tmp_path / "copy"
    shutil.copytree(stage.out, copy, ignore=shutil.ignore_patterns("journal", "telemetry"))
    assert {one.load for one in RunDirectory.open(copy).load().records} >= {"knee-1", "knee-2"}
    archive = tmp_path / "run.tar"
    pack_run(stage.out, archive, PackOptions(salt=bytes(range(32))))
    report, opened = verify_package(archive)
    assert report.verified, report.checks
    assert opened is not None
    assert opened.results.knee == searched.knee


def test_load_workers_are_started_once_for_all_trials(stage, monkeypatch):
    """Two for the levels and two for the search, however many trials it takes; none stays behind."""
    started, start = [], ProcessWorker.start

    async def count(worker):
        started.append(worker)
        await start(worker)

    monkeypatch.setattr(ProcessWorker, "start", count)
    write = stage.plan

    def plan(**changes):
        path = write(**changes)
        path.write_text(path.read_text().replace("[limits]\n", "[limits]\nworkers = 2\n"))
        return path

    monkeypatch.setattr(stage, "plan", plan)
    found = run_search(stage, knee=QUICK).knee
    assert sum(one.trials for one in found.points) >= 2 * len(found.grid)
    assert len(started) == 4
    assert found.ended == "settled"
    records = load_journal(stage.out / "journal").records
    looked = [one for one in records if one.phase == "measure" and one.load.startswith("knee-")]
    assert (
        len({one.request_id for one in looked}) == len(looked) == sum(one.attempted for one in found.points)
    )
    stage.assert_no_orphans()


@pytest.mark.slow
def test_the_knees_of_two_services_of_known_capacity_are_found(stage):
    """One answer at a time of 40 ms and of 10 ms: 25 and 100 requests/s at most, coming at even steps."""
    results = run_search(
        stage,
        knee={"axis": "rps", "low": 10, "high": 160, "deadline_ms": 1500, "spacing": "even"},
        baseline=("--max-concurrent", "1", "--ttft-ms", "8", "--gap-ms", "4"),
        candidate=("--max-concurrent", "1", "--ttft-ms", "2", "--gap-ms", "1"),
    )
    slow, fast = arm(results, "baseline"), arm(results, "candidate")
    assert slow.holds in (10, 20), results.knee
    assert slow.fails in (20, 40), results.knee
    assert fast.holds >= slow.holds, results.knee
    assert fast.fails is None or fast.fails >= slow.fails, results.knee
    low = next(one.low for one in results.knee.ratios if one.arm == "candidate")
    assert low is None or low <= 4
