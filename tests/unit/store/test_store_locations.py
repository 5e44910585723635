"""Where a request stands on disk: the place that is named holds that very record."""

import msgspec
import polars as pl
import pytest
from run_builders import create_run, period, request

from draftproof.core.errors import StoreError
from draftproof.store import save_compacted
from draftproof.store.tables import locate_requests


@pytest.fixture
def run(tmp_path):
    """Return a run of three requests, one of them asked twice, with a period between."""
    with create_run(tmp_path / "run") as made:
        for record in (request(0), period(), request(1), request(0, outcome="cut"), request(2)):
            made.journal.append(record)
    return made


def test_a_place_is_the_line_of_the_record(run):
    """File and line lead to the request's own line; periods count as lines and have no place."""
    found = locate_requests(run.path)
    assert found == {
        "r0": ("journal/records.jsonl:1", "journal/records.jsonl:4"),
        "r1": ("journal/records.jsonl:3",),
        "r2": ("journal/records.jsonl:5",),
    }
    lines = (run.path / "journal" / "records.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(lines[2])["record"]["request_id"] == "r1"


def test_in_a_compacted_run_a_place_is_the_row_of_the_table(run, tmp_path):
    """The table's rows count from 1 and hold the request that is named."""
    out = save_compacted(run.path, tmp_path / "small")
    ids = pl.read_parquet(out / "records.parquet")["request_id"].to_list()
    for request_id, places in locate_requests(out).items():
        for place in places:
            name, _, row = place.partition(":")
            assert name == "records.parquet"
            assert ids[int(row) - 1] == request_id


def test_a_torn_last_line_has_no_place(run):
    """What a killed process left half-written is no record."""
    with (run.path / "journal" / "records.jsonl").open("ab") as journal:
        journal.write(b'{"kind": "request", "v": 1, "rec')
    assert set(locate_requests(run.path)) == {"r0", "r1", "r2"}


def test_a_broken_line_is_named(run):
    """A whole line that is no record is an error with its file and line."""
    with (run.path / "journal" / "records.jsonl").open("ab") as journal:
        journal.write(b"{}\n")
    with pytest.raises(StoreError, match=r"records\.jsonl:6"):
        locate_requests(run.path)
