"""A run directory is complete, refuses to be mixed up, and gives the same bytes everywhere."""

import shutil

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_builders import ITEMS, PLAN_TEXT, create_run, manifest, period, request, requests

from draftproof.core.errors import InvalidRunError, StoreError
from draftproof.core.records import BlockRecord, RequestRecord, TelemetrySample
from draftproof.judge.results.run import Results, Verdict
from draftproof.plan.loading import parse_plan
from draftproof.store import LOG_FOLDER, RunDirectory
from draftproof.store.tables import load_table, save_table, table_schema


def results() -> Results:
    return Results(
        schema_version=1, draftproof_version="0", run_name="t", question="", evidence="smoke",
        plan_sha256="p", thresholds_sha256="t", workload_sha256="w", thresholds={"b": 0.1, "a": 1e-9},
        confidence=0.95, metric="tpot_ns", statistic="mean", segments=(), loads=(("single", 1),), arms=(),
        arm_cells=(), effects=(), differences=(), agreements=(), estimators=(), cells=(), diagnosis=(),
        verdict=Verdict(decision="defer", sentence="no", evidence_level="smoke", reasons=(), envelope=()),
        not_measured=(), warnings=(), counts={"z": 1, "a": 2},
    )  # fmt: skip


def test_run_reads_back_what_it_was_made_of(tmp_path):
    """Plan, manifest, items, records and turns of a copied run are those that were written."""
    with create_run(tmp_path / "run") as run:
        run.journal.append(request(1))
        run.journal.append(request(0))
        run.journal.append(period())
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    contents = RunDirectory.open(tmp_path / "copy").load()
    assert (tmp_path / "copy" / "plan.toml").read_text(encoding="utf-8") == PLAN_TEXT
    assert contents.plan == parse_plan(PLAN_TEXT)
    assert contents.manifest == manifest()
    assert contents.items == ITEMS
    assert contents.records == (request(0), request(1))
    assert contents.blocks == (period(),)


def test_folder_in_use_is_refused(tmp_path):
    """A run is never written over something else."""
    (tmp_path / "x").write_text("mine")
    with pytest.raises(StoreError, match=r"not empty.*--resume"):
        create_run(tmp_path)


def test_logs_of_the_arms_may_lie_there_before_the_run(tmp_path):
    """The arms' logs are written before the run is made, and do not count as another's files."""
    (tmp_path / LOG_FOLDER).mkdir()
    create_run(tmp_path)
    assert RunDirectory.open(tmp_path).load_items() == ITEMS


def test_two_runs_do_not_begin_in_one_folder(tmp_path):
    """The second is refused while the first starts its arms; what is left of one that is over is free."""
    folder = tmp_path / "run"
    with RunDirectory.prepare(folder):
        (folder / "logs" / "baseline.log").write_text("loading")
        with pytest.raises(StoreError, match="another process begins a run"), RunDirectory.prepare(folder):
            pass
    with RunDirectory.prepare(folder):
        assert (folder / "logs" / "baseline.log").is_file()


def test_tables_have_every_field_of_the_records():
    """No field of a record is forgotten in its table."""
    assert tuple(table_schema(RequestRecord)) == RequestRecord.__struct_fields__
    assert tuple(table_schema(BlockRecord)) == BlockRecord.__struct_fields__


def test_folder_without_a_run_is_refused(tmp_path):
    """Opening a folder that holds no run says so."""
    with pytest.raises(StoreError, match="no run in this folder"):
        RunDirectory.open(tmp_path)


def test_damaged_manifest_is_an_error_with_its_path(tmp_path):
    """A manifest that is not one is named."""
    create_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 1}')
    with pytest.raises(StoreError, match=r"manifest\.json: this is not a manifest"):
        RunDirectory.open(tmp_path)


def test_manifest_of_a_newer_program_is_refused(tmp_path):
    """A run of a later schema version asks for a newer program."""
    create_run(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(StoreError, match="use a newer draftproof"):
        RunDirectory.open(tmp_path)


def test_manifest_with_unknown_fields_keeps_loading(tmp_path):
    """A field this program does not know does not stop an old or foreign manifest."""
    create_run(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"extra": 1}))
    assert RunDirectory.open(tmp_path).load_manifest() == manifest()


@pytest.mark.parametrize(
    ("change", "said"),
    [("[thresholds]\nharm_margin = 0.5\n", "thresholds differ "), ("# later\n", "text differs")],
)
def test_plan_changed_after_the_start_makes_the_run_invalid(tmp_path, change, said):
    """Thresholds moved after measuring are found by their hash, and the run concludes nothing."""
    run = create_run(tmp_path)
    (tmp_path / "plan.toml").write_text(PLAN_TEXT + change)
    with pytest.raises(InvalidRunError, match=said):
        run.load()


def test_manifest_with_other_hashes_is_refused_at_creation(tmp_path):
    """A manifest that belongs to another plan cannot start a run."""
    with pytest.raises(InvalidRunError):
        RunDirectory.create(tmp_path, PLAN_TEXT, parse_plan(PLAN_TEXT), manifest(plan_sha256="other"), ITEMS)


def test_bad_item_line_is_named(tmp_path):
    """A damaged line of the items is named by file and line."""
    run = create_run(tmp_path)
    (tmp_path / "workload.jsonl").write_text("{}\n")
    with pytest.raises(StoreError, match=r"workload\.jsonl:1"):
        run.load_items()


def test_second_process_on_a_run_is_refused_until_the_first_is_done(tmp_path):
    """Two writers of one run are never possible; after closing the next may write."""
    first = create_run(tmp_path)
    first.journal.append(request(0))
    second = RunDirectory.open(tmp_path)
    with pytest.raises(StoreError, match="is writing to this run"):
        second.journal.append(request(1))
    assert second.load().records == (request(0),)
    first.close()
    with second:
        second.journal.append(request(1))
    assert second.load().records == (request(0), request(1))


def test_results_have_the_same_bytes_every_time(tmp_path):
    """Results written twice, in two places, are the same bytes with sorted keys and read back equal."""
    first, second = create_run(tmp_path / "1"), create_run(tmp_path / "2")
    left = first.write_results(results()).read_bytes()
    assert left == second.write_results(results()).read_bytes() == first.write_results(results()).read_bytes()
    assert left.index(b'"a": 2') < left.index(b'"z": 1')
    assert first.load_results() == results()


def test_missing_results_are_a_clear_error(tmp_path):
    """Reading results that were never written names the file."""
    with pytest.raises(StoreError, match=r"results\.json: cannot be read"):
        create_run(tmp_path).load_results()


def test_report_is_written_whole(tmp_path):
    """The report lies in the run, and no partial file stays behind."""
    path = create_run(tmp_path).write_report("<p>سؤال</p>")
    assert path.read_text(encoding="utf-8") == "<p>سؤال</p>"
    assert not list(tmp_path.glob(".*partial"))


def test_telemetry_samples_are_lines(tmp_path):
    """Samples of an arm are appended one a line."""
    sample = TelemetrySample(arm="baseline", at_ns=5, values={"a": 1.5})
    with create_run(tmp_path) as run:
        run.append_telemetry("baseline", sample)
        run.append_telemetry("baseline", sample)
    lines = (tmp_path / "telemetry" / "baseline.jsonl").read_bytes().splitlines()
    records = [msgspec.json.encode(msgspec.json.decode(line)["record"]) for line in lines]
    assert [msgspec.json.decode(record, type=TelemetrySample) for record in records] == [sample, sample]


def test_compaction_keeps_content_and_order(tmp_path):
    """The Parquet tables hold exactly the journal's records in its order, and the journal stays."""
    with create_run(tmp_path) as run:
        for record in (request(1), request(0, rounds=None, speculation=None, token_ids=()), period()):
            run.journal.append(record)
    records_path, blocks_path, _ = run.compact()
    assert load_table(records_path, RequestRecord) == run.load().records
    assert load_table(blocks_path, BlockRecord) == run.load().blocks


@given(st.lists(requests, max_size=5))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_records_survive_parquet(tmp_path, records):
    """None, empty and filled are three different things after a round trip, in every field."""
    save_table(tmp_path / "r.parquet", records, RequestRecord)
    assert load_table(tmp_path / "r.parquet", RequestRecord) == tuple(records)


def test_file_that_is_no_table_is_refused(tmp_path):
    """Reading a table from another file is one clear error."""
    (tmp_path / "x").write_text("x" * 50)
    with pytest.raises(StoreError, match="not a table of records"):
        load_table(tmp_path / "x", RequestRecord)
