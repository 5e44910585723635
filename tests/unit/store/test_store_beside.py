"""Judgements and probes beside the requests: appended, read back, compacted."""

import msgspec
import pytest
from run_builders import create_run, period, request

from draftproof.core.errors import StoreError
from draftproof.core.records import BehaviourProbe, Judgement
from draftproof.store import RunDirectory, save_compacted
from draftproof.store.journal import encode_line


def judgement(**changes):
    one = Judgement(
        request_id="r0",
        item_id="a",
        check=0,
        kind="judge",
        passed=True,
        detail="said yes",
        by="m",
        source_sha256="0",
        answer_sha256="1",
    )
    return msgspec.structs.replace(one, **changes)


def probe(**changes):
    one = BehaviourProbe(arm="baseline", probe="unicode", status="passed", detail="so", at_ns=5)
    return msgspec.structs.replace(one, **changes)


JUDGEMENTS = (judgement(), judgement(attempt=1, passed=None), judgement(request_id="r1", passed=False))
PROBES = (probe(), probe(arm="candidate", status="unsupported", http_status=400))


@pytest.fixture
def run(tmp_path):
    with create_run(tmp_path / "run") as run:
        run.journal.append(request())
        run.journal.append(period())
        for one in reversed(JUDGEMENTS):
            run.append_beside(one)
        for one in reversed(PROBES):
            run.append_beside(one)
    return RunDirectory.open(tmp_path / "run")


def test_judgements_and_probes_come_back_in_their_own_order(run):
    """The order on disk does not matter, and the requests are what they were."""
    contents = run.load()
    assert contents.judgements == JUDGEMENTS
    assert contents.behaviours == PROBES
    assert contents.records == (request(),)
    assert contents.blocks == (period(),)


def test_a_compacted_run_keeps_them(run, tmp_path):
    """They lie in tables of their own and are read back the same."""
    folder = save_compacted(run.path, tmp_path / "small")
    contents = RunDirectory.open(folder).load()
    assert contents.judgements == JUDGEMENTS
    assert contents.behaviours == PROBES
    with pytest.raises(StoreError, match="compacted"):
        RunDirectory.open(folder).append_beside(judgement())


def test_a_compacted_run_without_any_has_no_tables_for_them(tmp_path):
    """Three tables stay three tables."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request())
    folder = save_compacted(tmp_path / "run", tmp_path / "small")
    assert {path.name for path in folder.glob("*.parquet")} == {
        "records.parquet",
        "blocks.parquet",
        "telemetry.parquet",
    }
    assert RunDirectory.open(folder).load().judgements == ()


def test_a_torn_judgement_is_left_out_and_counted(run):
    """A power cut costs the line that was being written."""
    path = run.path / "journal" / "judgements.jsonl"
    path.write_bytes(path.read_bytes() + encode_line(judgement(request_id="r9"))[:20])
    contents = run.load()
    assert contents.judgements == JUDGEMENTS
    assert contents.torn_lines == 1


def test_a_line_that_is_no_judgement_is_named_by_file_and_line(run):
    """The sentence says where."""
    path = run.path / "journal" / "judgements.jsonl"
    path.write_bytes(b'{"kind":"judgement","v":1,"record":{}}\n')
    with pytest.raises(StoreError, match=r"judgements\.jsonl:1"):
        run.load()


def test_the_period_of_a_conversation_survives_compaction(tmp_path):
    """A later turn stays a later turn."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request(conversation_turn=2))
    folder = save_compacted(tmp_path / "run", tmp_path / "small")
    assert RunDirectory.open(folder).load().records[0].conversation_turn == 2
