"""Packed files: gzip and Parquet say what plain lines say, and what is broken ends in one sentence."""

import gzip
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from draftproof.core.errors import WorkloadError
from draftproof.workload import reader as packed
from draftproof.workload.moments import Units
from draftproof.workload.parquet_rows import render_rows
from draftproof.workload.reader import load_workload

ROWS = [
    {
        "id": "a",
        "messages": [{"role": "user", "content": "Größe?"}, {"role": "assistant", "content": None,
                     "tool_calls": [{"id": "c", "type": "function"}]},
                     {"role": "tool", "content": "5", "tool_call_id": "c"}],
        "max_tokens": 9,
    },
    {"id": "b", "messages": [{"role": "user", "content": "Hi"}], "sampling": {"temperature": 0.5}},
]  # fmt: skip
TRACE = [{"timestamp": n * 500, "input_length": 955, "output_length": 5, "hash_ids": [1, n]} for n in (2, 3)]


def write(folder, raw, name="w.jsonl"):
    path = folder / name
    path.write_bytes(raw)
    return path


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(folder, rows, name="w.parquet"):
    pl.DataFrame(rows).write_parquet(folder / name)
    return folder / name


def refusal_of(path):
    with pytest.raises(WorkloadError) as caught:
        load_workload(path)
    assert str(caught.value.place).startswith(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("rows", "units"), [(ROWS, None), (TRACE, Units(timestamp="ms"))])
def test_one_content_has_one_hash_however_it_is_packed(tmp_path, rows, units):
    """The hash is of what the items say; the nulls of a table's columns are keys that a row lacks."""
    plain = load_workload(write(tmp_path, lines(rows)), units=units)
    for path in (write(tmp_path, gzip.compress(lines(rows)), "w.jsonl.gz"), table(tmp_path, rows)):
        assert load_workload(path, units=units) == plain


def test_a_header_stands_beside_a_packed_file(tmp_path):
    """`w.meta.toml` belongs to `w.jsonl.gz`, whose name is `w` without it."""
    path = write(tmp_path, gzip.compress(lines(ROWS)), "w.jsonl.gz")
    assert load_workload(path).name == "w"
    (tmp_path / "w.meta.toml").write_text('name = "n"\nversion = "2"\nlicence = "CC0-1.0"\n')
    assert load_workload(path).name == "n"


def test_the_name_does_not_matter(tmp_path):
    """What a file is says its beginning."""
    assert len(load_workload(write(tmp_path, gzip.compress(lines(ROWS)), "w.csv")).items) == 2


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (gzip.compress(lines(ROWS), mtime=0)[:-9], "no whole gzip file"),
        (gzip.compress(lines(ROWS), mtime=0) + b"more", "no whole gzip file"),
        (gzip.compress(lines(ROWS), mtime=0)[:20] + b"\xff" * 9, "no whole gzip file"),
        (gzip.compress(gzip.compress(lines(ROWS), mtime=0), mtime=0), "gzip, twice"),
        (gzip.compress(b"PAR1" + bytes(99), mtime=0), "Parquet within gzip"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "zstd"),
        (b"PK\x03\x04" + bytes(99), "zip"),
        (lines(ROWS).decode().encode("utf-16"), "UTF-16"),
        (b"\x00" + lines(ROWS), "not JSON"),
    ],
)
def test_a_broken_or_unknown_packing_is_one_sentence(tmp_path, raw, said):
    """Cut, changed, packed twice or with another program."""
    assert said in refusal_of(write(tmp_path, raw))


def test_a_file_that_swells_is_refused(tmp_path, monkeypatch):
    """What is unpacked has a limit in bytes and in lines."""
    path = write(tmp_path, gzip.compress(lines(ROWS * 50)), "w.jsonl.gz")
    for name in ("MOST_BYTES", "MOST_LINES"):
        with monkeypatch.context() as patched:
            patched.setattr(packed, name, 30)
            assert "once it is unpacked" in refusal_of(path)


def test_a_table_that_swells_is_refused(tmp_path, monkeypatch):
    """Too many rows, told by the table, and too many bytes, told as they come."""
    path = table(tmp_path, TRACE)
    monkeypatch.setattr(packed, "MOST_LINES", 1)
    assert "more than 1 rows" in refusal_of(path)
    monkeypatch.setattr(packed, "MOST_BYTES", 30)
    monkeypatch.setattr(packed, "MOST_LINES", 9)
    assert "once it is unpacked" in refusal_of(path)


@pytest.mark.parametrize("cut", [slice(0, 40), slice(0, -20)])
def test_a_damaged_table_is_one_sentence(tmp_path, cut):
    """The library's own errors and the end of its process alike."""
    assert "Parquet file cannot be read" in refusal_of(
        write(tmp_path, table(tmp_path, TRACE).read_bytes()[cut])
    )


def test_a_library_that_ends_its_process_is_one_sentence(tmp_path, monkeypatch):
    """What no exception tells is told all the same."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "it is damaged, or larger than memory" in refusal_of(table(tmp_path, TRACE))


def test_a_time_of_a_table_keeps_its_nanoseconds_and_its_zone():
    """A column of times becomes dates with an offset where it has a zone, and without one where not."""
    at = datetime(2026, 3, 2, 10, tzinfo=UTC)
    frame = pl.DataFrame({"timestamp": [at], "prompt_tokens": [3]}).with_columns(
        pl.col("timestamp").cast(pl.Datetime("ns", "UTC")) + pl.duration(nanoseconds=7)
    )
    local = frame.with_columns(pl.col("timestamp").dt.replace_time_zone(None))
    written = [json.loads(next(render_rows(one)))["timestamp"] for one in (frame, local)]
    assert written == ["2026-03-02T10:00:00.000000007+00:00", "2026-03-02T10:00:00.000000007"]


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"prompt": [b"x"]}),
        pl.DataFrame({"at_s": [float("nan")]}),
        pl.DataFrame({"at_s": [float("inf")]}),
        pl.DataFrame({"body": [{"wait": [timedelta(1)]}]}),
    ],
)
def test_what_json_cannot_hold_is_refused(frame):
    """Bytes, durations and numbers that are none are not turned into something else."""
    with pytest.raises(ValueError, match=r"column|JSON"):
        list(render_rows(frame))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    """Of every ending."""
    for name in ("w.jsonl", "w.jsonl.gz", "w.parquet"):
        assert "cannot be read" in refusal_of(Path(tmp_path / name))


def test_integers_that_pandas_stored_as_floats_are_integers():
    """A limit that some rows lack is a column of floats with gaps; fractions and full columns stay floats."""
    rows = pl.DataFrame(
        {"limit": [300.0, None], "share": [0.5, None], "at": [1.0, 2.0], "far": [2.0**60, None]}
    )
    first, second = (json.loads(line) for line in render_rows(rows))
    assert [(name, type(value)) for name, value in first.items()] == [
        ("limit", int), ("share", float), ("at", float), ("far", float),
    ]  # fmt: skip
    assert second == {"at": 2.0}
