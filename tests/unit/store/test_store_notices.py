"""Notices and host evidence beside the requests: appended, read back, compacted, packed and unpacked."""

import msgspec
import pytest
from run_builders import create_run, period, request

from draftproof.core.records import AcceleratorUse, BlockRecord, HostUse, Notice, RequestRecord
from draftproof.store import RunDirectory, save_compacted
from draftproof.store.journal import load_journal
from draftproof.tell.handover.journal_order import check_records
from draftproof.tell.handover.packing import stage_run

HOST = HostUse(
    span_s=30.5,
    cores=2,
    busy_s=61.0,
    own_s=None,
    steal_s=0.5,
    pressure_s=29.0,
    accelerators=(AcceleratorUse(index=0, samples=9, throttled=None, clock_mhz=1410.5),),
)
NOTICES = (
    Notice(code="waited", severity="note", text="waited 3 min", remedy="", at_ns=7),
    Notice(code="host_busy", severity="cannot_end_well", text="no core is left", remedy="stop it", at_ns=3),
)
AGAIN = msgspec.structs.replace(
    period(), order=4, attempt=1, host=msgspec.structs.replace(HOST, own_s=60.0, accelerators=())
)
FIRST = msgspec.structs.replace(period(), host=HOST)


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "run") as run:
        run.journal.append(request())
        run.journal.append(FIRST)
        run.journal.append(request(1, attempt=1))
        run.journal.append(AGAIN)
        for one in NOTICES:
            run.append_beside(one)
    return RunDirectory.open(tmp_path / "run")


def test_notices_and_evidence_come_back_as_they_were_written(run):
    """Notices keep their order, a period its host's figures and its attempt; None stays None."""
    contents = run.load()
    assert contents.notices == NOTICES
    assert contents.blocks == (FIRST, AGAIN)
    assert [one.attempt for one in contents.records] == [0, 1]


def test_a_compacted_run_keeps_them(run, tmp_path):
    """The tables hold what the journal holds."""
    small = RunDirectory.open(save_compacted(run.path, tmp_path / "small")).load()
    assert (small.notices, small.blocks) == (NOTICES, (FIRST, AGAIN))
    assert [one.attempt for one in small.records] == [0, 1]


def test_a_package_of_a_compacted_run_holds_them(run, tmp_path):
    """The tables become lines again, in the order of a run."""
    stage_run(save_compacted(run.path, tmp_path / "small"), tmp_path / "stage")
    journal = load_journal(tmp_path / "stage" / "journal")
    assert (journal.notices, journal.blocks) == (NOTICES, (FIRST, AGAIN))


def test_a_period_measured_once_more_is_in_order():
    """The second attempt of a period has lines of its own behind its block; it is no line that was moved."""
    lines = [request(), period(), request(1, attempt=1, end_ns=period().ended_ns + 1), AGAIN]
    lines[-1] = msgspec.structs.replace(AGAIN, ended_ns=period().ended_ns + 2)
    assert check_records(lines) == ([], [])


@pytest.mark.parametrize("kind", [RequestRecord, BlockRecord])
def test_a_line_of_an_older_run_is_the_first_attempt(kind):
    """Records from before there were attempts load, and are the first."""
    whole = msgspec.to_builtins(request() if kind is RequestRecord else period())
    old = {key: value for key, value in whole.items() if key not in ("attempt", "host")}
    assert msgspec.convert(old, kind).attempt == 0
