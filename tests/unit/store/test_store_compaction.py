"""A compacted run is the same run: it reads and is judged to the same bytes, and cannot be continued."""

import shutil
from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_builders import create_run, period, request

from draftproof.core.errors import StoreError
from draftproof.core.records import RequestRecord, SpecCounts, TelemetrySample
from draftproof.measure.run.reporting import recompute
from draftproof.store import RunDirectory, save_compacted
from draftproof.store.tables import load_table, save_table

NAMES = {
    "plan.toml",
    "manifest.json",
    "workload.jsonl",
    "records.parquet",
    "blocks.parquet",
    "telemetry.parquet",
}


def sample(at_ns=5, mark="start", **changes):
    values = {'tokens_total{model="m"}': 0.1 + at_ns, "running": 3.0}
    known = {"arm": "baseline", "at_ns": at_ns, "values": values, "period": "single/0", "mark": mark}
    return TelemetrySample(**(known | changes))


@pytest.fixture
def run(tmp_path):
    """Return a run with two answers, a period and three samples."""
    with create_run(tmp_path / "run") as made:
        for record in (request(0), request(1, arm="candidate", decode_steps=3), period()):
            made.journal.append(record)
        for one in (sample(), sample(9, "end"), sample(2, "during", arm="candidate", replica=1)):
            made.append_telemetry(one.arm, one)
    return made


def test_a_compacted_run_reads_as_the_run_it_was_made_from(run, tmp_path):
    """Records, periods, samples, plan, manifest and items are the same, and nothing else is kept."""
    out = save_compacted(run.path, tmp_path / "small")
    assert {one.name for one in out.iterdir()} == NAMES
    assert RunDirectory.open(out).load() == run.load()
    assert len(run.load().telemetry) == 3


def test_a_compacted_run_is_judged_to_the_same_bytes(run, tmp_path):
    """results.json of the copy equals that of the run, byte for byte, also when it is computed anew."""
    recompute(run.path, write=True)
    out = save_compacted(run.path, tmp_path / "small")
    kept = (out / "results.json").read_bytes()
    recompute(out, write=True)
    assert kept == (out / "results.json").read_bytes() == (run.path / "results.json").read_bytes()


def test_compacting_a_compacted_run_changes_nothing(run, tmp_path):
    """The copy of a copy is the copy."""
    first = save_compacted(run.path, tmp_path / "first")
    RunDirectory.open(first).compact()
    second = save_compacted(first, tmp_path / "second")
    assert RunDirectory.open(second).load() == run.load()


def test_a_compacted_run_cannot_be_continued(run, tmp_path):
    """A journal begun beside the tables would hide them, so none is."""
    copy = RunDirectory.open(save_compacted(run.path, tmp_path / "small"))
    for write in (lambda: copy.journal, lambda: copy.append_telemetry("baseline", sample())):
        with pytest.raises(StoreError, match="compacted: it can be read and judged, not continued"):
            write()
    assert {(one.block, one.arm) for one in copy.load().blocks if one.completed} == {(0, "baseline")}


def test_a_folder_that_holds_something_is_not_written_to(run, tmp_path):
    """A fixture is never mixed with what lies there."""
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "x").touch()
    with pytest.raises(StoreError, match="not empty"):
        save_compacted(run.path, tmp_path / "busy")


def test_a_run_without_journal_and_tables_is_no_run(run):
    """Losing the journal is an error, not a run without requests."""
    shutil.rmtree(run.path / "journal")
    with pytest.raises(StoreError, match=r"neither a journal folder nor records\.parquet"):
        run.load()


def test_a_torn_last_sample_is_left_out(run):
    """A killed process loses at most the sample it was writing."""
    path = run.path / "telemetry" / "baseline.jsonl"
    path.write_bytes(path.read_bytes() + b'{"arm":"base')
    assert len(run.load().telemetry) == 3


def test_a_broken_line_of_telemetry_is_named(run):
    """A line that is no sample is an error with file and line."""
    path = run.path / "telemetry" / "baseline.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(StoreError, match=r"baseline\.jsonl:1: this line is not a telemetry sample"):
        run.load()


def test_samples_of_an_older_release_load(run):
    """A line without source, replica, period and mark is an engine's sample outside any period."""
    path = run.path / "telemetry" / "baseline.jsonl"
    path.write_bytes(b'{"arm":"baseline","at_ns":1,"values":{"a_total":2.0},"counting":["a_total"]}\n')
    found = run.load().telemetry[0]
    assert (found.source, found.replica, found.period, found.mark) == ("engine", 0, None, None)


def test_tables_of_an_older_release_load(tmp_path):
    """A table without the newer columns reads with their defaults."""
    record = request(0, decode_steps=4, speculation=SpecCounts(1, 4, 2, (0, 0, 1), (4,), (2,)))
    save_table(tmp_path / "new.parquet", [record], RequestRecord)
    table = pl.read_parquet(tmp_path / "new.parquet").drop("decode_steps")
    names = ["num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"]
    old = table.with_columns(
        pl.struct([pl.col("speculation").struct.field(one) for one in names]).alias("speculation")
    )
    old.write_parquet(tmp_path / "old.parquet")
    expected = msgspec.structs.replace(record, decode_steps=None, speculation=SpecCounts(1, 4, 2, (0, 0, 1)))
    assert load_table(tmp_path / "new.parquet", RequestRecord) == (record,)
    assert load_table(tmp_path / "old.parquet", RequestRecord) == (expected,)


def test_a_table_of_something_else_is_refused(tmp_path):
    """Records in the place of samples are one clear error."""
    save_table(tmp_path / "t.parquet", [request(0)], RequestRecord)
    with pytest.raises(StoreError, match="not a table of records"):
        load_table(tmp_path / "t.parquet", TelemetrySample)


@given(
    st.lists(
        st.builds(
            TelemetrySample,
            arm=st.sampled_from(["baseline", "candidate"]),
            at_ns=st.integers(0, 2**62),
            values=st.dictionaries(
                st.text(max_size=9), st.floats(allow_nan=False, allow_infinity=False), max_size=3
            ),
            source=st.sampled_from(["engine", "host"]),
            replica=st.integers(0, 9),
            period=st.none() | st.text(max_size=9),
            mark=st.none() | st.sampled_from(["start", "during", "end"]),
        ),
        max_size=4,
    )
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_samples_survive_parquet(tmp_path: Path, samples):
    """Every value comes back to its last bit, and the order of series stays."""
    save_table(tmp_path / "t.parquet", samples, TelemetrySample)
    loaded = load_table(tmp_path / "t.parquet", TelemetrySample)
    assert loaded == tuple(samples)
    assert [list(one.values) for one in loaded] == [list(one.values) for one in samples]
