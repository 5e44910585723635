"""Whole runs on a host that others use: a word, an early end, a wait, a period measured once more."""

import asyncio

import pytest
from tests.builders.host import ScriptedHost
from typer import Exit

from draftproof.cli.run import Show, finish
from draftproof.core.errors import InvalidRunError
from draftproof.judge.results.run import EXIT_CODES
from draftproof.measure.run import early_warning as early_word
from draftproof.measure.run import host_watch, watching_host
from draftproof.measure.run.progress import Patience, Progress
from draftproof.measure.run.reporting import recompute
from draftproof.store import RunDirectory

TICK_S = 15.0
ITEMS = 8
SLOW = ("--gap-ms", "5", "--answer-tokens", "16")


class QuickHost(ScriptedHost):
    """A host on which a quarter of a minute goes by between two readings."""

    def read(self, attached=()):
        asyncio.run(self.pause(TICK_S))
        return super().read(attached)


class Watching(Progress):
    """Hears notices and periods, and lets others begin or stop to use the host."""

    def __init__(self, host, *, busy_from=None, quiet_from=None):
        self.host, self.busy_from, self.quiet_from = host, busy_from, quiet_from
        self.notices, self.periods, self.phases = [], [], []

    def noticed(self, notice):
        self.notices.append(notice)

    def phase(self, text):
        self.phases.append(text)

    def period_ended(self, period):
        self.periods.append((period.arm, period.number))
        self.host.foreign = 1.0 if len(self.periods) == self.busy_from else self.host.foreign
        self.host.foreign = 0.0 if len(self.periods) == self.quiet_from else self.host.foreign


@pytest.fixture
def host(monkeypatch):
    """Put a scripted host in the place of this one, read more often than every five seconds."""
    host = QuickHost()
    monkeypatch.setattr(watching_host, "HostLoadReader", lambda: host)
    monkeypatch.setattr(host_watch, "SLICE_S", 0.02)
    # How long the arms take to start on a test machine is no time measured well.
    monkeypatch.setattr(early_word, "PATIENCE_SHARE", 0.0)
    return host


def told(progress):
    return [(one.code, one.severity) for one in progress.notices]


def notices_of(stage):
    return RunDirectory.open(stage.out).load().notices


def test_a_quiet_host_gets_no_word_and_no_second_attempt(stage, host):
    """Own work on both cores is the arms' own."""
    host.own = 2.0
    progress = Watching(host)
    results = stage.run(progress, Patience(), repeat_disturbed="true")
    assert (progress.notices, notices_of(stage)) == ([], ())
    assert not any("While it was measured" in one for one in results.warnings)
    assert len(stage.measured()) == 2 * ITEMS
    blocks = RunDirectory.open(stage.out).load().blocks
    assert all(one.host is not None and one.host.own_s for one in blocks)


def test_a_crowded_host_ends_the_run_and_keeps_what_it_has(stage, host, capsys):
    """Others come after the first period: results and report are there, with the reason and the way on."""
    progress = Watching(host, busy_from=1)
    results = stage.run(progress, Patience(), baseline=SLOW, candidate=SLOW, repeats=2)
    assert told(progress) == [("host_busy", "note"), ("host_busy", "cannot_end_well")]
    assert 0 < len(stage.measured()) < 4 * ITEMS
    assert results.verdict.decision in {"invalid", "inconclusive"}
    assert results.verdict.reasons[0].code == "ended_early"
    assert "other programs have used 1.0 of this host's 2 cores" in results.verdict.sentence
    assert (stage.out / "report.html").exists()
    with pytest.raises(Exit) as left:
        finish(results, stage.out, Show(as_json=False, full=False))
    assert left.value.exit_code == EXIT_CODES[results.verdict.decision]
    assert f"draftproof run --resume {stage.out} --wait-for-quiet" in capsys.readouterr().out
    host.foreign = 0.0
    whole = stage.resume()
    assert whole.counts["measured"] == 4 * ITEMS
    assert "ended_early" not in {one.code for one in whole.verdict.reasons}
    assert any("was continued after it had ended" in one for one in whole.warnings)
    assert recompute(stage.out, write=False) == whole


def test_a_host_that_is_crowded_from_the_start_begins_no_run(stage, host):
    """Starting the arms took long enough to know: one sentence, exit code 40, and the folder stays free."""
    host.foreign = 1.0
    with pytest.raises(
        InvalidRunError, match=r"Other programs have used 1\.0 of .*this call measured nothing"
    ):
        stage.run(Watching(host), Patience(), baseline=("--never-ready",))
    assert not (stage.out / "manifest.json").exists()
    stage.assert_no_orphans()


def test_whoever_keeps_going_measures_to_the_end(stage, host):
    """The word is said and kept, and the run is whole."""
    host.foreign = 1.0
    progress = Watching(host)
    results = stage.run(progress, Patience(keep_going=True))
    assert results.counts["measured"] == 2 * ITEMS
    assert {one.severity for one in notices_of(stage)} == {"note"}
    assert any(one.code == "host_busy" for one in progress.notices)


def test_a_run_that_may_wait_waits_and_goes_on(stage, host, monkeypatch):
    """Others come and leave: nothing is lost and nothing asked twice."""
    progress = Watching(host, busy_from=1)
    waited = []

    async def wait(reader, limit_s, *_args, **_options):
        waited.append(limit_s)
        reader.foreign = 0.0
        return 120.0

    monkeypatch.setattr(host_watch, "wait_until_quiet", wait)
    monkeypatch.setattr(watching_host, "wait_until_quiet", wait)
    results = stage.run(progress, Patience(wait_s=600.0), baseline=SLOW, candidate=SLOW, repeats=2)
    assert waited == [600.0, 600.0]
    assert results.counts["measured"] == 4 * ITEMS
    assert results.counts["duplicates"] == 0
    assert [one.code for one in notices_of(stage)][-1] == "waited"
    assert "ended_early" not in {one.code for one in results.verdict.reasons}


def test_a_disturbed_period_is_measured_once_more_right_after_its_block(stage, host):
    """Both attempts are in the record, the second counts, and the report names it."""
    progress = Watching(host, busy_from=1, quiet_from=2)
    results = stage.run(progress, Patience(keep_going=True), repeat_disturbed="true", block_size=4)
    blocks = RunDirectory.open(stage.out).load().blocks
    (again,) = [one for one in blocks if one.attempt]
    first = next(one for one in blocks if (one.block, one.arm, one.attempt) == (again.block, again.arm, 0))
    assert (again.block, again.order, first.order) == (0, 3, 1)
    assert first.ended_ns < again.started_ns < min(one.started_ns for one in blocks if one.block == 1)
    asked = [one for one in stage.measured() if (one["block"], one["arm"]) == (again.block, again.arm)]
    assert sorted(one["attempt"] for one in asked) == [0] * 4 + [1] * 4
    assert {one["item_id"] for one in asked if one["attempt"]} == {
        one["item_id"] for one in asked if not one["attempt"]
    }
    assert (results.counts["measured"], results.counts["superseded"]) == (2 * ITEMS, 4)
    assert any("measured once more" in one for one in results.warnings)
