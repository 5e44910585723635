"""Warm-ups beside the requests: appended, read back, compacted, packed and unpacked."""

import msgspec
import pytest
from run_builders import create_run, period, request

from draftproof.core.records import Warmup, WarmupGroup
from draftproof.store import RunDirectory, save_compacted
from draftproof.store.journal import load_journal
from draftproof.tell.handover.packing import stage_run, withhold_stage


def warmup(**changes):
    one = Warmup(
        arm="baseline",
        load="low",
        block=0,
        start=1,
        started_ns=5,
        ended_ns=9_000,
        stable=True,
        tolerance=0.1,
        change=0.04,
        groups=(
            WarmupGroup(requests=2, answered=1, ttft_ns=400.5, tpot_ns=None),
            WarmupGroup(requests=2, answered=2, ttft_ns=90.0, tpot_ns=21.5),
        ),
    )
    return msgspec.structs.replace(one, **changes)


WARMUPS = (
    warmup(),
    warmup(arm="candidate", stable=False, change=None, groups=(WarmupGroup(requests=2, answered=0),)),
    warmup(block=4, start=2),
)


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "run") as run:
        run.journal.append(request())
        run.journal.append(period())
        for one in reversed(WARMUPS):
            run.append_beside(one)
    return RunDirectory.open(tmp_path / "run")


def test_warm_ups_come_back_in_their_own_order(run):
    """The order on disk does not matter, and the requests are what they were."""
    contents = run.load()
    assert contents.warmups == WARMUPS
    assert contents.records == (request(),)
    assert contents.blocks == (period(),)


def test_a_compacted_run_keeps_them(run, tmp_path):
    """They lie in a table of their own; what was None is None."""
    folder = save_compacted(run.path, tmp_path / "small")
    assert (folder / "warmups.parquet").is_file()
    assert RunDirectory.open(folder).load().warmups == WARMUPS


@pytest.mark.parametrize("from_tables", [False, True], ids=["journal", "tables"])
def test_a_package_holds_them_with_texts_withheld(run, tmp_path, from_tables):
    """They have no text: withheld or not, they are what they were, also from a compacted run."""
    source = save_compacted(run.path, tmp_path / "small") if from_tables else run.path
    stage_run(source, tmp_path / "stage")
    withhold_stage(tmp_path / "stage", run.load(), b"0123456789abcdef")
    assert load_journal(tmp_path / "stage" / "journal").warmups == WARMUPS


def test_a_run_from_before_there_were_any_has_none(tmp_path):
    """No file, no table, no warm-up."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request())
    folder = save_compacted(tmp_path / "run", tmp_path / "small")
    assert not (folder / "warmups.parquet").exists()
    assert RunDirectory.open(folder).load().warmups == ()
